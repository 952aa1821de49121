"""What a server tells its operator: one line an event, for people or as JSON.

No line holds text of a prompt or an answer. Names that clients choose are quoted.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

_log = logging.getLogger("camshaft.server")
_ACCESS = "uvicorn.access"


def tell(event: str, text: str, level: int = logging.INFO, /, **fields: object) -> None:
    """Log an event.

    Args:
        event: Its name; a word.
        text: It in words, for people.
        level: How serious it is.
        fields: It in numbers and names, for programs.
    """
    _log.log(level, "%s", text, extra={"event": event, "fields": fields})


def set_up(form: str, level: str) -> None:
    """Send everything that this process logs to one place, in one form.

    Args:
        form: `json` goes to standard output, where nothing else is written then; `text` to
            standard error.
        level: Least serious lines that are shown.
    """
    handler: logging.StreamHandler[TextIO]
    if form == "json":
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(JsonLines())
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # what libraries say otherwise is nobody's matter
    for name in ("camshaft", _ACCESS):
        logging.getLogger(name).setLevel(level.upper())


class JsonLines(logging.Formatter):
    """A JSON object a line: `time` in UTC, `level`, `event`, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
        }
        access = _access(record)
        if access is not None:
            line |= {"event": "http", **access}
        elif hasattr(record, "event"):
            line |= {"event": record.event, **getattr(record, "fields", {})}
        else:
            line |= {"event": "message", "logger": record.name, "text": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """The seconds since the start and a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.time()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and lines of a traceback."""
        access = _access(record)
        text = (
            record.getMessage() if access is None else "{method} {path}: {status}".format(**access)
        )
        at = record.created - self._began
        line = f"[{at:6.1f} s] {record.levelname.lower()}: {text}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _access(record: logging.LogRecord) -> Mapping[str, object] | None:
    """Return what uvicorn says about an HTTP request that was answered, or None."""
    if record.name != _ACCESS or not isinstance(record.args, tuple) or len(record.args) != 5:
        return None
    client, method, path, _, status = record.args
    # a query is the client's own text, and no endpoint reads any
    return {
        "client": str(client).rpartition(":")[0],
        "method": method,
        "path": str(path).partition("?")[0],
        "status": status,
    }
