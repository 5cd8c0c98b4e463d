"""TensorFlow's op in the wheels, for the versions of constraints.txt: users of one of these need no compiler.

Only for x86-64, on which TensorFlow is tested. The op is part of TensorFlow, and hands it objects of libstdc++, as the
core does not. So zig compiles it for the same C library as the core, but with the headers of Debian 11's libstdc++, so
that it needs nothing newer than TensorFlow itself does.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Dict, List

from ddl.errors import Error
from release.pins import pinned
from release.systems import libstdcxx
from release.targets import PYTHONS

__all__ = ["OPS_FOR", "PREBUILT", "op_files", "place_ops"]

OPS_FOR = "x86_64"
PREBUILT = "ddl_tensorflow/prebuilt/"
#: What tf.sysconfig.get_compile_flags() returns there, besides folders. Where it is something else, the op is not used.
_FLAGS = ("-D_GLIBCXX_USE_CXX11_ABI=1", "--std=c++17", "-DEIGEN_MAX_ALIGN_BYTES=64")
_ROOT = Path(__file__).resolve().parents[1]
_LIBRARY = "tensorflow/libtensorflow_framework.so.2"


def op_files() -> List[str]:
    """Return the files of a wheel that are the ops, and the flags that they were compiled with."""
    return [f"{PREBUILT}call_op-{version}{end}" for version in _versions() for end in (".so", ".flags")]


def _versions() -> Dict[str, str]:
    """Return each version, and a Python that it has wheels for: what is taken from them is the same for all Pythons."""
    versions: Dict[str, str] = {}
    for python in PYTHONS:
        version = pinned("tensorflow-cpu", python)
        if version is not None:
            versions.setdefault(version, python)
    return versions


def place_ops(machine: str, sources: Path, compiler: str) -> None:
    """Compile the ops into the sources of which a wheel will be made; take them out for another processor."""
    folder = sources / PREBUILT
    if machine != OPS_FOR:
        shutil.rmtree(folder, ignore_errors=True)
        return
    folder.mkdir(exist_ok=True)
    for version, python in _versions().items():
        library = folder / f"call_op-{version}.so"
        if not library.exists():
            _compile(_tensorflow(version, python), sources, compiler, library)
            library.with_suffix(".flags").write_text("\n".join(_FLAGS) + "\n", encoding="utf-8")


def _tensorflow(version: str, python: str) -> Path:
    """Return a folder with the headers and the library of a TensorFlow, out of its wheel."""
    kept = _ROOT / "build" / "tensorflow" / version
    if (kept / "complete").exists():
        return kept
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    line = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    line += ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", "--dest", str(kept)]
    line += [f"--platform=manylinux_2_{minor}_{OPS_FOR}" for minor in (27, 17)] + [
        f"--platform=manylinux2014_{OPS_FOR}"
    ]
    done = subprocess.run([*line, f"tensorflow-cpu=={version}"], capture_output=True, text=True)
    if done.returncode:
        raise Error(f"TensorFlow {version}, for its op, cannot be downloaded: {done.stderr}")
    (wheel,) = kept.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("tensorflow/include/") or name == _LIBRARY]
        archive.extractall(kept, names)
    wheel.unlink()
    (kept / "complete").touch()
    return kept


def _compile(tensorflow: Path, sources: Path, compiler: str, library: Path) -> None:
    headers, libstdcxx_so = libstdcxx(OPS_FOR)
    line = [compiler, "-O2", "-g0", "-s", "-shared", "-fPIC", "-w", *_FLAGS, f"-ffile-prefix-map={sources}=."]
    line += [f"-ffile-prefix-map={tensorflow}=."]
    line += ["-nostdinc++", "-nostdlib++", *(f"-I{folder}" for folder in headers)]
    line += ["-include", str(Path(__file__).with_name("include") / "older_glibc.h")]
    line += [f"-I{tensorflow / 'tensorflow/include'}", str(sources / "ddl_tensorflow" / "call_op.cc")]
    line += [str(tensorflow / _LIBRARY), str(libstdcxx_so), "-o", str(library)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise Error(f"TensorFlow's op cannot be compiled: {done.stderr[-2000:]}")
