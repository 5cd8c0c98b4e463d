"""How many cores a rank has for itself, and how many threads help it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List

import pytest

from ddl.bootstrap.cores import Cores, helpers, quota, shares


def ranks(*cpus: str, machine: str = "a", quota: float = 0.0) -> List[Cores]:
    return [Cores(machine, each, quota) for each in cpus]


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (ranks("0-15"), [16]),
        (ranks("0-15", "0-15"), [8, 8]),
        (ranks("0-7", "8-15"), [8, 8]),  # bound to cores of their own
        (ranks("0", "1"), [1, 1]),
        (ranks("0-3", "0-3", "0-3", "0-3", "0-3", "0-3", "0-3", "0-3"), [0.5] * 8),
        (ranks("0-1", "0-3"), [1, 3]),
        (ranks("0-3,8-11,15", "8-11"), [7, 2]),
        (ranks("0-15", "0-15", quota=4.0), [2, 2]),  # a control group that both are in
        (ranks("0-15") + ranks("0-15", machine="b"), [16, 16]),
    ],
)
def test_shares(here: List[Cores], expected: List[float]) -> None:
    assert list(shares(dict(enumerate(here))).values()) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("count", range(1, 100))
def test_as_many_ranks_as_cores_have_one_each(count: int) -> None:
    alike = shares(dict.fromkeys(range(count), Cores("a", f"0-{count - 1}" if count > 1 else "0", 0.0)))
    assert {int(cores) for cores in alike.values()} == {1}


def test_shares_of_many_ranks_take_no_time() -> None:
    """A sum over all pairs of ranks would take half a minute here."""
    many = shares({rank: Cores(f"machine {rank // 64}", "0-127", 0.0) for rank in range(4096)})
    assert len(many) == 4096 and int(many[77]) == 2


@pytest.mark.parametrize(
    ("cores", "wanted", "threads"),
    [
        (0.0, 0, 0),
        (0.5, 0, 0),
        (1, 0, 0),
        (1.9, 0, 0),
        (2, 0, 1),
        (4, 0, 3),
        (64, 0, 3),
        (64, 8, 7),
        (0.5, 3, 2),
        (16, 1, 0),
    ],
)
def test_helpers(cores: float, wanted: int, threads: int) -> None:
    assert helpers(cores, wanted) == threads


def test_this_process() -> None:
    own = Cores.of_this_process()
    assert int(shares({3: own})[3]) == int(quota() or len(os.sched_getaffinity(0)))
    assert Cores(**vars(own)) == own
    assert own.machine


@pytest.mark.parametrize("cpus", ["", "a", "0-", "-3", "1,,2", "0-1-2", "123456", "1\n", "3-1", "0,0", "0-4,4", "5,3"])
def test_what_is_no_list_of_cores(cpus: str) -> None:
    with pytest.raises(ValueError, match="is no list of cores"):
        Cores("a", cpus, 0.0)


def test_the_quota_is_the_least_of_all_groups_above(tmp_path: Path) -> None:
    def put(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    put("proc/self/cgroup", "4:cpu,cpuacct:/job\n3:memory:/job\n0::/a/b\n")
    assert quota(str(tmp_path)) == 0
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    put("sys/fs/cgroup/a/cpu.max", "150000 100000\n")
    assert quota(str(tmp_path)) == 1.5
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n")
    put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    assert quota(str(tmp_path)) == 0.5
