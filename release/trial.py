"""What a user does first, in a system without a compiler; run there by its Python, which has nothing else installed.

``python trial.py /shared``: makes an environment, installs the wheel that lies in the folder, with what it needs, runs
two ranks, and prints what it has seen as a line of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path
from typing import Dict, List

COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "clang++", "tcc")
SMOKE = """
import time
begin = time.monotonic()
import ddl
imported = time.monotonic() - begin
import numpy as np

ddl.init()
rank, size = ddl.rank(), ddl.size()
for dtype in (np.float32, np.float64, np.float16, np.int32, np.int64, np.uint8):
    for count in (1, 7, 1000, 1 << 18):
        values = (np.arange(count) % 60).astype(dtype)
        total = ddl.allreduce(values + dtype(rank), op=ddl.Sum)
        assert total.dtype == dtype and (total == 2 * values + dtype(1)).all(), (dtype, count)
everybody = ddl.allgather(np.full(3, rank))
assert (everybody.reshape(-1) == np.repeat(np.arange(size), 3)).all()
if rank == 0:
    print("SMOKE", imported)
"""
#: A compiler's run-time library may know the processor less well than the kernel does.
KERNELS = """
import platform
from ddl import _core
with open("/proc/cpuinfo") as file:
    flags = set(file.read().split()) if platform.machine() == "x86_64" else set()
wanted = ["baseline"]
wanted += ["avx2"] if {"avx2", "f16c"} <= flags else []
wanted += ["avx512"] if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else []
assert _core.reduce_kernels() == wanted, (_core.reduce_kernels(), wanted)
"""
TORCH = """
import torch
import ddl_torch
ddl_torch.init()
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(20, 3)
optimizer = ddl_torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for step in range(5):
    optimizer.zero_grad()
    model(torch.full((4, 20), float(ddl_torch.rank()))).square().mean().backward()
    optimizer.step()
weights = ddl_torch.allgather(model.weight.detach()[None])
assert torch.equal(weights[0], weights[1]) and torch.isfinite(weights).all()
if ddl_torch.rank() == 0:
    print("TORCH", torch.__version__)
"""
TENSORFLOW = """
import tensorflow as tf
import ddl_tensorflow as ddl
from ddl_tensorflow._build import op_library
assert op_library().parent.name == "prebuilt", op_library()
ddl.init()
total = tf.function(lambda x: ddl.allreduce(x, op=ddl.Sum))(tf.fill([1000], float(ddl.rank() + 1)))
assert (total.numpy() == 3).all()
if ddl.rank() == 0:
    print("TENSORFLOW", tf.__version__)
"""


def main(folder: Path) -> Dict[str, object]:
    """Return what has been seen; raise ``RuntimeError`` with the output of what has failed."""
    there = [name for name in COMPILERS if shutil.which(name)]
    if there:
        raise RuntimeError(f"this system has a compiler: {', '.join(there)}")
    environment = Path("/tmp/environment")
    venv.create(environment)
    python = environment / "bin" / "python"
    # PyPI's pip: that of Debian wants certificates, which only a whole system has. It is compiled before it is timed.
    (pip,) = folder.glob("pip-*.whl")
    (packages,) = environment.glob("lib/python3.*/site-packages")
    zipfile.ZipFile(pip).extractall(packages)
    _run([str(python), "-m", "pip", "--version"])
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    begin = time.monotonic()
    _run([str(python), *install, f"--find-links={folder}", "open-ddl"])
    installed = time.monotonic() - begin
    programs = {"kernels.py": KERNELS, "smoke.py": SMOKE, "with_torch.py": TORCH, "with_tensorflow.py": TENSORFLOW}
    for name, text in programs.items():
        Path("/tmp", name).write_text(text)
    ddlrun = [str(environment / "bin" / "ddlrun"), "-np", "2", "--timeout", "120"]
    _run([str(python), "/tmp/kernels.py"])
    said = _run([*ddlrun, str(python), "/tmp/smoke.py"])
    seen: Dict[str, object] = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "installed_s": installed,
        "imported_s": float(said.split("SMOKE")[1].split()[0]),
    }
    emulator = os.environ.get("EMULATOR")
    if emulator:  # another processor than this one's, for the ranks alone
        _run([*ddlrun, *emulator.split(), str(python), "/tmp/smoke.py"])
        seen["emulator"] = emulator
    for package, wheel in (("torch", "torch-*.whl"), ("tensorflow", "tensorflow_cpu-*.whl")):
        for path in folder.glob(wheel):
            _run([str(python), *install, f"--find-links={folder}", str(path)])
            said = _run([*ddlrun, str(python), f"/tmp/with_{package}.py"])
            seen[package] = said.split(package.upper())[1].split()[0]
    return seen


def _run(words: List[str]) -> str:
    environ = {**os.environ, "PATH": f"/tmp/environment/bin:{os.environ['PATH']}"}
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with status {done.returncode}:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    try:
        print(json.dumps(main(Path(sys.argv[1]))))
    except RuntimeError as error:
        sys.exit(str(error))
