"""The steps of ``python -m benchmarks gpu``, in their order: programs with a deadline, by blocks.

A *rehearsal* runs the same steps on a machine without a GPU: on tensors of the CPU, with the driver of the tests, and
small sizes. It shows that the programs work; its times say nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass, field
from typing import Dict, List, Optional

__all__ = ["BLOCKS", "GpuStep", "all_steps"]

BLOCKS = {
    "smoke": "sums of 8 bytes to 1 GiB; the host waits for them, or a stream",
    "probe": "what the driver can do, and what it costs",
    "speed": "all-reduces against gloo, NCCL over sockets, and the bounds of the machine",
    "training": "steps with DDL, with DDP over DDL and over gloo, and without communication",
    "right": "whether results are right, on 2 to 4 ranks",
    "host": "all-reduces of arrays of the host, on more ranks and with more threads",
    "memory": "some of the tests under compute-sanitizer, where it is installed",
}
LONGEST = 120  #: seconds of a step
#: Of tests: so long may each take, and the ranks of a job in it.
TEST_SECONDS, RANKS_SECONDS = 60, 45


@dataclass(frozen=True)
class GpuStep:
    """A program. ``{json}`` in its line is a file that it may write what it finds to; ``{record}``: all until now.

    expected, limit: seconds. ``skipped``: why it cannot run here; else empty. ``tests``: its output is pytest's.
    ``together``: steps that follow one another and have the same word here run at the same time.
    """

    block: str
    name: str
    line: List[str]
    expected: float
    limit: float
    environ: Dict[str, str] = field(default_factory=dict)
    skipped: str = ""
    tests: bool = False
    together: str = ""

    @property
    def full_name(self) -> str:
        """The name with its block."""
        return f"{self.block}.{self.name}"


def _without(*modules: str) -> str:
    """Return why a step that needs these modules cannot run; empty: it can."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return f"there is no {' and no '.join(missing)} here" if missing else ""


def _program(module: str, *arguments: str) -> List[str]:
    return [sys.executable, "-m", module, *arguments]


def _job(ranks: int, module: str, *arguments: str) -> List[str]:
    return _program("ddl.launch", "-np", str(ranks), "--no-prefix", *_program(module, *arguments))


def _sums(ranks: int, rehearsal: bool, against: str, sizes: str, seconds: float) -> List[str]:
    """Return the line of a job that sums; ``seconds``: for each size, about."""
    options = ["--device", "cpu" if rehearsal else "cuda", "--sizes", "8,64K,1M" if rehearsal else sizes]
    options += ["--against", against, "--seconds", "0.1" if rehearsal else f"{seconds:g}"]
    return _job(ranks, "benchmarks.gpu.allreduce", *options, "--rates", "{record}", "--json", "{json}")


def _smoke(rehearsal: bool) -> List[GpuStep]:
    line = _sums(2, rehearsal, "c10d", "8,64K,1M,16M,256M,1G", 0.1)
    return [
        GpuStep("smoke", wait, line, 20, LONGEST, {"DDL_GPU_WAIT": wait}, skipped=_without("torch"))
        for wait in ("host", "stream")
    ]


def _probe() -> List[GpuStep]:
    def question(name: str, asked: str, **environ: str) -> GpuStep:
        line = _program("benchmarks.gpu.probe", asked, "--json", "{json}")
        return GpuStep("probe", name, line, 3, 60, environ)

    steps = [question(name, name) for name in ("attributes", "copies", "memory", "depth", "costs", "visible")]
    steps += [question(name, name) for name in ("register", "shared", "remove")]
    for queues in ("1", "2", "8"):
        steps.append(question(f"wait-{queues}", "wait", CUDA_DEVICE_MAX_CONNECTIONS=queues))
        steps.append(question(f"free-{queues}", "free", CUDA_DEVICE_MAX_CONNECTIONS=queues))
    return steps


def _pytest(*arguments: str) -> List[str]:
    # Its libraries are of other versions than ours: what they warn of is no failure there.
    limits = ["--timeout", str(TEST_SECONDS), "-o", f"faulthandler_timeout={TEST_SECONDS - 5}"]
    options = ["-v", "-W", "default", "-p", "no:cacheprovider", "--color=no", "--tb=short", *limits]
    return _program("pytest", *options, *arguments)


_OF_TESTS = {"RANKS_SECONDS": str(RANKS_SECONDS)}


def _right(library: str) -> List[GpuStep]:
    needed = _without("pytest", "pytest_timeout")
    few = ["--fast", "-k", "other_calls_have or both_arrays or lost_rank or without_a_driver"] if library else []
    driver = ["--driver", "real", *(["--cuda-library", library] if library else [])]
    files = {
        "arrays": ["tests/device/test_arrays.py", "tests/device/test_works.py"],
        # Streams that wait for words may hang.
        "arrays-stream": ["tests/device/test_arrays.py", "tests/device/test_works.py"],
        "faults": ["tests/device/test_faults.py"],
        "reproducer": ["tests/gpu/test_reproducer.py"],
        "verbs": ["tests/gpu/test_verbs.py"],
        "training": ["tests/gpu/test_training.py"],
        "frameworks": ["tests/gpu/test_frameworks.py"],
    }
    steps = []
    for name, paths in files.items():
        of_device = "tests/device" in paths[0]
        more = few if of_device else []
        if name.startswith("arrays"):
            waits = "(-stream] or [stream])" if name == "arrays-stream" else "not (-stream] or [stream])"
            more = [*few[:-1], f"({few[-1]}) and {waits}"] if few else ["-k", waits]
        reason = needed or ("" if of_device else _without("torch"))
        line = _pytest(*driver, *more, *paths)
        step = GpuStep("right", name, line, 100, LONGEST, _OF_TESTS, reason, tests=True, together="right")
        steps.append(step)
    return steps


