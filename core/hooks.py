"""The hook that a plugin implements. Components are described here and called directly later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .component import Component

hookspec = pluggy.HookspecMarker("camshaft")
hookimpl = pluggy.HookimplMarker("camshaft")


class Hooks:
    """Hooks of the entry-point group `camshaft`."""

    @hookspec
    def camshaft_components(self) -> Sequence[Component]:  # type: ignore[empty-body]
        """Describe the components of this plugin.

        Called once when plugins are discovered, in every process. Must not import torch, triton or
        anything else that is slow, touch a device, or read the environment.

        Returns:
            Descriptions. Two plugins that describe the same kind and name are both refused.
        """
