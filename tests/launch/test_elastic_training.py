"""Elastic jobs of programs that use DDL: the store forms the generations, and ddlrun hears of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import List, Tuple

import pytest
from launch.launcher import ROOT, Launcher, eventually
from launch.test_elastic_cluster import HostList, told

pytestmark = pytest.mark.processes
PROGRAM = str(Path(__file__).with_name("elastic_training.py"))


class Said:
    """What the ranks have printed so far: their output goes to a file, so that it can be read again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lines(self) -> List[str]:
        texts = [path.read_text() for path in sorted(self._folder.glob("rank.*.out"))]
        return [line for text in texts for line in text.splitlines()]

    def wait_for(self, *lines: str) -> None:
        assert eventually(lambda: set(lines) <= set(self.lines())), self.lines()


def train_and_replace(launcher: Launcher, folder: Path, *options: str) -> Tuple[Said, str]:
    """Run a job of three ranks, of which rank 1 is killed and a newcomer is rank 2; return what all have said.

    The newcomer comes when the others have gone on without rank 1.
    """
    (folder / "hold.3").touch()
    said = Said(folder / "logs")
    elastic = ("-np", "3", "--elastic", "--max-restarts", "1", "--output-dir", str(folder / "logs"))
    process = launcher.start(*elastic, *options, PROGRAM, str(folder))
    said.wait_for("0 is rank 0 of 3", "1 is rank 1 of 3", "2 is rank 2 of 3")
    (folder / "kill.1").touch()
    said.wait_for("0 is rank 0 of 2", "2 is rank 1 of 2")
    (folder / "hold.3").unlink()
    said.wait_for("3 is rank 2 of 3")
    (folder / "end").touch()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return said, err


def without_times(lines: List[str]) -> List[str]:
    return [re.sub(r"\b[0-9.]+ (s|ms|µs)(?=[,;]|$)", "T", line) for line in lines]


def test_a_lost_rank_is_replaced_by_a_newcomer(launcher: Launcher, tmp_path: Path) -> None:
    said, err = train_and_replace(launcher, tmp_path)
    assert {"0 ends", "2 ends", "3 ends"} <= set(said.lines())
    came = "ranks that were lost: 1; that left: 0; that came: 1, of which 1 in place of lost ones"
    # What is said of the lost rank's records comes when they are there, before or between these lines.
    of_generations = [line for line in told(err) if line.startswith(("ddlrun: generation ", "ddlrun: ranks that "))]
    assert without_times(of_generations) == [
        "ddlrun: generation 1 has 2 ranks, after a change of T",
        "ddlrun: generation 2 has 3 ranks, after a change of T",
        f"ddlrun: {came}; new generations: 2, whose changes took T, the longest T",
    ]


@pytest.mark.slow
def test_hosts_come_and_go(launcher: Launcher, tmp_path: Path) -> None:
    """Horovod's hosts_added_and_removed: 2, 4 and 2 ranks; the last two are those that came later."""
    said, hosts = Said(tmp_path / "logs"), HostList(tmp_path, "localhost:2")
    options = ("-np", "2", *hosts.options, "--reset-limit", "2", "--output-dir", str(tmp_path / "logs"))
    process = launcher.start(*options, PROGRAM, str(tmp_path), environ={"PYTHONPATH": ROOT})
    said.wait_for("0 is rank 0 of 2", "1 is rank 1 of 2")
    hosts.name("localhost:2", "127.0.0.1:2")
    said.wait_for("0 is rank 0 of 4", "1 is rank 1 of 4")
    hosts.name("127.0.0.1:2")
    either = ({"2 is rank 0 of 2", "3 is rank 1 of 2"}, {"3 is rank 0 of 2", "2 is rank 1 of 2"})  # who was ready first
    assert eventually(lambda: any(lines <= set(said.lines()) for lines in either)), said.lines()
    (tmp_path / "end").touch()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert re.search(r"generation \d has 4 ranks, (.*\n)+ddlrun: generation \d has 2 ranks, ", err)
    assert told(err)[-1].startswith(
        "ddlrun: ranks that were lost: 0; that left: 2; that came: 2, of which 0 in place of lost ones; new generations"
    )


def test_the_reset_limit(launcher: Launcher, tmp_path: Path) -> None:
    said = Said(tmp_path / "logs")
    options = ("-np", "3", "--elastic", "--reset-limit", "1", "--output-dir", str(tmp_path / "logs"))
    process = launcher.start(*options, PROGRAM, str(tmp_path))
    said.wait_for("0 is rank 0 of 3")
    (tmp_path / "kill.1").touch()
    said.wait_for("0 is rank 0 of 2")
    (tmp_path / "kill.2").touch()
    _, err = process.communicate(timeout=240)
    assert process.returncode == 128 + 9
    words = "the ranks have formed anew after 2 changes, and --reset-limit 1 allows no more; the last change: rank 2 "
    assert f"ddlrun: {words}" in err
    assert re.search(r"ddlrun: rank 2 \(pid \d+\) was killed by signal 9 \(SIGKILL\)[,:] .*\bmemory\b.*\n$", err)


def test_ranks_train_on_when_ddlrun_is_killed(launcher: Launcher, tmp_path: Path) -> None:
    said = Said(tmp_path / "logs")
    options = ("-np", "3", "--elastic", "--output-dir", str(tmp_path / "logs"))
    process = launcher.start(*options, PROGRAM, str(tmp_path))
    said.wait_for("0 is rank 0 of 3", "1 is rank 1 of 3", "2 is rank 2 of 3")
    process.kill()
    process.wait(240)
    (tmp_path / "kill.1").touch()
    said.wait_for("0 is rank 0 of 2", "2 is rank 1 of 2")
    (tmp_path / "end").touch()
    said.wait_for("0 ends", "2 ends")
    assert eventually(lambda: not launcher.alive())
    assert not os.path.exists(f"/proc/{process.pid}")


def test_a_program_that_is_not_elastic_is_told_so(launcher: Launcher, tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text(
        "import os, signal\nimport numpy as np, ddl\nddl.init()\nddl.barrier()\n"
        "if ddl.rank() == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\nddl.allreduce(np.ones(4))\n"
    )
    process = launcher.start("-np", "3", "--min-np", "1", str(program))
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "lost rank 1" in err and "does the program use ddl.elastic (docs/elastic.md)?" in err