def _sanitizer() -> Optional[str]:
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")


def _memory(rehearsal: bool) -> List[GpuStep]:
    program = _sanitizer()
    reason = "" if program else "compute-sanitizer is not installed"
    reason = "there is no GPU in a rehearsal" if rehearsal else reason or _without("torch", "pytest", "pytest_timeout")
    start = [program or "compute-sanitizer", "--target-processes", "all", "--error-exitcode", "9"]
    arrays = _pytest("--driver", "real", "-k", "other_calls and shared-host", "tests/device/test_arrays.py")
    verbs = _pytest("--driver", "real", "-k", "sums_of_all_types", "tests/gpu/test_verbs.py")
    plain = {**_OF_TESTS, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    ordered = {**_OF_TESTS, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    races = ["--track-stream-ordered-races", "all"]
    leaks = [*start, "--leak-check", "full", *arrays]
    return [
        GpuStep("memory", "arrays", leaks, 90, LONGEST, _OF_TESTS, reason, tests=True),
        GpuStep("memory", "verbs", [*start, *verbs], 90, LONGEST, plain, reason, tests=True),
        GpuStep("memory", "lifetimes", [*start, *races, *verbs], 90, LONGEST, ordered, reason, tests=True),
    ]


def _speed(rehearsal: bool) -> List[GpuStep]:
    def step(name: str, ranks: int, against: str, sizes: str, **environ: str) -> GpuStep:
        line = _sums(ranks, rehearsal, against, sizes, 1.5)
        expected = 10 if rehearsal else 25
        return GpuStep("speed", name, line, expected, LONGEST, environ, skipped=_without("torch"))

    few, many = "8,64K,1M,16M,64M,256M", "8,4K,64K,256K,1M,4M,16M,64M,128M,256M,1G"
    return [
        step("ranks-1", 1, "c10d,host", few),  # two processes on one GPU take turns: what that costs is the rest
        step("ranks-1-stream", 1, "c10d,host", few, DDL_GPU_WAIT="stream"),
        step("ranks-2", 2, "c10d,gloo,host", many),
        step("ranks-2-stream", 2, "c10d,host", few, DDL_GPU_WAIT="stream"),
        step("ranks-2-alone", 2, "host", few, DDL_CORES="1"),  # without helpers
        step("ranks-8", 8, "c10d,gloo,host", "8,64K,1M,16M,64M"),
        step("ranks-8-stream", 8, "c10d,host", "8,64K,1M,16M,64M", DDL_GPU_WAIT="stream"),
    ]


def _late_speed(rehearsal: bool) -> List[GpuStep]:
    if rehearsal:
        return []
    line = _sums(2, rehearsal, "nccl,host", "8,64K,1M,16M,64M,256M", 1.5)
    return [GpuStep("speed", "nccl-2", line, 40, LONGEST, skipped=_without("torch"))]


def _training(model: str, rehearsal: bool) -> GpuStep:
    contestants = "alone+malloc,ddl,ddp-over-ddl,ddp-over-ddl+stream,ddp+malloc"
    options = ["--models", model, "--contestants", contestants, "--rounds", "1", "--most-rounds", "1"]
    if rehearsal:
        options += ["--steps", "2"]
    line = _program("benchmarks", "training", *options, "--device", "cpu" if rehearsal else "cuda")
    expected = 40 if rehearsal else 90
    return GpuStep("training", model, [*line, "--json", "{json}"], expected, LONGEST, skipped=_without("torch"))


def _host(rehearsal: bool) -> List[GpuStep]:
    """Of what a GPU machine has besides: cores."""
    cores = len(os.sched_getaffinity(0))

    def step(name: str, ranks: int, contestants: str, **environ: str) -> GpuStep:
        sizes = "8,1M" if rehearsal else "8,1K,4K,64K,1M,32M"
        options = ["--ranks", str(ranks), "--sizes", sizes, "--contestants", contestants, "--rounds", "1"]
        line = _program("benchmarks", "allreduce", *options, "--seconds", "0.2", "--json", "{json}")
        reason = f"there are {cores} cores" if ranks > cores else ""
        return GpuStep("host", name, line, 10 if rehearsal else 20, LONGEST, environ, skipped=reason)

    steps: List[GpuStep] = []
    for ranks in (2, 4, 8, 16):
        steps.append(step(f"ranks-{ranks}", ranks, "ddl,ddl-private,ddl-prepared"))
        steps.append(step(f"ranks-{ranks}-alone", ranks, "ddl,ddl-private", DDL_CORES="1"))
    return steps


def all_steps(library: str = "") -> List[GpuStep]:
    """Return the steps in their order: what decides most comes first.

    ``library``: the driver of a rehearsal; empty: it is none.
    """
    rehearsal = bool(library)
    first, second = ("digits", "transformer") if rehearsal else ("resnet-224", "transformer-768")
    steps = [*_smoke(rehearsal), *_probe(), *_speed(rehearsal), _training(first, rehearsal), *_right(library)]
    steps += [*_host(rehearsal), _training(second, rehearsal), *_late_speed(rehearsal), *_memory(rehearsal)]
    return steps
