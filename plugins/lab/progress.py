"""How far a command is: lines on standard error, so that what it prints can be piped."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    """Print a line for whoever waits."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
