"""Route: HTTP endpoints that a plugin adds to the server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Route(ABC):
    """Constructed as `Route(settings)`."""

    @abstractmethod
    def mount(self, app: Any, engine: Any) -> None:  # noqa: ANN401 - FastAPI is not loaded by core
        """Add endpoints.

        Args:
            app: The `fastapi.FastAPI` application. When a request comes, its `state.service` is the
                server's own: with the tokenizer, the limits and the metrics of all endpoints.
            engine: The `camshaft.client.EngineClient` that it serves.
        """
