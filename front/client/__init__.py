"""Clients of an engine, in this process (`LocalClient`) or in another (`RemoteClient`)."""

from __future__ import annotations

from .build import build_engine, load_text_of
from .client import EngineClient, EngineDiedError
from .local import LocalClient
from .remote import Boot, RemoteClient
from .restarting import RestartingClient
from .snapshot import PoolState, Snapshot
from .stream import Stream

__all__ = [
    "Boot",
    "EngineClient",
    "EngineDiedError",
    "LocalClient",
    "PoolState",
    "RemoteClient",
    "RestartingClient",
    "Snapshot",
    "Stream",
    "build_engine",
    "load_text_of",
]
