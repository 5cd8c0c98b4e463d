"""``torch.distributed`` on the backend "ddl": for functions that run as ranks (ranks.py), and for whole programs."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
_LAUNCHERS = {
    "ddlrun": ["ddl.launch", "-np", "2"],
    "torchrun": [
        *("torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
    ],
}


def begin(path: str, backend: str = "ddl", **options: Any) -> Tuple[Any, int, int]:
    """Make the default group by a new file at ``path``; return ``torch.distributed``, the rank, and the size."""
    import torch.distributed as dist

    import ddl_torch

    rank, size = int(os.environ["DDL_RANK"]), int(os.environ["DDL_SIZE"])
    assert dist.Backend.backend_list.count("ddl") == 1 and ddl_torch.__all__  # by its import
    dist.init_process_group(backend, store=dist.FileStore(path, size), rank=rank, world_size=size, **options)
    return dist, rank, size


def drawn(kind: str, *shape: int, of: int) -> Any:
    """Return the tensor of one rank: numbers that any order of adding leaves exact."""
    import torch

    generator = torch.Generator().manual_seed(of)
    return torch.randint(0, 7, shape, generator=generator).to(getattr(torch, kind))


def same(results: Any, wanted: Any) -> None:
    """Assert that tensors, or lists of them, are equal, with their types and shapes."""
    import torch

    results, wanted = (list(x) if isinstance(x, (list, tuple)) else [x] for x in (results, wanted))
    assert len(results) == len(wanted)
    for own, other in zip(results, wanted):
        assert own.dtype == other.dtype and own.shape == other.shape, (own, other)
        if own.dtype.itemsize == 1:  # some of these cannot be compared
            own, other = own.view(torch.uint8), other.view(torch.uint8)
        assert torch.equal(own, other), (own, other)


def run(line: List[str], folder: Path, variables: Optional[Dict[str, str]] = None, *, quiet: bool = False) -> str:
    """Run Python with the arguments ``line`` in ``folder`` to its good end; return what it printed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    everything = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(variables or {})}
    line = [sys.executable, *line]
    done = subprocess.run(line, env=everything, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and not (quiet and done.stderr), done.stdout + done.stderr
    return done.stdout


def launch(launcher: str, line: List[str], folder: Path, *, quiet: bool = False) -> str:
    """Run a script with its arguments, ``line``, on two ranks, by "ddlrun" or "torchrun"; return what it printed.

    ``quiet``: assert that it wrote nothing on stderr.
    """
    return run(["-m", *_LAUNCHERS[launcher], *line], folder, quiet=quiet)


def trained_alike(source: str, folder: Path) -> None:
    """Run a program on gloo, and on "ddl" by both launchers; assert that all come to the same bits.

    It gets the name of the backend and a file, in which rank 0 leaves its weights as one tensor of torch.
    """
    import torch

    program = folder / "program.py"
    program.write_text(source)
    weights = []
    for number, (launcher, backend) in enumerate([("torchrun", "gloo"), ("torchrun", "ddl"), ("ddlrun", "ddl")]):
        file = folder / f"weights.{number}"
        launch(launcher, [str(program), backend, str(file)], folder)
        weights.append(torch.load(file))
    assert all(torch.equal(weights[0], other) for other in weights[1:])  # two numbers have one sum


def named_when_killed(source: str, folder: Path) -> None:
    """Run a program on two ranks, of which rank 1 kills itself; assert that rank 0 and ddlrun say so, and end."""
    program = folder / "program.py"
    program.write_text(source)
    line = [sys.executable, "-m", *_LAUNCHERS["ddlrun"], str(program)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert "PeerLost: [rank 0/2" in done.stderr and "lost rank 1" in done.stderr, done.stderr
    assert "ddlrun: rank 1 (pid " in done.stderr and "was killed by signal 9 (SIGKILL)" in done.stderr


def installed(folder: Path) -> str:
    """Let DDL look installed in ``folder``, with the entry points of pyproject.toml; return the path of Python."""
    reader = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    tomllib = pytest.importorskip(reader, reason="Python has tomllib from 3.11 on, and DDL brings tomli before")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    lines = []
    for group, names in groups.items():
        lines += [f"[{group}]", *(f"{name} = {of}" for name, of in names.items())]
    metadata = folder / "open_ddl-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: open-ddl\nVersion: 1\n")
    return os.pathsep.join([str(ROOT), str(folder)])


def require(module: str) -> None:
    """Skip if there is no ``module``, except in CI, where a test that never runs must be noticed."""
    if importlib.util.find_spec(module) is not None:
        return
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"CI is set, and CI must be able to run this: there is no {module}", pytrace=False)
    pytest.skip(f"there is no {module}; 'make test' installs it")
