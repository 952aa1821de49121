"""`python -m camshaft.native`: compile for this machine, or say why not. `make setup` calls it."""

from __future__ import annotations

import sys

from .library import library, reasons


def main() -> None:
    """Compile and load."""
    against = reasons()
    if against:
        sys.stdout.write(
            f"nothing was compiled: {'; '.join(against)}\n"
            "the engine runs with torch's operations, several times slower on few rows\n"
        )
        return
    sys.stdout.write(f"compiled operations for this processor: {library().path}\n")


if __name__ == "__main__":
    main()
