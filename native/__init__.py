"""Operations for processors in C++, compiled for this machine when they are first wanted.

Never a requirement: `reasons()` says why there are none here, and then torch does the same work.
Everything runs on one team of threads, which `open_team` takes. Arguments are torch tensors.
"""

from .library import close_team, expected, found, open_team, reasons, team_size

__all__ = ["close_team", "expected", "found", "open_team", "reasons", "team_size"]
