"""The steps of ``python -m benchmarks gpu``, in their order: programs with a deadline, by blocks.

A *rehearsal* runs the same steps on a machine without a GPU: on tensors of the CPU, with the driver of the tests, and
small sizes. It shows that the programs work; its times say nothing.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass, field
from typing import Dict, List, Optional

__all__ = ["BLOCKS", "GpuStep", "all_steps"]

BLOCKS = {
    "probe": "what the driver can do, and what it costs",
    "right": "whether results are right, on 2 to 4 ranks",
    "memory": "the same under compute-sanitizer, where it is installed",
    "speed": "all-reduces against gloo, NCCL over sockets, and the bounds of the machine",
    "training": "steps with DDL, with DDP over gloo, and without communication",
}


@dataclass(frozen=True)
class GpuStep:
    """A program. ``{json}`` in its line is a file that it may write what it finds to; ``{record}``: all until now.

    expected, limit: seconds. ``skipped``: why it cannot run here; else empty. ``tests``: its output is pytest's.
    """

    block: str
    name: str
    line: List[str]
    expected: float
    limit: float
    environ: Dict[str, str] = field(default_factory=dict)
    skipped: str = ""
    tests: bool = False

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


def _probe() -> List[GpuStep]:
    def question(name: str, asked: str, expected: float = 8, **environ: str) -> GpuStep:
        line = _program("benchmarks.gpu.probe", asked, "--json", "{json}")
        return GpuStep("probe", name, line, expected, 90, environ)

    steps = [question(name, name) for name in ("attributes", "register", "shared", "remove")]
    steps += [question("copies", "copies", 20), question("memory", "memory", 15)]
    steps += [question(name, name) for name in ("costs", "visible")]
    for queues in ("1", "2", "8"):
        steps.append(question(f"wait-{queues}", "wait", CUDA_DEVICE_MAX_CONNECTIONS=queues))
        steps.append(question(f"free-{queues}", "free", CUDA_DEVICE_MAX_CONNECTIONS=queues))
    return steps


def _pytest(*arguments: str) -> List[str]:
    # Its libraries are of other versions than ours: what they warn of is no failure there.
    return _program("pytest", "-v", "-W", "default", "-p", "no:cacheprovider", "--color=no", "--tb=short", *arguments)


def _right(library: str) -> List[GpuStep]:
    needed = _without("pytest", "pytest_timeout")
    few = ["--fast", "-k", "other_calls_have or both_arrays or lost_rank or without_a_driver"] if library else []
    driver = ["--driver", "real", *(["--cuda-library", library] if library else [])]
    files = {
        "arrays": ["tests/device/test_arrays.py"],
        "arrays-stream": ["tests/device/test_arrays.py"],  # streams that wait for words may hang
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
        steps.append(GpuStep("right", name, line, 60, 240, skipped=reason, tests=True))
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
    plain = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    ordered = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    races = ["--track-stream-ordered-races", "all"]
    return [
        GpuStep("memory", "arrays", [*start, "--leak-check", "full", *arrays], 90, 250, skipped=reason, tests=True),
        GpuStep("memory", "verbs", [*start, *verbs], 90, 250, plain, skipped=reason, tests=True),
        GpuStep("memory", "lifetimes", [*start, *races, *verbs], 90, 250, ordered, skipped=reason, tests=True),
    ]


def _speed(rehearsal: bool) -> List[GpuStep]:
    reason = _without("torch")
    device = "cpu" if rehearsal else "cuda"
    seconds = "0.1" if rehearsal else "3"

    def step(name: str, ranks: int, against: str, sizes: str, expected: float = 60) -> GpuStep:
        sizes = "8,64K,1M" if rehearsal else sizes
        options = ["--device", device, "--sizes", sizes, "--against", against, "--seconds", seconds]
        line = _job(ranks, "benchmarks.gpu.allreduce", *options, "--rates", "{record}", "--json", "{json}")
        return GpuStep("speed", name, line, 10 if rehearsal else expected, 240, skipped=reason)

    steps = [
        step("ranks-2", 2, "gloo,host", "8,64K,256K,1M,4M,16M,64M,128M,256M,1G", 90),
        step("ranks-1", 1, "host", "8,64K,1M,16M,64M,256M"),
        step("ranks-4", 4, "gloo,host", "8,64K,1M,16M,64M,256M"),
        step("ranks-8", 8, "gloo,host", "8,64K,1M,16M,64M"),
    ]
    return steps if rehearsal else [*steps, step("nccl-2", 2, "nccl,host", "8,64K,1M,16M,64M,256M")]


def _training(rehearsal: bool) -> List[GpuStep]:
    contestants = "alone,alone+malloc,ddl,ddp,ddp+view"

    def step(model: str) -> GpuStep:
        options = ["--models", model, "--contestants", contestants, "--rounds", "1", "--most-rounds", "1"]
        if rehearsal:
            options += ["--steps", "2"]
        line = _program("benchmarks", "training", *options, "--device", "cpu" if rehearsal else "cuda")
        expected = 30 if rehearsal else 120
        return GpuStep("training", model, [*line, "--json", "{json}"], expected, 280, skipped=_without("torch"))

    return [step(model) for model in (["digits"] if rehearsal else ["resnet-224", "transformer-large"])]


def all_steps(library: str = "") -> List[GpuStep]:
    """Return the steps in their order; ``library``: the driver of a rehearsal, empty: this is none."""
    rehearsal = bool(library)
    return [*_probe(), *_right(library), *_memory(rehearsal), *_speed(rehearsal), *_training(rehearsal)]
