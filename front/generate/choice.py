"""One answer on its way from token ids to text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.text import Detokenizer, StopStrings

from .answers import Delta, TokenReport
from .prompt_text import PromptText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.request import RequestOutput, SamplingParams, TokenLogprobs
    from camshaft.text import Tokenizer


class ChoiceText:
    """Detokenises one answer, finds its stop strings, and reports its tokens.

    Attributes:
        index: Of the choice.
        finished: Whether its end was found.
        tokens: Those taken so far; none after a stop string is.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        params: SamplingParams,
        prompt: Sequence[int] = (),
    ) -> None:
        """Begin without text.

        Args:
            index: Of the choice.
            tokenizer: Whose ids these are.
            params: Of its request.
            prompt: What it answers; for its logprobs.
        """
        self.index = index
        self.finished = False
        self.tokens = 0
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(params.stop, params.include_stop)
        self._include_stop = params.include_stop
        self._characters = 0
        self._pending = Delta(index)
        self._prompt = PromptText(tokenizer, prompt)

    def push_prompt(self, logprobs: Sequence[TokenLogprobs]) -> None:
        """Take what the engine reports of the next tokens of the prompt."""
        self._pending.prompt_logprobs += map(self._prompt.report, logprobs)

    def push(self, output: RequestOutput) -> Delta | None:
        """Take what the engine settled.

        Returns:
            What is new and sure. Nothing while text is held back; ids then come with the text.
        """
        pending = self._pending
        pending.embedding = output.embedding
        for place, token in enumerate(output.token_ids):
            hidden = token == output.stop_id and not self._include_stop
            logprobs = output.logprobs[place] if output.logprobs else None
            self._take(token, logprobs, hidden=hidden)
            if self.finished:
                return self._hand_over()
        if output.finish in ("stop", "length"):
            self._end(output)
        if not (pending.text or self.finished):
            return None
        return self._hand_over()

    def _take(self, token: int, logprobs: TokenLogprobs | None, *, hidden: bool) -> None:
        pending = self._pending
        self.tokens += 1
        pending.token_ids.append(token)
        if logprobs is not None:
            pending.logprobs.append(self._report(token, logprobs))
        if hidden:
            return
        text = self._detokenizer.push((token,))
        self._characters += len(text)
        self._emit(text)

    def _emit(self, text: str) -> None:
        sure, hit = self._stops.push(text)
        self._pending.text += sure
        if hit is not None:
            self.finished = True
            self._pending.finish, self._pending.stop_reason = "stop", hit

    def _end(self, output: RequestOutput) -> None:
        """Let go what was held back; its last characters may still be a stop string."""
        self._emit(self._detokenizer.flush())
        if self.finished:
            return
        self.finished = True
        pending = self._pending
        pending.text += self._stops.flush()
        pending.finish = "length" if output.finish == "length" else "stop"
        pending.stop_reason = output.stop_id

    def _hand_over(self) -> Delta:
        delta, self._pending = self._pending, Delta(self.index)
        return delta

    def _report(self, token: int, logprobs: TokenLogprobs) -> TokenReport:
        return TokenReport.of(self._tokenizer, token, logprobs, self._characters)
