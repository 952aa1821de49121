"""What importing camshaft may cost."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "transformers", "numpy", "fastapi")


@pytest.mark.parametrize(
    "code",
    [
        "import camshaft",
        "import camshaft; assert camshaft.Registry.discover().offers",
        "from camshaft.cli import main; assert main(['plugins', '--json']) == 0",
        "from camshaft.cli import main; assert main(['schema']) == 0",
        "from camshaft.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
    ],
)
def test_it_loads_nothing_heavy(code: str) -> None:
    check = f"import sys; print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{check}"], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
