"""``ddl doctor`` and ``ddl topo`` where there are GPUs: those of the fake driver, whose answers are known."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest
from device.fake_checks import OLDER
from device.fake_cuda import Fake, library

from ddl import _core
from ddl.errors import InvalidArgument
from ddl.tools.doctor import gpus
from ddl.tools.doctor.gpu_facts import GpuFacts, HostGpus, PciLink
from ddl.tools.doctor.gpu_probe import pci_link
from ddl.tools.doctor.gpus import GpuInquiry

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
DOWN, UP = 10**9, 5 * 10**8  # bytes per second of the fake's copies, at most
PIECE = 1 << 20  #: bytes of a copy
OPTIONS = {"down_bytes_per_s": DOWN, "up_bytes_per_s": UP, "delay_us": 0}


#: A sitecustomize by which what the tests start is patient with GPUs that do move: they may share two cores with much
#: else. One that stands still is given up after the usual time.
PATIENT = """
import os
from ddl import _core
from ddl.tools.doctor import gpus

measure, begin = _core.measure_gpu, gpus.GpuInquiry.__init__
if "FAKE_CUDA_PAUSED" not in os.environ:
    _core.measure_gpu = lambda number, piece, sample, patience: measure(number, piece, sample, 100.0)
gpus.LIMIT = 100.0
gpus.GpuInquiry.__init__ = lambda self, patience=0.0, sys_directory="/sys": begin(self, 100.0, sys_directory)
"""


@pytest.fixture(scope="module")
def patient_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(PATIENT)
    return folder


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch, patient_site: Path) -> None:
    monkeypatch.setattr(gpus, "LIMIT", 100.0)
    monkeypatch.setenv("PYTHONPATH", f"{patient_site}:{ROOT}")


def inquire(monkeypatch: pytest.MonkeyPatch, sys_directory: str = "/nowhere", **environ: str) -> HostGpus:
    for name in ("CUDA_VISIBLE_DEVICES", "DDL_CUDA_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    with GpuInquiry(100.0, sys_directory=sys_directory) as inquiry:
        return inquiry.result()


def tool(*words: str, status: int = 0, **environ: str) -> str:
    line = [sys.executable, "-m", "ddl.tools", *words]
    ended = subprocess.run(
        line, cwd=ROOT, capture_output=True, text=True, timeout=240, env={**os.environ, "DDL_SHM": "1", **environ}
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stdout


def verdicts_of(*words: str, status: int = 0, **environ: str) -> List[Dict[str, Any]]:
    judged = json.loads(tool("doctor", "--json", "-", *words, status=status, **environ))["verdicts"]
    checks = ("gpus", "gpu links", "registering", "words")
    return [verdict for verdict in judged if verdict["check"] in checks]


def put_link(sys_directory: Path, address: str, lanes: int, speed: str) -> None:
    folder = sys_directory / "bus" / "pci" / "devices" / address
    folder.mkdir(parents=True)
    for name, text in (
        ("current_link_width", str(lanes)),
        ("max_link_width", "16"),
        ("current_link_speed", speed),
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("numa_node", "1"),
    ):
        (folder / name).write_text(text + "\n")


def measured_in_the_core() -> List[Any]:
    """Run in a process of its own: what the core measures, and whether the fake's ledger objects."""
    _core.configure_gpu_driver(os.environ["DDL_CUDA_LIBRARY"], False)
    begin = time.monotonic()
    reached = _core.measure_gpu(0, PIECE, 0.05, 100.0)
    took = time.monotonic() - begin
    fake = Fake(reset=False)
    left = [fake.live(what) for what in ("streams", "events", "allocations")]
    copies = [fake.calls(f"cuMemcpy{which}Async_v2") for which in ("DtoH", "HtoD")]
    return [reached.down, reached.up, reached.both_down, reached.both_up, took, left, copies, fake.violations]


