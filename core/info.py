"""What an engine tells its clients about itself."""

from __future__ import annotations

import msgspec


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A running engine, described.

    Attributes:
        version: Of camshaft.
        model: Served name.
        recipe: Path or name of the recipe.
        vocab: Token ids are below it.
        room: Most tokens of prompt and output together.
        eos_ids: Ids that end a request.
        page_tokens: Tokens in a page of the cache.
        pool_tokens: Tokens that the cache holds in all.
        device: The hardware's name of itself.
        components: What runs, by dotted recipe path: never anything but what the recipe says.
        plugins: Distributions that provided them, with versions.
        weight_bytes: Resident bytes of the weights.
        cache_bytes: Bytes of the page pools.
        page_bytes: Of a page of each pool, over all its layers.
        generates: Whether the model continues texts, or only makes vectors of them.
    """

    version: str
    model: str
    recipe: str
    vocab: int
    room: int
    eos_ids: tuple[int, ...]
    page_tokens: int
    pool_tokens: int
    device: str
    components: dict[str, str]
    plugins: dict[str, str]
    weight_bytes: int
    cache_bytes: int
    page_bytes: tuple[int, ...]
    generates: bool = True
