"""The thread of an engine: take what clients ask, do a turn, publish what it brought."""

from __future__ import annotations

import queue
import traceback
from typing import TYPE_CHECKING, Protocol

from camshaft.errors import CamshaftError, DeviceError, RequestError

from .messages import Abort, Answer, Ask, Command, Dead, Outputs, Rejected, Stop, Submit
from .snapshot import take_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Sized

    from camshaft.contracts.cache import PoolUsage
    from camshaft.loop.clock import Clock
    from camshaft.loop.stats import Stats
    from camshaft.request import FinishReason, Request, RequestOutput

    from .messages import Reply


class Queues(Protocol):
    """Who runs and who waits."""

    @property
    def running(self) -> Sized:
        """Requests with a slot."""

    @property
    def waiting(self) -> Sized:
        """Requests without."""


class SteppedEngine(Protocol):
    """What the loop needs of `camshaft.loop.engine.Engine`, so that tests can script one."""

    @property
    def stats(self) -> Stats:
        """Counters."""

    @property
    def clock(self) -> Clock:
        """Time."""

    @property
    def view(self) -> Queues:
        """The queues."""

    @property
    def wake_at(self) -> float | None:
        """When a step makes sense again, if not now."""

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do now or later."""

    @property
    def unused_tokens(self) -> int:
        """Tokens that running requests have pages for and have not computed."""

    def cache_counters(self) -> dict[str, float]:
        """Return what the cache counts."""

    def submit(self, request: Request) -> None:
        """Take a request, or raise `RequestError`."""

    def abort(self, request_id: str, finish: FinishReason = "abort", returned: int = 0) -> None:
        """End a request; unknown ids are ignored."""

    def step(self) -> list[RequestOutput]:
        """Do one turn."""

    def usage(self) -> Sequence[PoolUsage]:
        """Return the pages of each pool."""

    def reset_cache(self, *, tiers: bool = True) -> int:
        """Drop cached pages of the device, and those in tiers; return how many of the device."""

    def sleep(self) -> int:
        """Give the memory of all pages back; return its bytes. Not while there is work."""

    def wake(self) -> None:
        """Take it again, or raise `DeviceError`."""

    def fail_all(self, message: str) -> list[RequestOutput]:
        """End every request with an error."""

    def close(self) -> None:
        """Release the device."""


class Inbox(Protocol):
    """Where commands arrive."""

    def take(self, wait_s: float | None) -> list[Command]:
        """Return all commands that are there, in order.

        Args:
            wait_s: If there are none, wait this long for the first; None waits without limit.
        """

    def wake(self) -> None:
        """End a wait of `take`, or the next one; safe from any thread."""


class QueueInbox:
    """An inbox that other threads of the process put commands into."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command | None] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        """Add a command; safe from any thread."""
        self._queue.put(command)

    def wake(self) -> None:
        """See `Inbox.wake`."""
        self._queue.put(None)

    def take(self, wait_s: float | None) -> list[Command]:
        """See `Inbox.take`."""
        taken: list[Command | None] = []
        try:
            taken.append(self._queue.get(block=wait_s != 0, timeout=wait_s))
            while True:
                taken.append(self._queue.get_nowait())
        except queue.Empty:
            return [one for one in taken if one is not None]


class EngineLoop:
    """Runs one engine until it is told to stop, or dies. Sleeps while there is nothing to do."""

    def __init__(
        self, engine: SteppedEngine, inbox: Inbox, publish: Callable[[Reply], None]
    ) -> None:
        """Prepare.

        Args:
            engine: Owned by the thread that calls `run`.
            inbox: Commands for it.
            publish: Takes replies, on that thread; must not block for long.
        """
        self._engine = engine
        self._inbox = inbox
        self._publish = publish
        self._stopped = False
        self._asleep = False
        engine.clock.on_post = inbox.wake

    def run(self) -> bool:
        """Serve until `Stop`.

        Returns:
            False if the engine died instead; that was published as `Dead`.
        """
        try:
            while not self._stopped:
                for command in self._inbox.take(self._patience_s()):
                    self._obey(command)
                if self._engine.has_work and not self._stopped:
                    outputs = self._engine.step()
                    if outputs:
                        self._publish(Outputs(outputs))
                else:
                    self._engine.clock.run_due()
            self._end("the engine was stopped")
        except Exception as error:  # noqa: BLE001 - whatever a component raised, all must hear of it
            self._die(error)
            return False
        return True

    def _patience_s(self) -> float | None:
        """Return how long to wait for a command before the next turn."""
        engine = self._engine
        due = [engine.clock.next_event()]
        if engine.has_work:
            if engine.wake_at is None:
                return 0
            due.append(engine.wake_at)
        known = [one for one in due if one is not None]
        return max(0.0, min(known) - engine.clock.now()) if known else None

    def _obey(self, command: Command) -> None:
        match command:
            case Submit(requests):
                for request in requests:
                    self._submit(request)
            case Abort(request_id, finish, returned):
                self._engine.abort(request_id, finish, returned)
            case Ask():
                self._publish(self._answer(command))
            case Stop():
                self._stopped = True

    def _answer(self, asked: Ask) -> Answer:
        match asked.what:
            case "snapshot":
                return Answer(asked.ticket, snapshot=take_snapshot(self._engine))
            case "reset_cache":
                return Answer(asked.ticket, pages=self._engine.reset_cache())
            case "sleep":
                return self._sleep(asked.ticket)
            case "wake":
                return self._wake(asked.ticket)

    def _sleep(self, ticket: int) -> Answer:
        if self._engine.has_work:
            return Answer(ticket, refusal="the engine has work; it can sleep when that has ended")
        freed = 0 if self._asleep else self._engine.sleep()
        self._asleep = True
        return Answer(ticket, freed_bytes=freed)

    def _wake(self, ticket: int) -> Answer:
        try:
            if self._asleep:
                self._engine.wake()
        except DeviceError as error:
            return Answer(ticket, refusal=str(error))
        self._asleep = False
        return Answer(ticket)

    def _submit(self, request: Request) -> None:
        if self._asleep:
            self._publish(Rejected(request.id, "the engine is asleep", code="asleep", status=503))
            return
        try:
            self._engine.submit(request)
        except RequestError as error:
            reply = Rejected(
                request.id, str(error), error.param, error.code, error.status, error.retry_after_s
            )
            self._publish(reply)

    def _end(self, message: str) -> None:
        outputs = self._engine.fail_all(message)
        if outputs:
            self._publish(Outputs(outputs))
        self._engine.close()

    def _die(self, error: Exception) -> None:
        self._publish(dead(error, "the engine failed", fixable=False))
        try:
            self._engine.close()
        except Exception:  # noqa: BLE001 - what matters was published; the device may be gone
            traceback.print_exc()


def dead(error: Exception, what: str, *, fixable: bool = True) -> Dead:
    """Describe the exception that ended an engine.

    Args:
        error: It.
        what: What it ended, for an exception that has no words for users.
        fixable: Whether a `CamshaftError` means a fault that a user can fix, as at the start.
    """
    details = "".join(traceback.format_exception(error)).rstrip()
    if isinstance(error, CamshaftError):
        return Dead(str(error), details, fixable=fixable)
    return Dead(f"{what}: {type(error).__name__}: {error}", details)
