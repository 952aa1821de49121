"""A table of single tokens: each token of a request has a place of its own in one pool.

Source: TokenAttention of LightLLM (ModelTC, 2023, github.com/ModelTC/lightllm): pages of one token,
so that no memory is lost in half-filled pages, and admission by the predicted peak of use.
Departures: tokens are found again by content (see `runs`), exactly to the token; reuse
waits for the steps in flight; and a refused request holds up those behind it, so that small ones
cannot starve it.

Usage equals tokens, for requests; pages move between classes in arrays, so that a token costs no
object. A prompt that is wholly cached still computes its last token, into a place of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.errors import CamshaftError

from .run_table import RunTable

if TYPE_CHECKING:
    from collections.abc import Collection

    from camshaft.contracts.cache import CacheSpec, GroupKind

    from ..components import TokenTableSettings


class TokenTable(RunTable):
    """See the module."""

    def __init__(self, settings: TokenTableSettings, spec: CacheSpec) -> None:
        """Make a manager whose pages are all free.

        Raises:
            CamshaftError: A page is not a token, or the spec has groups that are not managed.
        """
        reasons = self.supports(spec.page_tokens, {group.kind for group in spec.groups})
        if reasons:
            raise CamshaftError(f"cache 'token_table': {' '.join(reasons)}")
        super().__init__(settings, spec)

    @classmethod
    def supports(cls, page_tokens: int, kinds: Collection[GroupKind]) -> list[str]:
        """See `KVManager.supports`. A page is a token."""
        reasons = super().supports(page_tokens, kinds)
        if page_tokens != 1:
            reasons.append(
                f"it gives each token a page of its own, and cache.page_tokens is {page_tokens}. "
                "Set that to 1, or choose cache 'paged'."
            )
        return reasons
