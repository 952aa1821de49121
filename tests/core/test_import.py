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


def test_the_front_of_a_served_engine_loads_no_torch() -> None:
    code = (
        "import sys\n"
        "import camshaft.plugins.serving.serve\n"
        "from camshaft.client import load_text_of\n"
        "from camshaft.testing.toy import toy_recipe\n"
        "load_text_of(toy_recipe())\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_the_python_api_is_found_on_use() -> None:
    code = (
        "import sys, camshaft\n"
        "assert 'camshaft.generate.llm' not in sys.modules\n"
        "from camshaft import LLM, SamplingParams\n"
        "assert LLM.__module__ == 'camshaft.generate.llm' and not hasattr(camshaft, 'nothing')"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