def test_the_core_measures_what_copies_reach_and_leaves_nothing() -> None:
    program = "import json; from device import test_survey; print(json.dumps(test_survey.measured_in_the_core()))"
    path = f"{os.environ['PYTHONPATH']}:{ROOT / 'tests'}"
    environ = {**os.environ, **Fake.environment(options=OPTIONS), "PYTHONPATH": path}
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, env=environ, check=True
    ).stdout
    down, up, both_down, both_up, took, left, copies, violations = json.loads(said)
    for rates, most, count in ((down, both_down), DOWN, copies[0]), ((up, both_up), UP, copies[1]):
        # Twice four pieces come first, whose time is not measured; at least the four that are under way at once follow.
        assert count >= 2 * (4 + 4)
        assert 4 * PIECE / took < min(rates) and max(rates) <= 1.01 * most
        assert (count - 2 * 4) * PIECE / took < max(rates)  # in all the time, which is longer
    assert left == [0, 0, 0] and violations == []


def test_each_gpu_is_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_link(tmp_path, "0000:00:0d.0", 8, "16.0 GT/s PCIe")
    put_link(tmp_path, "0000:00:0e.0", 16, "32.0 GT/s PCIe")
    environ = Fake.environment(devices=2, options={**OPTIONS, "version": 12080, "attribute_40": 2})
    gpus = inquire(monkeypatch, str(tmp_path), **environ)
    assert (gpus.known, gpus.missing, gpus.problem, gpus.cuda) == (True, False, "", "12.8")
    assert gpus.library == environ["DDL_CUDA_LIBRARY"] and gpus.visible is None
    assert [gpu.number for gpu in gpus.devices] == [0, 1] and gpus.usable == gpus.devices
    first, second = gpus.devices
    assert (first.name, first.address, first.memory) == ("Fake H200", "0000:00:0d.0", 141 << 30)
    assert (first.capability, first.copy_engines, first.compute_mode, first.numa_node) == ("9.0", 2, 0, 1)
    assert (str(first.link), str(second.link)) == ("PCIe 4 x8 of PCIe 5 x16", "PCIe 5 x16")
    assert second.link.bytes_per_s == pytest.approx(63.0e9, rel=1e-3)
    assert first.refusal == first.words_problem == "" and first.registering > 0
    assert 0 < first.down <= 1.01 * DOWN and 0 < first.both_up <= 1.01 * UP


def test_links_that_say_nothing(tmp_path: Path) -> None:
    assert pci_link(tmp_path) == PciLink() and str(PciLink()) == "" and PciLink().bytes_per_s == 0
    put_link(tmp_path, "x", 63, "Unknown")
    link = pci_link(tmp_path / "bus" / "pci" / "devices" / "x")
    assert link == PciLink(0, 16, 0.0, 32.0) and not link.narrow and not link.slow


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"DDL_CUDA_LIBRARY": "libcuda-that-is-nowhere.so"}, "cannot be loaded"),
        ({"DDL_CUDA_LIBRARY": "libc.so.6"}, "has no cuInit"),
        (Fake.environment(refuse={"cuInit": 34}), "stub"),
        (Fake.environment(refuse={"cuInit": 100}), "sees no GPU"),
        (Fake.environment(devices=0), "sees no GPU"),
        (Fake.environment(refuse={"cuInit": 999}), "CUDA_ERROR_UNKNOWN (999)"),
    ],
    ids=["no library", "another library", "stub", "no device", "none visible", "unknown"],
)
def test_a_driver_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, environ: Dict[str, str], words: str) -> None:
    gpus = inquire(monkeypatch, **environ)
    assert words in gpus.problem and not gpus.devices and gpus.known
    assert gpus.missing == (environ["DDL_CUDA_LIBRARY"] == "libcuda-that-is-nowhere.so")


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU here")
def test_where_there_is_no_driver_it_is_one_line_and_no_warning() -> None:
    (verdict,) = verdicts_of(DDL_CUDA_LIBRARY="", CUDA_VISIBLE_DEVICES="")
    assert (verdict["level"], verdict["text"]) == ("ok", "no driver of GPUs: arrays on the CPU only")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("fake", "problem"),
    [
        ({"fail": (700, 20)}, "GPU 0 has failed: .*CUDA_ERROR_ILLEGAL_ADDRESS"),
        ({"paused": True}, "GPU 0 does not answer: a copy of 2048 KiB has not ended after 1000 ms"),
        ({"refuse": {"cuMemAlloc_v2": 2}}, "GPU 0: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"),
        ({"refuse": {"cuDevicePrimaryCtxRetain": 2}}, "GPU 0: cuDevicePrimaryCtxRetain"),
        ({"refuse": {"cuDeviceGetName": 999}}, "GPU 0 has failed: cuDeviceGetName"),
    ],
    ids=["fails", "stands still", "full", "no context", "no name"],
)
def test_a_gpu_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, fake: Dict[str, Any], problem: str) -> None:
    gpus = inquire(monkeypatch, **Fake.environment(devices=2, **fake))
    assert [gpu.number for gpu in gpus.devices] == [0, 1] and not gpus.usable
    for number, gpu in enumerate(gpus.devices):
        assert re.search(problem.replace("GPU 0", f"GPU {number}"), gpu.problem), gpu.problem


