"""Calls of ``python -m benchmarks gpu``: steps that hang, die or are cut off, and what a later call goes on with."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest
from launch.launcher import eventually

from benchmarks.gpu import record as record_module
from benchmarks.gpu.child import Ended, run_child
from benchmarks.gpu.command import Runner
from benchmarks.gpu.record import Record
from benchmarks.gpu.steps import BLOCKS, LONGEST, GpuStep, all_steps
from benchmarks.gpu.summary import summary

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
OK = "import json, sys; json.dump({'rate': 3}, open(sys.argv[1], 'w')); print('measured')"


def program(name: str, code: str, limit: float = 200.0, **options: Any) -> GpuStep:
    line = [sys.executable, "-c", code, "{json}"]
    return GpuStep("probe", name, line, options.pop("expected", 0.01), limit, **options)


def runner(folder: Path, seconds: float = 250.0) -> Runner:
    record = Record.open("H100 80GB", [folder / "results", folder / "kept"], {"gpu": "none"})
    return Runner(record, folder / "log", dict(os.environ), time.monotonic() + seconds)


def statuses(call: Runner) -> Dict[str, str]:
    return {name.partition(".")[2]: step["status"] for name, step in call.record.steps.items()}


def test_steps_that_end_die_and_cannot_run(tmp_path: Path) -> None:
    steps = [
        program("good", OK),
        program("dies", "import os; print('before', flush=True); os.abort()"),
        program("skipped", "", skipped="there is no GPU"),
        program("last", OK),
    ]
    call = runner(tmp_path)
    assert call.run(steps)
    assert statuses(call) == {"good": "ok", "dies": "failed", "skipped": "skipped", "last": "ok"}
    (file,) = (tmp_path / "results").iterdir()
    assert re.fullmatch(r"gpu-h100-80gb-\d{4}-\d\d-\d\d\.json", file.name)
    kept = json.loads(file.read_text())
    assert kept == json.loads((tmp_path / "kept" / file.name).read_text())
    assert kept["steps"]["probe.good"]["result"] == {"rate": 3}
    assert "before" in kept["steps"]["probe.dies"]["said"] and "said" not in kept["steps"]["probe.good"]
    assert "measured" in (tmp_path / "log").read_text()
    text = summary(kept, [step.full_name for step in steps] + ["speed.later"])
    assert "there is no GPU" in text and re.search(r"speed\.later +not yet", text)
    assert not runner(tmp_path).left(steps)  # the next call has nothing to do


HANGS = """
import os, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_step_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.child.GRACE", 2.0)
    call = runner(tmp_path)
    assert call.run([program("hangs", HANGS, limit=8.0), program("next", OK)])
    assert statuses(call) == {"hangs": "timeout", "next": "ok"}
    log = (tmp_path / "log").read_text()
    process = int(re.findall(r"child (\d+)", log)[0])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert call.record.steps["probe.hangs"]["said"]


MEETS = """
import sys, time
from pathlib import Path
folder, own, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
(folder / own).touch()
print(own, "is there", flush=True)
deadline = time.monotonic() + 100
while not (folder / other).exists():
    assert time.monotonic() < deadline, "the other one did not come"
    time.sleep(0.01)
"""


def test_steps_that_run_together_run_at_the_same_time(tmp_path: Path) -> None:
    def step(own: str, other: str) -> GpuStep:
        line = [sys.executable, "-c", MEETS, str(tmp_path), own, other]
        return GpuStep("right", own, line, 0.01, 200, together="pair")

    alone = [sys.executable, "-c", "raise SystemExit(3)"]
    steps = [
        step("first", "second"),
        step("second", "first"),
        GpuStep("right", "bad", alone, 0.01, 200, together="pair"),
    ]
    skipped = GpuStep("right", "not here", [], 0.01, 200, skipped="there is no torch here", together="pair")
    call = runner(tmp_path)
    assert call.run([*steps, skipped, program("after", OK)])
    expected = {"first": "ok", "second": "ok", "bad": "failed", "not here": "skipped", "after": "ok"}
    assert statuses(call) == expected
    assert call.record.steps["right.bad"]["said"] == ["status 3"]
    log = (tmp_path / "log").read_text()
    assert "first is there" in log and "second is there" in log


STARTS = """
import os, signal, sys
from pathlib import Path
from benchmarks.gpu.child import run_together
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
folder = Path(sys.argv[1])
lines = [[sys.executable, "-c", code, str(folder / name)] for name in ("one", "two")]
run_together(lines, [os.environ] * 2, folder, [600.0, 600.0], folder / "log")
"""


