"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from camshaft.component import Chosen, Component, Settings, Uses
from camshaft.hooks import hookimpl
from camshaft.sizes import Bytes


class PagedSettings(Settings):
    """Settings of the `paged` cache."""

    unit_tokens: PositiveInt = 256
    """Tokens that are hashed, found and evicted together where nothing sets them apart, rounded up
    to whole pages. Hits and evictions are exact to the page whatever it is."""


class RadixSettings(Settings):
    """Settings of the `radix` cache: none beyond those of the recipe's `cache` section."""


class TokenTableSettings(Settings):
    """Settings of the `token_table` cache, whose `cache.page_tokens` is 1."""

    expected_share: Annotated[float, Field(ge=0, le=1)] | Literal["learned"] = 1.0
    """Share of `max_tokens` that a request is expected to use when others are admitted. With 1
    nobody has to give way for pages; less admits more requests, and some may. `learned` expects
    answers as long as nine in ten of the last 256 were, once 16 have ended."""


class TieredSettings(Settings):
    """Settings of the `tiered` cache."""

    over: Annotated[Chosen, Uses("cache", default="paged")]
    """The KV manager of the device."""
    tiers: Annotated[tuple[Chosen, ...], Uses("kv_store")] = ()
    """The stores below the device, nearest first. None is one `memory` store of `host_memory`."""
    host_memory: Bytes = 4 * 2**30
    """Capacity of the store that stands in where `tiers` is left out."""
    staging: Bytes = 2**30
    """Most host memory through which pages travel, page-locked where that is faster; not more
    is taken than the device has pages. A load is as long as three quarters of it at most."""
    unit_tokens: PositiveInt = 16
    """Tokens that tiers keep together, rounded up to whole pages."""
    load: Literal["faster", "always"] = "faster"
    """Load what a tier has whenever it has it, or only if that is faster than to compute it, as
    measured."""
    patience_s: Annotated[float, Field(gt=0)] = 5.0
    """Seconds after which what a tier has not delivered is computed."""
    settle_s: Annotated[float, Field(ge=0)] = 2.0
    """Seconds for which a page that is not used again stays in a tier before it is also written to
    the next; one that is used goes at once."""
    threads: NonNegativeInt = 2
    """Threads of each tier. With 0 all is done in the loop, to repeat a test exactly."""
    most_pending: PositiveInt = 256
    """Reads, and writes, that each tier has before it; more have to wait."""
    close_s: Annotated[float, Field(ge=0)] = 10.0
    """Seconds at the end for writing down what the last tier has not got."""


class ModularSettings(Settings):
    """Settings of the `modular` cache."""

    over: Annotated[Chosen, Uses("cache", default="paged")]
    """The KV manager that has the pages."""


class LruSettings(Settings):
    """Settings of `lru`: none."""


class LfuSettings(Settings):
    """Settings of `lfu`."""

    aging: bool = True
    """Let the counts of what fell out of use be overtaken. Off, what was popular once stays."""


class FifoSettings(Settings):
    """Settings of `fifo`: none."""


class SlruSettings(Settings):
    """Settings of `slru`."""

    protected: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Size of the protected segment, as a share of the cached pages."""


class GdsfSettings(Settings):
    """Settings of `gdsf`."""

    attention_tokens: PositiveInt = 8192
    """Length of a sequence at which the attention of a token costs as much as all else; about six
    times the hidden size of the model."""


class PrioritySettings(Settings):
    """Settings of `priority`: none."""


class TtlSettings(Settings):
    """Settings of `ttl`."""

    idle_s: Annotated[float, Field(gt=0)] = 300.0
    """Seconds after its last use at which a page expires; from then on it is not served."""


class MemorySettings(Settings):
    """Settings of the `memory` store."""

    capacity: Bytes
    """Most bytes of the host's memory that it takes for pages, such as `16GiB`."""


class FilesSettings(Settings):
    """Settings of the `files` store."""

    directory: Path
    """Where the files lie; made if it is not there. Engines of one model may share it. Pages of
    another model are removed, unless an engine that uses them is running."""
    capacity: Bytes
    """Most bytes of files, such as `200GiB`."""
    sync: Literal["never", "file", "folder"] = "never"
    """What has to be on the device before a page counts as kept: nothing, its file, or also the
    file's name. What a power failure leaves of a page is found out in any case."""


def _other_policies() -> list[Component]:
    policies: list[tuple[str, str, type[Settings], str]] = [
        ("lfu", "Lfu", LfuSettings, "the page that served fewest requests goes first, with aging"),
        ("fifo", "Fifo", FifoSettings, "the page that is cached for longest goes first"),
        ("slru", "Slru", SlruSettings, "pages that served a request are protected from the rest"),
        ("gdsf", "Gdsf", GdsfSettings, "pages that are cheap to compute and seldom used go first"),
        ("priority", "Priority", PrioritySettings, "pages of less urgent requests go first"),
        ("ttl", "Ttl", TtlSettings, "pages expire when they went unused for so many seconds"),
    ]
    return [
        Component(
            kind="eviction",
            name=name,
            implementation=f"camshaft.plugins.cache.policies.{name}:{policy}",
            settings=settings,
            summary=summary,
        )
        for name, policy, settings, summary in policies
    ]


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="cache",
            name="paged",
            implementation="camshaft.plugins.cache.paged:Paged",
            settings=PagedSettings,
            summary="pages with reference counts, reused by a chained hash of their tokens",
        ),
        Component(
            kind="cache",
            name="radix",
            implementation="camshaft.plugins.cache.radix.manager:Radix",
            settings=RadixSettings,
            summary="a tree over runs of pages, of which requests hold paths and leaves go first",
        ),
        Component(
            kind="cache",
            name="token_table",
            implementation="camshaft.plugins.cache.token_table.manager:TokenTable",
            settings=TokenTableSettings,
            summary="a page for each token, requests admitted by the predicted peak of use",
        ),
        Component(
            kind="cache",
            name="tiered",
            implementation="camshaft.plugins.cache.tiered.manager:Tiered",
            settings=TieredSettings,
            summary="any other cache, and tiers of host memory and files below it",
        ),
        Component(
            kind="cache",
            name="modular",
            implementation="camshaft.plugins.cache.modular.manager:Modular",
            settings=ModularSettings,
            summary="any other cache, for prompts out of modules that are computed once",
        ),
        Component(
            kind="eviction",
            name="lru",
            implementation="camshaft.plugins.cache.policies.lru:Lru",
            settings=LruSettings,
            summary="the page that went unused for longest goes first",
        ),
        *_other_policies(),
        Component(
            kind="kv_store",
            name="memory",
            implementation="camshaft.plugins.cache.stores.memory:MemoryStore",
            settings=MemorySettings,
            summary="pages in the host's memory",
        ),
        Component(
            kind="kv_store",
            name="files",
            implementation="camshaft.plugins.cache.stores.files:FileStore",
            settings=FilesSettings,
            summary="pages in files under a directory, which outlive the engine",
        ),
    ]
