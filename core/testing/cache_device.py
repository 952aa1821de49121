"""What pages would hold, had the deltas of a KV manager been carried out on a device.

Each slot of a page holds the *origin* of a token's keys and values: everything that they depend on,
which is the salt, the adapter, namespace and version, and all tokens up to there. A request that
finds another origin in its own table reads somebody else's keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from ..contracts.cache import NULL_PAGE, CacheSpec, Delta, Prefix

if TYPE_CHECKING:
    from collections.abc import Iterable


def isolation(prefix: Prefix) -> tuple[str, int, str, int]:
    """Return what a request has in common with those that it shares pages with."""
    scope = prefix.scope
    return prefix.salt, prefix.adapter, scope.namespace, scope.version


class PageId(NamedTuple):
    """A page of a group."""

    group: int
    page: int


class Slot(NamedTuple):
    """One token's keys and values: where they come from, and who wrote them."""

    origin: object
    writer: object


@dataclass(slots=True, eq=False)
class Running:
    """A request as core and device know it.

    `tokens` are those that the device knows: of the prefix, and those that steps in flight sample.

    Attributes:
        uid: Its name.
        prefix: What the manager and the host know.
        tokens: See above.
        tables: For each group, as the next step would see them.
        is_open: Whether the manager knows it.
        admission: How often it was opened.
        computed: Tokens launched.
        committed: Tokens of the last commit.
        granted: Capacity.
        in_flight: Unsettled steps that hold it.
        drafting: Whether one of them verifies drafts.
        ended: Whether it is gone.
        transfer: Ticket of the transfer that it was told to wait for, or 0.
    """

    uid: int
    prefix: Prefix
    tokens: list[int]
    tables: list[list[int]]
    is_open: bool = False
    admission: int = 0
    computed: int = 0
    committed: int = 0
    granted: int = 0
    in_flight: int = 0
    drafting: bool = False
    ended: bool = False
    transfer: int = 0
    swapped: bool = False

    @property
    def writer(self) -> tuple[int, int]:
        """Names this request between two openings."""
        return self.uid, self.admission

    def origin(self, position: int) -> object:
        """Return what the keys of a token depend on."""
        return *isolation(self.prefix), tuple(self.tokens[: position + 1])

    def close(self) -> None:
        """Return to a state without pages."""
        self.is_open = False
        self.computed = self.committed = self.granted = 0
        self.tables = [[] for _ in self.tables]


