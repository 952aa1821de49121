"""The registry: which components there are, who offers them, and why some cannot be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .discovery import Broken, Offer, Source, collect, from_file, inspect_components, installed
from .errors import PluginError, did_you_mean
from .kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from .component import Component

DISABLE_VARIABLE = "CAMSHAFT_DISABLE"


@dataclass(frozen=True, slots=True)
class Registry:
    """All components that plugins offer. Immutable; `with_*` return a larger registry.

    Attributes:
        offers: What each plugin brought, in order of discovery.
        disabled: Plugins that were kept out, as the user named them.
        unmatched: Names in `disabled` that fit no plugin.
    """

    offers: tuple[Offer, ...] = ()
    disabled: tuple[Source, ...] = ()
    unmatched: tuple[str, ...] = ()

    @classmethod
    def discover(cls, extra_files: Iterable[Path] = (), disabled: Iterable[str] = ()) -> Registry:
        """Ask every installed plugin of entry-point group `camshaft`, and the given files.

        Args:
            extra_files: Unpackaged plugins, one module each.
            disabled: `distribution:entry`, or `distribution` for all entries of one.

        Returns:
            A registry. A plugin that fails is in `broken`; discovery itself does not fail.
        """
        names = frozenset(disabled)
        found = list(installed())
        kept = [one for one in found if not _names_of(one[0]) & names]
        blocked = tuple(source for source, _ in found if _names_of(source) & names)
        known = frozenset().union(*(_names_of(source) for source in blocked))
        registry = cls(tuple(collect(kept)), blocked, tuple(sorted(names - known)))
        return registry.with_files(extra_files)

    def with_files(self, paths: Iterable[Path]) -> Registry:
        """Add unpackaged plugins; a path that is already known is not added again."""
        known = {offer.source.distribution for offer in self.offers}
        new = [path for path in dict.fromkeys(paths) if str(path) not in known]
        offers = collect(from_file(path) for path in new)
        return Registry((*self.offers, *offers), self.disabled, self.unmatched)

    def with_components(self, components: Iterable[Component], owner: str = "python") -> Registry:
        """Add components described in Python, for notebooks and tests.

        Raises:
            PluginError: A description is not usable.
        """
        offer = inspect_components(Source(owner), list(components))
        if offer.broken:
            raise PluginError("\n".join(item.reason for item in offer.broken))
        return Registry((*self.offers, offer), self.disabled, self.unmatched)

    def components(self, kind: str | None = None) -> list[Component]:
        """Return what can be used, by kind in the order of `KINDS` and then by name."""
        usable = [pairs[0][1] for pairs in self._by_name().values() if len(pairs) == 1]
        wanted = [item for item in usable if kind in {None, item.kind}]
        order = list(KINDS)
        return sorted(wanted, key=lambda item: (order.index(item.kind), item.name))

    @property
    def broken(self) -> tuple[Broken, ...]:
        """What was offered and cannot be used, components that share a name included."""
        failed = tuple(item for offer in self.offers for item in offer.broken)
        return (*failed, *self._duplicates())

    def get(self, kind: str, name: str) -> Component:
        """Return the component that a recipe names.

        Raises:
            PluginError: Nobody offers it, several do, or its plugin is broken; the message carries
                the distribution and the plugin's own traceback.
        """
        if kind not in KINDS:
            raise PluginError(f"no kind is called '{kind}'; kinds: {', '.join(KINDS)}.")
        broken = [item for item in self.broken if (item.kind, item.name) == (kind, name)]
        if broken:
            raise PluginError("\n".join(item.report for item in broken))
        found = self._by_name().get((kind, name))
        if found:
            return found[0][1]
        raise PluginError(self._unknown(kind, name))

    def warnings(self) -> list[str]:
        """Return one line for each thing that is wrong and that nobody asked for."""
        lines = [str(item) for item in self.broken]
        labels = ", ".join(
            sorted(offer.source.label for offer in self.offers if offer.source.entry)
        )
        return lines + [
            f"{DISABLE_VARIABLE} names '{name}', but plugins are: {labels}."
            for name in self.unmatched
        ]

    def _by_name(self) -> dict[tuple[str, str], list[tuple[Source, Component]]]:
        found: dict[tuple[str, str], list[tuple[Source, Component]]] = {}
        for offer in self.offers:
            for component in offer.components:
                key = (component.kind, component.name)
                found.setdefault(key, []).append((offer.source, component))
        return found

    def _duplicates(self) -> list[Broken]:
        shared = [pairs for pairs in self._by_name().values() if len(pairs) > 1]
        return [
            Broken(
                source,
                " and ".join(f"'{other.label}'" for other, _ in pairs) + " offer it.",
                component.kind,
                component.name,
                component.summary,
                component.api_version,
                cure="Uninstall all but one, or ask an author to rename it.",
            )
            for pairs in shared
            for source, component in pairs
        ]

    def _unknown(self, kind: str, name: str) -> str:
        known = [item.name for item in self.components(kind)]
        listed = f"known: {', '.join(known)}." if known else "nothing of this kind is installed."
        lines = [
            f"no {kind} is called '{name}'{did_you_mean(name, known) or ';'} {listed} "
            "`engine plugins` lists what is installed."
        ]
        # A plugin that failed as a whole may be the one that was meant.
        lines += [item.report for item in self.broken if not item.name]
        if self.disabled:
            labels = ", ".join(source.label for source in self.disabled)
            lines.append(f"{DISABLE_VARIABLE} keeps out: {labels}.")
        return "\n".join(lines)


def disabled_in(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the plugins that `CAMSHAFT_DISABLE` names, separated by commas."""
    words = environment.get(DISABLE_VARIABLE, "").split(",")
    return frozenset(word.strip() for word in words if word.strip())


def _names_of(source: Source) -> frozenset[str]:
    return frozenset({source.label, source.distribution})
