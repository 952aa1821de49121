"""Threads, cores and spins on machines that are pretended by files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from camshaft.plugins.hardware.components import CpuSettings
from camshaft.plugins.hardware.threads import (
    SPINS_OWN,
    SPINS_SHARED,
    ThreadPlan,
    as_ranges,
    look,
    memory_bound,
    numbers_in,
    plan_threads,
    quota,
)

AUTO = CpuSettings()
V2 = {"proc/self/cgroup": "0::/box", "sys/fs/cgroup/box/cpu.max": "150000 100000"}
V1 = {
    "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n0::/",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000",
    "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
}


def pretend(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def topology(cores: int, siblings: int = 1, nodes: int = 1) -> dict[str, str]:
    """Processors numbered as on most servers: all cores first, then their hyper-threads."""
    files = {}
    for core in range(cores):
        group = [core + number * cores for number in range(siblings)]
        for one in group:
            path = f"sys/devices/system/cpu/cpu{one}/topology/thread_siblings_list"
            files[path] = ",".join(map(str, group))
    for node in range(nodes):
        each = cores // nodes
        own = [
            one + number * cores
            for number in range(siblings)
            for one in range(node * each, (node + 1) * each)
        ]
        files[f"sys/devices/system/node/node{node}/cpulist"] = as_ranges(own)
    return files


def planned(
    root: Path, files: Mapping[str, str], processors: int, settings: CpuSettings = AUTO
) -> ThreadPlan:
    return plan_threads(settings, look(pretend(root, files), range(processors)))


@pytest.mark.parametrize("cores", [2, 3, 8, 64, 128])
def test_every_core_gets_a_thread_that_stays_there(tmp_path: Path, cores: int) -> None:
    plan = planned(tmp_path, topology(cores), cores)
    assert (plan.threads, plan.spins) == (cores, SPINS_OWN)
    assert plan.cores == tuple(range(cores))


def test_a_single_core_is_not_pinned_to(tmp_path: Path) -> None:
    assert planned(tmp_path, topology(1), 1) == ThreadPlan(1, (), SPINS_OWN, ("one a core",))


def test_hyper_threads_are_left_for_other_work(tmp_path: Path) -> None:
    plan = planned(tmp_path, topology(4, siblings=2), 8)
    assert plan.cores == (0, 1, 2, 3)
    assert plan.reasons == ("4 hyper-threads left for other work",)


def test_only_processors_of_the_affinity_mask_are_used(tmp_path: Path) -> None:
    root = pretend(tmp_path, topology(4, siblings=2))
    plan = plan_threads(AUTO, look(root, {2, 3, 6}))
    assert plan.cores == (2, 3)


def test_one_numa_node_is_used_and_the_reason_says_so(tmp_path: Path) -> None:
    plan = planned(tmp_path, topology(64, siblings=2, nodes=2), 128)
    assert plan.cores == tuple(range(32))
    assert plan.reasons[1] == "NUMA node 0 only, 32 of 64 cores"


@pytest.mark.parametrize(("files", "limit", "threads"), [(V2, 1.5, 1), (V1, 2.5, 2)])
def test_a_quota_limits_threads_that_may_move_and_spin_less(
    tmp_path: Path, files: Mapping[str, str], limit: float, threads: int
) -> None:
    plan = planned(tmp_path, {**topology(8), **files}, 8)
    assert quota(tmp_path) == limit
    assert (plan.threads, plan.cores, plan.spins) == (threads, (), SPINS_SHARED)
    assert plan.reasons[0] == f"a container's quota is {limit} processors"


def test_a_quota_of_all_processors_changes_nothing(tmp_path: Path) -> None:
    plan = planned(tmp_path, {**topology(2), "sys/fs/cgroup/cpu.max": "200000 100000"}, 2)
    assert plan.cores == (0, 1)


@pytest.mark.parametrize(
    "files",
    [{}, {"sys/fs/cgroup/cpu.max": "max 100000"}, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"}],
)
def test_without_a_quota_there_is_no_limit(tmp_path: Path, files: Mapping[str, str]) -> None:
    assert quota(pretend(tmp_path, files)) is None


def test_what_the_settings_name_is_taken_as_it_is(tmp_path: Path) -> None:
    settings = CpuSettings(threads=6, pin=True, spins=7)
    plan = planned(tmp_path, topology(4), 4, settings)
    assert (plan.threads, plan.cores, plan.spins) == (6, (0, 1, 2, 3, 0, 1), 7)
    assert str(plan).endswith("(hardware.threads says so; hardware.pin is true)")
    loose = plan_threads(CpuSettings(pin=False), look(tmp_path, range(4)))
    assert (loose.threads, loose.cores) == (4, ())


def test_more_threads_than_cores_may_move_and_spin_less(tmp_path: Path) -> None:
    plan = planned(tmp_path, topology(2), 2, CpuSettings(threads=3))
    assert (plan.threads, plan.cores, plan.spins) == (3, (), SPINS_SHARED)


def test_fewer_threads_than_cores_may_move_since_other_engines_may_be_there(tmp_path: Path) -> None:
    plan = planned(tmp_path, topology(8), 8, CpuSettings(threads=4))
    assert (plan.threads, plan.cores, plan.spins) == (4, (), SPINS_OWN)
    assert plan.reasons[1] == "not pinned, since 8 cores may be used"


def test_a_machine_without_these_files_uses_its_processors(tmp_path: Path) -> None:
    assert planned(tmp_path, {}, 3).threads == 3


@pytest.mark.parametrize(
    ("files", "bound"),
    [
        ({}, None),
        ({"sys/fs/cgroup/memory.max": "max"}, None),
        ({"sys/fs/cgroup/memory.max": "1048576"}, 1048576),
        (
            {
                "proc/self/cgroup": "7:memory:/a",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "4096000",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "2048000",
            },
            2048000,
        ),
    ],
)
def test_the_tightest_limit_of_memory_counts(
    tmp_path: Path, files: Mapping[str, str], bound: int | None
) -> None:
    assert memory_bound(pretend(tmp_path, files)) == bound


def test_ranges_are_read_and_written_as_linux_writes_them() -> None:
    assert numbers_in("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert as_ranges([0, 1, 2, 3, 8, 10, 11]) == "0-3,8,10-11"
    assert numbers_in("") == []