@dataclass(slots=True)
class Device:
    """Pages and what they hold, tables of open requests, and pages that steps in flight touch.

    Attributes:
        spec: Of the manager.
        slots: Contents of pages that were written.
        left: What pages held when they were handed out, which a device overwrites only when the
            next step is launched: moves that begin before it still find it.
        touched: Pages of each step that is not known to be complete.
        leased: Pages of each lease.
        distrusted: Writers whose pages must not be reused.
    """

    spec: CacheSpec
    slots: dict[PageId, list[Slot | None]] = field(default_factory=dict)
    left: dict[PageId, list[Slot | None]] = field(default_factory=dict)
    touched: dict[int, set[PageId]] = field(default_factory=dict)
    leased: dict[str, set[PageId]] = field(default_factory=dict)
    distrusted: set[object] = field(default_factory=set)
    _drafts: Any = field(default_factory=count)

    def apply(self, request: Running, delta: Delta, shared: int, others: Iterable[Running]) -> None:
        """Carry out a delta that grants pages.

        Args:
            request: Whose tables it changes.
            delta: Of an `allocate` or a `fork`.
            shared: Leading tokens of the request that are in pages already.
            others: Open requests, for whom nothing may change.
        """
        targets = {PageId(copy.group, copy.target) for copy in delta.copies}
        taken = {
            PageId(group, page)
            for other in others
            if other is not request
            for group, table in enumerate(other.tables)
            for page in table
        }
        size = self.spec.page_tokens
        for write in delta.writes:
            table = request.tables[write.group]
            end = write.first + len(write.pages)
            assert write.first <= len(table), f"{write} leaves a gap in a table of {len(table)}"
            table.extend([NULL_PAGE] * (end - len(table)))
            for place, page in enumerate(write.pages, write.first):
                one = PageId(write.group, page)
                self._check_exists(one)
                table[place] = page
                if one in targets or place * size >= shared:
                    self._hand_out(one, taken)
        for copy in delta.copies:
            source, target = PageId(copy.group, copy.source), PageId(copy.group, copy.target)
            copied = [one and Slot(one.origin, request.writer) for one in self._slots(source)]
            self.slots[target] = copied

    def _check_exists(self, one: PageId) -> None:
        pages = self.spec.groups[one.group].pages
        assert 0 <= one.page <= pages, f"{one} was given out; there are pages 1 to {pages}"

    def _hand_out(self, one: PageId, taken: set[PageId]) -> None:
        """Check that a page is nobody else's; what it held is void now."""
        assert one.page != NULL_PAGE, "a position that needs a page got the null page"
        assert one not in taken, f"{one} was given out while another request holds it"
        for name, pages in self.leased.items():
            assert one not in pages, f"{one} was given out although lease '{name}' holds it"
        for step, pages in self.touched.items():
            assert one not in pages, f"{one} was given out while step {step} may still touch it"
        self.left.setdefault(one, self._slots(one))
        self.slots[one] = [None] * self.spec.page_tokens

    def content(self, page: PageId) -> list[Slot | None]:
        """Return what a page holds, or held until it was handed out since the last moves began."""
        return list(self.left.get(page, self._slots(page)))

    def load(self, page: PageId, slots: list[Slot | None]) -> None:
        """Fill a page from a tier, and check that nobody has it."""
        self._check_exists(page)
        assert page.page != NULL_PAGE, "the null page is loaded"
        for name, pages in self.leased.items():
            assert page not in pages, f"{page} is loaded although lease '{name}' holds it"
        for step, pages in self.touched.items():
            assert page not in pages, f"{page} is loaded while step {step} may still touch it"
        self.slots[page] = list(slots)

    def nullify(self, request: Running, delta: Delta) -> int:
        """Carry out the delta of a `commit`; return how many entries became null."""
        assert not delta.copies, "a commit copies nothing"
        nulls = 0
        for write in delta.writes:
            for place, page in enumerate(write.pages, write.first):
                self._check_exists(PageId(write.group, page))
                request.tables[write.group][place] = page
                nulls += page == NULL_PAGE
        return nulls

    def check_readable(self, request: Running, position: int) -> None:
        """Check that a query at `position` finds the request's own keys in all pages it sees."""
        for group in range(len(self.spec.groups)):
            for seen in range(self._first_seen(group, position), position):
                one = self._page(request, group, seen)
                found = self._slots(one)[seen % self.spec.page_tokens]
                place = f"request {request.uid}, group {group}, token {seen}: page {one.page}"
                assert found is not None, f"{place} was never written"
                assert found.origin == request.origin(seen), (
                    f"{place} holds {found.origin}, not {request.origin(seen)}"
                )

    def check_trusted(self, request: Running, position: int) -> None:
        """Check that nothing that a query at `position` sees is of a distrusted writer."""
        for group in range(len(self.spec.groups)):
            for seen in range(self._first_seen(group, position), position):
                found = self._slots(self._page(request, group, seen))[seen % self.spec.page_tokens]
                assert found is None or found.writer not in self.distrusted, (
                    f"request {request.uid} was served what {found.writer} wrote, and was forgotten"
                )

    def run(self, request: Running, start: int, end: int, step: int, *, failed: bool) -> None:
        """Let `step` compute positions `start` to `end` of a request."""
        self.check_readable(request, start)
        touched = self.touched.setdefault(step, set())
        for group in range(len(self.spec.groups)):
            for seen in range(self._first_seen(group, start), start):
                touched.add(self._page(request, group, seen))
            for position in range(start, end):
                one = self._page(request, group, position)
                touched.add(one)
                wrong = failed or position >= len(request.tokens)
                origin = ("junk", next(self._drafts)) if wrong else request.origin(position)
                slots = self.slots.setdefault(one, [None] * self.spec.page_tokens)
                slots[position % self.spec.page_tokens] = Slot(origin, request.writer)

    def pages_of(self, request: Running) -> set[PageId]:
        """Return the pages in a request's tables."""
        return {
            PageId(group, page)
            for group, table in enumerate(request.tables)
            for page in table
            if page != NULL_PAGE
        }

    def _first_seen(self, group: int, position: int) -> int:
        window = self.spec.groups[group].window
        return max(0, position - window + 1) if window else 0

    def _page(self, request: Running, group: int, position: int) -> PageId:
        table, place = request.tables[group], position // self.spec.page_tokens
        page = table[place] if place < len(table) else NULL_PAGE
        assert page != NULL_PAGE, (
            f"request {request.uid} needs token {position} in group {group}, its table is {table}"
        )
        return PageId(group, page)

    def _slots(self, one: PageId) -> list[Slot | None]:
        return self.slots.get(one, [None] * self.spec.page_tokens)
