"""Our engine beside llama.cpp and OpenVINO on this machine's processor, in turns.

Each configuration of each engine is a process; one works while the others wait at their pipes. A
first round of every workload warms up and finds out which configurations of a peer are near its
best; those run in the rounds that count. Prompts are random token ids, the same for all, greedy,
EOS ignored, and never seen before. A sample is taken again while other programs have more than 5 %
of the cores.

Run: python -m benchmarks.cpu --peers PYTHON --models FOLDER
     python -m benchmarks.cpu --without openvino --without llama.cpp --quick
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from camshaft.errors import CamshaftError

from .cpu_bars import rows, show
from .peers.configurations import MODULES, OURS, check_python, llama_cpp, openvino, ours
from .peers.quiet import Quiet
from .peers.turns import Turns
from .peers.work import METRICS, START, UNITS
from .results import Figure, command, device, new_run, versions, write

if TYPE_CHECKING:
    from .peers.worker import Configuration

QUICK = [START, "cpu-single", "cpu-batch8", "cpu-prompt512"]
VOCAB = 49152


def chosen(wanted: argparse.Namespace) -> list[Configuration]:
    """Return the configurations to run, ours first.

    Raises:
        PeerError: A peer is not there, and no `--without` says so.
    """
    peers = {"llama.cpp": llama_cpp, "openvino": openvino}
    for name in wanted.without:
        del peers[name]
    if peers and wanted.peers is None:
        raise CamshaftError(
            f"no --peers PYTHON: name the interpreter that has {' and '.join(peers)} "
            "(docs/performance.md says how to install them), or give --without for each"
        )
    found = [ours(recipe, wanted.set, wanted.threads) for recipe in wanted.recipe]
    if peers:
        check_python(wanted.peers, list(peers))
    for make in peers.values():
        found += make(wanted.peers, wanted.models, wanted.threads)
    return found


def figures(run: str, turns: Turns, workload: str) -> list[Figure]:
    """Return what a workload found as figures, with the share of others during each repeat."""
    made, where, words = [], device(), public_command()
    for (of, metric), by_configuration in turns.found.items():
        for configuration, values in by_configuration.items() if of == workload else ():
            told = {"python": platform.python_version(), **turns.versions[configuration]}
            made.append(
                Figure(
                    run_id=run,
                    bench="cpu",
                    model="smollm2-135m",
                    workload=workload,
                    recipe=configuration.recipe,
                    engine=configuration.engine,
                    device=where,
                    metric=metric,
                    unit=UNITS.get(metric, "share"),
                    repeats=[round(value, 4) for value in values],
                    versions=versions() if configuration.engine == OURS else told,
                    command=words,
                )
            )
    return made


def public_command() -> str:
    """Return the command without the paths of this machine."""
    told = command()
    for option in ("--peers", "--models"):
        if option in sys.argv:
            path = sys.argv[sys.argv.index(option) + 1]
            name = "PYTHON" if option == "--peers" else "FOLDER"
            told = told.replace(shlex.join([option, path]), f"{option} {name}")
    return told


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--peers", metavar="PYTHON", help="interpreter of the environment that has the peers")
    add("--models", type=Path, metavar="FOLDER", help="what benchmarks.peers.prepare wrote")
    add("--without", action="append", default=[], choices=list(MODULES), help="a peer to leave out")
    add("--recipe", action="append", help="of ours; several are several configurations")
    add("--set", action="append", default=[], metavar="A.B=C", help="for each of these recipes")
    add("--workloads", nargs="+", choices=[START, *METRICS])
    add("--repeats", type=int, default=5)
    add("--threads", type=int, default=2, help="of every engine")
    add("--longest", type=float, default=200.0, metavar="SECONDS", help="of one batch")
    add("--busy", action="store_true", help="take samples whatever other programs do")
    add("--quick", action="store_true", help="one repeat of four workloads")
    wanted = parser.parse_args(words)
    wanted.recipe = wanted.recipe or ["recipes/quickstart.yaml"]
    wanted.workloads = wanted.workloads or (QUICK if wanted.quick else [START, *METRICS])
    wanted.repeats = 1 if wanted.quick else wanted.repeats
    return wanted


def main() -> int:
    """Measure, record, and tell which bars hold; 1 if one is missed."""
    wanted = parse()
    run = new_run("cpu")
    configurations = chosen(wanted)
    cores = os.cpu_count() or 1
    quiet = Quiet(1.0, 1, 0.0, cores) if wanted.busy else Quiet(cores=cores)
    file = "cpu_quick" if wanted.quick else "cpu"
    with tempfile.TemporaryDirectory() as bytecode:
        turns = Turns(configurations, quiet, bytecode, VOCAB, wanted.longest)
        if START in wanted.workloads:  # while nobody else is there: libraries' memory is shared
            turns.start(wanted.repeats)
            write(figures(run, turns, START), file)
        with turns:
            for workload in [one for one in wanted.workloads if one != START]:
                turns.run(workload, wanted.repeats)
                write(figures(run, turns, workload), file)
    table = rows(turns.by_name(), OURS)
    show(table, list(dict.fromkeys(one.engine for one in configurations)))
    print(f"recorded as {run} in {file}.jsonl")
    return int(any(row.holds is False for row in table))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CamshaftError as error:
        sys.exit(str(error))
