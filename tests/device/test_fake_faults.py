"""The fake driver fails as the real one does: devices, refusals, forks, the end of a process.

No test here is about DDL: they prove the tool with which others prove DDL's order.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any, Callable, Tuple

import pytest
from device.fake_checks import MODES, OLDER, fails, flags
from device.fake_cuda import DeviceArray, DriverError, Fake, library
from device.fake_cuda.scenes import in_thread

pytestmark = pytest.mark.fake_driver("it is what is tested here")

# --- faults ---


@pytest.mark.parametrize("mode", MODES)
def test_a_device_that_fails_does_so_for_good(new: Callable[..., Fake], mode: str) -> None:
    fake = new(mode=mode, queues=1)
    fake.pause()
    address, words = flags(fake, 5)
    stream, event, context = fake.stream(), fake.event(), fake.context()
    for i in range(5):
        fake.write_value(stream, address + 4 * i, 1)
    fake.record(event, stream)
    fake.fail(719, 3)
    assert fake.code("cuEventQuery", event) == 600  # nothing has been executed yet
    fake.pause(False)
    fake.run()
    with pytest.raises(DriverError):
        fake.until(lambda: fake.event_done(event))
    assert words() == [1, 1, 1, 0, 0]
    for call in (fake.event, fake.context, lambda: fake.alloc(8), lambda: fake.finish(stream)):
        fails(719, call)
        in_thread(partial(fails, 719, call))
    assert fake.code("cuCtxPushCurrent_v2", context) == 719
    assert not fake.violations


def test_a_failure_ends_a_call_that_is_blocked(new: Callable[..., Fake]) -> None:
    fake = new(strict=False)
    stream, device, called = fake.stream(), fake.alloc(8), []
    fake.wait_value(stream, fake.host(4).address, 1)
    fake.call_on_host(stream, lambda: called.append(1))
    timer = threading.Timer(0.02, fake.fail, [700])
    timer.start()
    fails(700, fake.copy_up, device, fake.host(8, register=False).address, 8, stream)
    timer.join()
    assert not called


def test_refusals_and_counts(new: Callable[..., Fake]) -> None:
    fake = new()
    fake.refuse("cuMemAlloc_v2", 2, 2)
    fails(2, fake.alloc, 8)
    fails(2, fake.alloc, 8)
    assert fake.live("allocations") == 0
    fake.alloc(8)
    fake.refuse("cuStreamCreateWithPriority", 999)
    for _ in range(3):
        fails(999, fake.stream)
    fake.refuse("cuStreamCreateWithPriority", 0, 0)
    stream, event = fake.stream(), fake.event()
    fake.wait_value(stream, fake.host(4).address, 1)
    fake.record(event, stream)
    fake.refuse("cuEventQuery", 0, 1)
    fake.refuse("cuStreamWaitEvent", 0)
    assert fake.event_done(event)  # as if: it says so, and does nothing
    assert not fake.event_done(event)
    fake.wait(fake.stream(), event)
    assert fake.pending() == 2
    assert fake.calls("cuMemAlloc_v2") == 3 and fake.calls("cuMemFree_v2") == 0
    what = ("allocations", "streams", "events", "registrations", "contexts")
    assert [fake.live(kind) for kind in what] == [1, 2, 1, 1, 1]
    with pytest.raises(ValueError):
        fake.refuse("cuMemAlloc", 2)
    with pytest.raises(ValueError):
        fake.live("graphs")
    fake.option("keep_registrations")
    fake.reset()
    assert [fake.live(kind) for kind in what] == [0, 0, 0, 1, 0]
    assert fake.calls("cuMemAlloc_v2") == 0
    fake.option("keep_registrations", 0)
    fake.reset()
    assert fake.live("registrations") == 0


def in_child(check: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        right = False
        try:
            right = check()
        finally:
            os._exit(0 if right else 1)
    return os.waitpid(pid, 0)[1] == 0


def test_a_forked_child_has_no_driver(new: Callable[..., Fake]) -> None:
    fake = new()
    event, stream = fake.event(), fake.stream()
    entries = [("cuInit", 0), ("cuEventQuery", event), ("cuStreamQuery", stream), ("cuCtxPopCurrent_v2", None)]
    assert in_child(lambda: [fake.code(*call) for call in entries] == [3, 3, 3, 3] and fake.violations == [])

    def of_its_own() -> bool:
        child = Fake(mode="steps")
        host, array = child.host(4), DeviceArray(child, 1).set(5)
        child.copy_down(host.address, array.pointer, 4, 0)
        return child.run() == 2 and host.view("float32")[0] == 5

    assert in_child(of_its_own)
    assert fake.event_done(event)
    fake.reset()
    assert in_child(lambda: fake.code("cuInit", 0) == 0)  # nobody had used it before the fork


def test_at_the_end_of_the_process_the_driver_goes_first(tmp_path: Path) -> None:
    """A plain program that knows no header: its exit handler is older than the library, and runs after it has gone."""
    source = tmp_path / "program.c"
    source.write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        "static int (*count)(int*);\n"
        "static void late(void) { int devices = 0; _exit(count(&devices)); }\n"
        "int main(int argc, char** argv) {\n"
        "  (void)argc; atexit(late);\n"
        "  void* driver = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);\n"
        '  int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");\n'
        '  count = (int (*)(int*))dlsym(driver, "cuDeviceGetCount");\n'
        "  int devices = 0;\n"
        '  printf("%d ", init(0));\n'
        '  printf("%d ", count(&devices));\n'
        '  printf("%d\\n", devices);\n'
        "  fflush(stdout); return 0;\n}\n"
    )
    program = tmp_path / "program"
    subprocess.run(["g++", "-x", "c++", source, "-o", program, "-ldl"], check=True)

    def run(**settings: Any) -> Tuple[int, str]:
        env = {**os.environ, **Fake.environment(**settings)}
        ended = subprocess.run([program, library()], env=env, timeout=240, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout.strip()

    assert run(devices=3) == (4, "0 0 3")
    assert run(refuse={"cuInit": 34})[1] == "34 3 0"


def test_another_process_reports_what_it_violated(tmp_path: Path) -> None:
    script = """
import sys
from device.fake_cuda import DeviceArray, Fake
fake = Fake(reset=False)
assert fake.steps
array = DeviceArray(fake, 4, stream=fake.stream()).set(1)
if sys.argv[1] == "finish":
    fake.finish(array.stream)
fake.run()
array.numpy()
"""
    report = tmp_path / "violations"
    tests = str(Path(__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONPATH": tests, **Fake.environment(report=report, mode="steps")}
    for manner, lines in (("finish", 0), ("lucky", 1)):
        subprocess.run([sys.executable, "-c", script, manner], env=env, check=True, timeout=240)
        assert len(report.read_text().splitlines() if report.exists() else []) == lines
    assert "nothing orders these: " in report.read_text()


def test_an_older_driver_lacks_names() -> None:
    older = ctypes.CDLL(str(library(*OLDER)))
    assert not any(hasattr(older, name) for name in OLDER)
    assert hasattr(older, "cuStreamWaitEvent") and hasattr(older, "ddl_ledger_access")
