"""Clients of an engine, in this process (`LocalClient`) or in another (`RemoteClient`)."""

from __future__ import annotations

from .build import build_engine, load_text_of
from .client import EngineClient, EngineDiedError
from .local import LocalClient
from .remote import Boot, RemoteClient
from .snapshot import PoolState, Snapshot
from .stream import Stream

__all__ = [
    "Boot",
    "EngineClient",
    "EngineDiedError",
    "LocalClient",
    "PoolState",
    "RemoteClient",
    "Snapshot",
    "Stream",
    "build_engine",
    "load_text_of",
]
