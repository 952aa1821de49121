"""Clocks, power and temperature of the card, as its driver's own tool tells them."""

from __future__ import annotations

import shutil
import subprocess

from camshaft.errors import DeviceError

QUERIES = {
    "sm_clock": ("clocks.sm", "MHz"),
    "memory_clock": ("clocks.mem", "MHz"),
    "power": ("power.draw", "W"),
    "temperature": ("temperature.gpu", "C"),
}
"""Metric, the tool's name for it, its unit."""

_TOOL = "nvidia-smi"


def card_state(uuid: str) -> dict[str, float]:
    """Return the card's state by metric.

    Args:
        uuid: Of the card, without the leading `GPU-`.

    Raises:
        DeviceError: The tool is missing, or does not know the card.
    """
    if shutil.which(_TOOL) is None:
        raise DeviceError(f"{_TOOL} is not on the path; --no-clocks measures without it")
    fields = ",".join(query for query, _ in QUERIES.values())
    done = subprocess.run(
        [_TOOL, f"--query-gpu={fields}", "--format=csv,noheader,nounits", f"--id=GPU-{uuid}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise DeviceError(f"{_TOOL}: {said}; --no-clocks measures without it")
    return read_state(done.stdout)


def read_state(line: str) -> dict[str, float]:
    """Read the tool's answer. What a card does not tell ("[N/A]") is left out."""
    found = {}
    for metric, value in zip(QUERIES, line.strip().split(","), strict=True):
        if not value.strip().startswith("["):
            found[metric] = float(value)
    return found
