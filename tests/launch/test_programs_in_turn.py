"""A rank may run one DDL program after the other, or before it begins itself: each is a job of all ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Callable, List

import pytest
from launch.launcher import Launcher

pytestmark = pytest.mark.processes
Script = Callable[[str], str]

SUM = """
import numpy as np, ddl
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
    ddl.init()
    print(sys.argv[2:], ddl.allreduce(np.ones(3) + ddl.rank(), op="sum").tolist(), flush=True)
    ddl.shutdown()
"""


@pytest.mark.parametrize("hosts", [("-np", "2"), ("-H", "localhost:1,127.0.0.1:1")], ids=["alone", "agents"])
def test_programs_one_after_the_other(launcher: Launcher, script: Script, hosts: List[str]) -> None:
    """The first one joins once, the second one twice."""
    program = f"{sys.executable} {script(SUM)}"
    done = launcher.run(*hosts, "bash", "-c", f"{program} 1 a && {program} 2 b && {program} 1 c")
    assert done.returncode == 0, done.stderr
    sums = "[3.0, 3.0, 3.0]"
    assert sorted(done.stdout.splitlines()) == sorted(
        f"[{rank}] ['{name}'] {sums}" for rank in range(2) for name in "abbc"
    )


def test_a_program_that_runs_another_one_before_it_begins(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(
        "import ddl, numpy as np\nddl.init()\nassert ddl.allreduce(np.ones(1), op='sum') == ddl.size()\n"
    )
    program = script(f"subprocess.run([sys.executable, {str(tmp_path / 'check.py')!r}], check=True)\n" + SUM)
    done = launcher.run("-np", "3", program, "2")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(2 * [f"[{rank}] [] [6.0, 6.0, 6.0]" for rank in range(3)])


def test_two_programs_of_a_rank_at_the_same_time(launcher: Launcher, script: Script, tmp_path: Path) -> None:
    """The second one is told that its number is taken, and the first one goes on."""
    (tmp_path / "second.py").write_text("import ddl\nddl.init()\n")
    text = f"""
import numpy as np, ddl
ddl.init()
done = subprocess.run([sys.executable, {str(tmp_path / "second.py")!r}], capture_output=True, text=True)
print(done.returncode, "rank 0" in done.stderr or "rank 1" in done.stderr, file=sys.stderr, flush=True)
print(ddl.allreduce(np.ones(1), op="sum"), done.stderr.splitlines()[-1], flush=True)
"""
    done = launcher.run("-np", "2", script(text))
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line.split()[:2] for line in lines] == [["[0]", "[2.]"], ["[1]", "[2.]"]], lines
    assert all("ddl." in line and "Error" in line or "Argument" in line for line in lines), lines
    print(*lines, sep="\n")