def test_a_call_that_is_ended_ends_all_that_run_together(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", STARTS, str(tmp_path)], env=environ)
    files = [tmp_path / "one", tmp_path / "two"]
    try:
        assert eventually(lambda: all(file.exists() and file.read_text() for file in files))
    finally:
        process.terminate()
        process.wait(200)
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_a_program_that_does_not_end_in_time_is_told_apart_from_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"

    class SlowToBegin(subprocess.Popen):  # type: ignore[type-arg]
        """Its time begins when it has printed something, on whatever machine."""

        def wait(self, timeout: Optional[float] = None) -> int:
            assert eventually(lambda: log.read_text() == "so far\n")
            return super().wait(timeout)

    with monkeypatch.context() as patch:
        patch.setattr("benchmarks.gpu.child.subprocess.Popen", SlowToBegin)
        line = [sys.executable, "-c", "import time; print('so far', flush=True); time.sleep(600)"]
        ended = run_child(line, os.environ, tmp_path, 0.2, log)
    assert (ended.status, ended.output) == ("timeout", "so far\n")
    ended = run_child([sys.executable, "-c", "raise SystemExit(3)"], os.environ, tmp_path, 100, log)
    assert (ended.status, ended.code, ended.output) == ("failed", 3, "")


def test_a_later_call_goes_on(tmp_path: Path) -> None:
    steps = [program("first", OK), program("long", OK, expected=100.0), program("last", OK)]
    early = runner(tmp_path, seconds=50)
    assert not early.run(steps)
    assert statuses(early) == {"first": "ok"}
    assert [step.name for step in early.left(steps)] == ["long", "last"]
    later = runner(tmp_path)
    began = later.record.steps["probe.first"]["began"]
    assert later.run(steps)
    assert statuses(later) == {"first": "ok", "long": "ok", "last": "ok"}
    assert later.record.steps["probe.first"]["began"] == began  # it was not run again


def test_a_call_that_only_has_time_for_less_than_a_step_wants_tries_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: List[float] = []

    def not_in_time(line: object, environ: object, cwd: object, seconds: float, log: object) -> Ended:
        given.append(seconds)
        return Ended("timeout", -1, seconds, "")

    monkeypatch.setattr("benchmarks.gpu.command.run_child", not_in_time)
    call = runner(tmp_path, seconds=100)
    assert not call.run([program("long", "", limit=200.0, expected=150.0)])
    assert statuses(call) == {"long": "cut off"} and 0 < given[0] <= 100
    assert runner(tmp_path).left([program("long", "")])  # it was not its own fault


def test_a_failed_step_is_run_again_when_sources_have_changed(tmp_path: Path) -> None:
    call = runner(tmp_path)
    assert call.run([program("dies", "raise SystemExit(1)"), program("good", OK)])
    later = runner(tmp_path)
    assert not later.left([program("dies", ""), program("good", OK)])
    later.source = "changed"
    assert [step.name for step in later.left([program("dies", ""), program("good", OK)])] == ["dies"]


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a call whose second step never ends."""
    code = f"""
import os, sys, time
from pathlib import Path
from benchmarks.gpu.command import Runner
from benchmarks.gpu.record import Record
from benchmarks.gpu.steps import GpuStep
folder = Path({str(tmp_path)!r})
record = Record.open("H100 80GB", [folder / "results", folder / "kept"], {{"gpu": "none"}})
good = GpuStep("probe", "good", [sys.executable, "-c", {OK!r}, "{{json}}"], 0.01, 200)
line = [sys.executable, "-c", "print('begun', flush=True); import time; time.sleep(600)"]
stays = GpuStep("probe", "stays", line, 0.01, 600)
Runner(record, folder / "log", dict(os.environ), time.monotonic() + 600).run([good, stays])
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", code], env=environ, text=True, start_new_session=True)
    yield process
    os.killpg(
        process.pid, signal.SIGKILL
    )  # also what it has started; nobody has waited for it, so its number is its own
    process.wait()


def test_a_call_that_is_killed_loses_nothing(tmp_path: Path, killed: subprocess.Popen[str]) -> None:
    log = tmp_path / "log"
    assert eventually(lambda: log.exists() and "begun" in log.read_text())
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    steps = [program("good", OK), program("stays", OK)]
    for tries in (1, 2):  # as if each call died in it
        call = runner(tmp_path)
        assert statuses(call) == {"good": "ok", "stays": "cut off"}
        assert call.record.steps["probe.stays"]["tries"] == tries
        assert bool(call.left(steps)) == (tries == 1)  # not a third time
        call.record.begin("probe.stays", "probe", call.source)


def test_the_newest_record_is_gone_on_with(tmp_path: Path) -> None:
    """On a fresh machine there is the copy in the working tree only; on a warm one, build/gpu has more."""
    call = runner(tmp_path)
    assert call.run([program("good", OK)])
    (kept,) = (tmp_path / "kept").iterdir()
    older = json.loads(kept.read_text())
    older["steps"], older["updated"] = {}, older["updated"] - 10
    (tmp_path / "results" / kept.name.replace("20", "19", 1)).write_text(json.dumps(older))
    (tmp_path / "results" / "gpu-h100-80gb-2020-01-01.json").write_text("{ half a fi")
    assert statuses(runner(tmp_path)) == {"good": "ok"}
    kept.unlink()
    assert statuses(runner(tmp_path)) == {"good": "ok"}  # it is in the other folder, too


def test_all_blocks_have_steps_whose_time_fits_a_call() -> None:
    for steps in (all_steps(), all_steps("libcuda.so")):
        assert {step.block for step in steps} == set(BLOCKS)
        names = [step.full_name for step in steps]
        assert len(set(names)) == len(names)
        assert all(step.expected <= step.limit <= LONGEST for step in steps)
        assert list(dict.fromkeys(step.block for step in steps)) == list(BLOCKS)


def test_what_decides_most_fits_a_call_of_400_seconds() -> None:
    """Sums, probes, speed and a training; tests run at the same time."""
    steps, seconds = all_steps(), 0.0
    for _, group in itertools.groupby(steps, key=lambda step: step.together or step.full_name):
        names = list(group)
        if names[0].block in ("right", "host"):
            break
        seconds += max(step.expected for step in names)
    assert seconds <= 400
    right = [step for step in steps if step.block == "right"]
    assert len(right) == 7 and {step.together for step in right} == {"right"}


def test_the_digest_names_the_sources() -> None:
    assert re.fullmatch("[0-9a-f]{12}", record_module.sources_digest())
    assert record_module.sources_digest() == record_module.sources_digest()