def stand_in(folder: Path, then: str) -> str:
    """Return a program that says what a probe says until it looks at the first of two GPUs, and then does ``then``."""
    script = folder / "probe"
    driver = json.dumps({"kind": "driver", "version": 13000, "count": 2, "problem": "", "missing": False})
    begins = json.dumps({"kind": "begins", "number": 0})
    script.write_text(f"#!/bin/sh\necho '{begins}'\necho '{driver}'\necho '{begins}'\n{then}\n")
    script.chmod(0o755)
    return str(script)


def wait_until_said(inquiry: GpuInquiry, lines: int) -> None:
    """Return when the probe has said so much. What it says is not lost for the result."""
    process, said = inquiry._process, b""
    assert process is not None
    while said.count(b"\n") < lines:
        with pytest.raises(subprocess.TimeoutExpired) as expired:
            process.communicate(timeout=0.1)
        said = expired.value.output or b""


def test_a_driver_that_never_answers_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, "exec sleep 1000"))
    with GpuInquiry(0.5) as inquiry:
        wait_until_said(inquiry, lines=3)
        gpus = inquiry.result()
    assert gpus.devices == (
        GpuFacts(0, problem="GPU 0: the driver has not answered for 0.5 s"),
        GpuFacts(1, problem="GPU 1 was not looked at"),
    )


def test_a_driver_that_kills_the_process_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, "kill -SEGV $$"))
    with GpuInquiry() as inquiry:
        gpus = inquiry.result()
    assert gpus.devices[0].problem == "GPU 0: the driver has ended the process that asked by signal 11"


def test_a_process_that_cannot_be_started_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with GpuInquiry() as inquiry:
        gpus = inquiry.result()
    assert "cannot be started" in gpus.problem and not gpus.missing and not gpus.devices


def test_the_core_refuses_what_makes_no_sense() -> None:
    for arguments in ((-1, 1, 0.1, 1.0), (0, 0, 0.1, 1.0), (0, 1, 0.0, 1.0), (0, 1, 0.1, float("nan"))):
        with pytest.raises(InvalidArgument, match="measure_gpu.*make no sense"):
            _core.measure_gpu(*arguments)


def test_no_driver_is_loaded_before_an_array_on_a_gpu() -> None:
    program = (
        "import ddl; ddl.init(); ddl.allreduce(1.0)\n"
        "import ddl.tools.doctor.local, ddl.tools.topo.command, ddl.tools.simulate.command\n"
        "print([line for line in open('/proc/self/maps') if 'libcuda' in line])"
    )
    environ = {**os.environ, **Fake.environment(), "PYTHONPATH": str(ROOT)}  # not that of `patient`
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, env=environ)
    assert said.stdout.strip() == "[]", said.stdout + said.stderr


