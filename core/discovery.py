"""Find plugins and ask what they offer; one that fails is recorded and harms nobody else."""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

from .component import Component, Settings
from .errors import PluginError
from .facts import Capability
from .hooks import Hooks
from .kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import EntryPoint
    from types import ModuleType

GROUP = "camshaft"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a plugin comes from.

    Attributes:
        distribution: Name of the distribution, or the path of an unpackaged file.
        version: Version of the distribution; empty for a file.
        entry: Name of the entry point; empty for a file.
    """

    distribution: str
    version: str = ""
    entry: str = ""

    @property
    def label(self) -> str:
        """`distribution:entry`, the word that `CAMSHAFT_DISABLE` takes."""
        return f"{self.distribution}:{self.entry}" if self.entry else self.distribution

    def __str__(self) -> str:
        named = f"plugin '{self.entry}' of " if self.entry else "plugin "
        return f"{named}{self.distribution} {self.version}".rstrip()

    @property
    def cure(self) -> str:
        """What a user can do when it is broken."""
        if not self.entry:
            return "Repair the file, or take it out of `plugins`."
        return f"Repair it, or `pip uninstall {self.distribution}`."


@dataclass(frozen=True, slots=True)
class Broken:
    """A plugin, or one component of it, that cannot be used.

    Attributes:
        source: Who offers it.
        reason: One sentence.
        kind: Kind of the component; empty when the whole plugin failed.
        name: Name of the component; empty when the whole plugin failed.
        summary: The component's own line, where known.
        api_version: What the component was made for, where known.
        details: The original traceback, or nothing.
        cure: What to do, where it is not what `Source.cure` says.
    """

    source: Source
    reason: str
    kind: str = ""
    name: str = ""
    summary: str = ""
    api_version: int | None = None
    details: str = ""
    cure: str = ""

    def __str__(self) -> str:
        what = f"{self.kind} '{self.name}', offered by {self.source}," if self.name else self.source
        return f"{what} cannot be used: {self.reason} {self.cure or self.source.cure}"

    @property
    def report(self) -> str:
        """The sentence and, below it, the plugin's own traceback."""
        return f"{self}\n{self.details}" if self.details else str(self)


class _UnusableError(Exception):
    """Our own verdict on a plugin, as opposed to an error that the plugin raised."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one plugin brought."""

    source: Source
    components: tuple[Component, ...] = ()
    broken: tuple[Broken, ...] = ()


def installed() -> Iterator[tuple[Source, Callable[[], object]]]:
    """Yield every installed plugin with the call that imports it, sorted for stable output."""
    entries = sorted(
        entry_points(group=GROUP), key=lambda entry: (_source(entry).label, entry.value)
    )
    for entry in entries:
        yield _source(entry), entry.load


def from_file(path: Path) -> tuple[Source, Callable[[], object]]:
    """Return an unpackaged plugin and the call that imports it."""
    return Source(str(path)), lambda: _import_file(path)


def collect(plugins: Iterable[tuple[Source, Callable[[], object]]]) -> list[Offer]:
    """Import plugins one by one and ask each for its components."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    return [_collect_one(manager, source, load) for source, load in plugins]


def inspect_components(source: Source, found: object) -> Offer:
    """Check what a plugin returned, component by component."""
    if isinstance(found, str) or not isinstance(found, Sequence):
        reason = f"camshaft_components returned {found!r:.80}, not a list of Component."
        return Offer(source, broken=(Broken(source, reason),))
    good: list[Component] = []
    broken: list[Broken] = []
    for item in found:
        if not isinstance(item, Component):
            reason = f"camshaft_components listed {item!r:.80}, which is no Component."
            broken.append(Broken(source, reason))
        elif reason := _fault_of(item):
            broken.append(
                Broken(
                    source, reason, str(item.kind), str(item.name), item.summary, item.api_version
                )
            )
        else:
            good.append(replace(item, distribution=source.distribution, version=source.version))
    return Offer(source, tuple(good), tuple(broken))


def _collect_one(
    manager: pluggy.PluginManager, source: Source, load: Callable[[], object]
) -> Offer:
    # A plugin may fail in any way, exit included; only an interrupt by the user is passed on.
    try:
        found = _ask(manager, source, load())
    except _UnusableError as error:
        return Offer(source, broken=(Broken(source, str(error)),))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a plugin does
        reason = f"it raised {type(error).__name__}: {error}".rstrip(": ") + "."
        details = traceback.format_exc().rstrip()
        return Offer(source, broken=(Broken(source, reason, details=details),))
    return inspect_components(source, found)


def _ask(manager: pluggy.PluginManager, source: Source, plugin: object) -> object:
    manager.register(plugin, source.label)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError:
        manager.unregister(plugin)
        hooks = ", ".join(name for name, _ in inspect.getmembers(Hooks, inspect.isfunction))
        raise _UnusableError(f"it implements a hook that does not exist; hooks: {hooks}.") from None
    for implementation in manager.hook.camshaft_components.get_hookimpls():
        if implementation.plugin_name == source.label:
            # called alone, not through the manager: one plugin's failure is not another's
            return implementation.function()
    raise _UnusableError("it has no function camshaft_components marked with @hookimpl.")


def _fault_of(component: Component) -> str:
    kind = KINDS.get(component.kind)
    if kind is None:
        return f"no kind is called {component.kind!r}; kinds: {', '.join(KINDS)}."
    if component.api_version != kind.api_version:
        return (
            f"it is made for version {component.api_version!r} of the {kind.name} contract, "
            f"and this camshaft has version {kind.api_version}."
        )
    name: object = component.name  # a plugin may not have been type-checked
    if not isinstance(name, str) or not name.isidentifier():
        return f"{name!r} is no name that a recipe can use; take letters, digits and _."
    settings: object = component.settings
    if not (isinstance(settings, type) and issubclass(settings, Settings)):
        return "its settings are not a subclass of camshaft.Settings."
    try:
        component.settings_schema()
    except PluginError as error:
        return str(error)
    unknown = sorted(component.needs - set(Capability))
    if unknown:
        return f"it needs {', '.join(unknown)}, but capabilities are {', '.join(Capability)}."
    return ""


def _source(entry: EntryPoint) -> Source:
    distribution = entry.dist
    if distribution is None:
        return Source("unknown", "", entry.name)
    return Source(distribution.name, distribution.version, entry.name)


def _import_file(path: Path) -> ModuleType:
    # The name follows from path and content: a changed file is a new module, an unchanged one is
    # the same module in every registry, and `implementation` can name it as f"{__name__}:Class".
    digest = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:12]
    name = f"camshaft_file_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _UnusableError("it is not a Python file.")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