def test_memory_that_cannot_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Fake.environment(strict=False, refuse={"cuMemHostRegister_v2": 800}, options=OPTIONS)
    gpus = inquire(monkeypatch, **refusing)
    (gpu,) = gpus.usable
    assert gpu.refusal == "cuMemHostRegister_v2: CUDA_ERROR_NOT_PERMITTED (800)" and gpu.registering == 0
    assert gpu.words_problem == "memory of the host cannot be registered" and 0 < gpu.down <= 1.01 * DOWN


def test_an_older_driver_writes_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {**Fake.environment(), "DDL_CUDA_LIBRARY": str(library(*OLDER))}
    (gpu,) = inquire(monkeypatch, **environ).usable
    assert gpu.words_problem == "the driver is too old for it" and gpu.refusal == ""
    (gpu,) = inquire(monkeypatch, **Fake.environment(refuse={"cuStreamWriteValue32_v2": 801})).usable
    assert gpu.words_problem == "cuStreamWriteValue32_v2: CUDA_ERROR_NOT_SUPPORTED (801)"


@pytest.mark.slow
def test_doctor_prints_a_table_and_its_verdicts() -> None:
    said = tool("doctor", "-np", "2", **Fake.environment(devices=2, options=OPTIONS))
    lines = said.splitlines()
    assert lines[0].split()[:4] == ["host", "GPU", "name", "memory"]
    assert [line.split()[:6] for line in lines[1:3]] == [
        ["localhost", number, "Fake", "H200", "141", "GiB"] for number in "01"
    ]
    assert "2 GPUs (Fake H200), driver for CUDA 13.0, one for each rank" in said
    assert "the driver registers memory of the host" in said


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("fake", "words", "status", "level", "check", "text"),
    [
        ({}, ("-np", "3"), 0, "warning", "gpus", "3 ranks for 1 GPU: ranks on the same GPU share its link"),
        ({"options": {"attribute_20": 2}}, (), 1, "error", "gpus", "closed to all processes"),
        ({"options": {"attribute_20": 3}}, ("-np", "3"), 1, "error", "gpus", "for 1 GPU for one process at a time"),
        ({"fail": (719, 3)}, (), 1, "error", "gpus", "GPU 0 has failed"),
        ({"devices": 0}, (), 0, "warning", "gpus", "sees no GPU"),
    ],
    ids=["shared", "prohibited", "exclusive", "failed", "none"],
)
def test_doctor_judges(fake: Dict[str, Any], words: List[str], status: int, level: str, check: str, text: str) -> None:
    judged = verdicts_of(*words, status=status, CUDA_VISIBLE_DEVICES="", **Fake.environment(**fake))
    (verdict,) = [entry for entry in judged if entry["level"] != "ok"]
    assert (verdict["level"], verdict["check"]) == (level, check) and text in verdict["text"] and verdict["remedy"]
    assert ("CUDA_VISIBLE_DEVICES is ''" in verdict["remedy"]) == (fake.get("devices") == 0)


@pytest.mark.slow
def test_ranks_that_nobody_has_counted_are_not_too_many() -> None:
    assert all(verdict["level"] == "ok" for verdict in verdicts_of(**Fake.environment()))
    (verdict,) = [entry for entry in verdicts_of(DDL_LOCAL_SIZE="3", **Fake.environment()) if entry["level"] != "ok"]
    assert "3 ranks for 1 GPU" in verdict["text"]


@pytest.mark.slow
def test_topo_shows_gpus_and_writes_them(tmp_path: Path) -> None:
    file, drawing = str(tmp_path / "facts.json"), tmp_path / "hosts.svg"
    said = tool("topo", "--json", file, **Fake.environment(devices=2, options=OPTIONS))
    assert "─ GPU 0 (Fake H200): NUMA node 0, " in said and "└─ GPU 1 (Fake H200): " in said
    (host,) = json.loads(Path(file).read_text())["facts"]["hosts"]
    assert [gpu["name"] for gpu in host["local"]["gpus"]["devices"]] == ["Fake H200"] * 2
    assert "GPU 1 (Fake H200): " in tool("topo", "--from", file, "--svg", str(drawing))
    assert "2 GPUs" in drawing.read_text()
