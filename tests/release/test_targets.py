"""What wheels are called, and what is refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddl.errors import ConfigError
from release.pins import pinned
from release.targets import MACHINES, PYTHONS, WheelTarget, targets
from release.tensorflow_ops import op_files
from release.trial import KERNELS

ROOT = Path(__file__).resolve().parents[2]


def test_names() -> None:
    target = WheelTarget("3.10", "aarch64")
    assert target.tag == "cp310-cp310-manylinux_2_28_aarch64"
    assert target.suffix == ".cpython-310-aarch64-linux-gnu.so"
    assert target.version == (3, 10) and str(target) == "Python 3.10, aarch64"


def test_all_pythons_of_the_package_have_wheels() -> None:
    metadata = (ROOT / "pyproject.toml").read_text()
    assert all(f'"Programming Language :: Python :: {python}"' in metadata for python in PYTHONS)
    assert metadata.count('"Programming Language :: Python :: 3.') == len(PYTHONS)
    assert f'requires-python = ">={PYTHONS[0]}"' in metadata
    assert len(list(targets())) == len(PYTHONS) * len(MACHINES)


def test_some_targets() -> None:
    assert [str(target) for target in targets("3.14,3.9", "x86_64")] == ["Python 3.9, x86_64", "Python 3.14, x86_64"]
    with pytest.raises(ConfigError, match=r"^there are no wheels for 3\.8, but for 3\.9, 3\.10"):
        list(targets("3.8,3.9"))


def test_free_threaded_python_is_refused() -> None:
    code = (
        "import runpy, sys, sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; "
        "sys.argv[1:] = ['--version']; runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.returncode == 1
    assert done.stderr == (
        f"ddl: this is a free-threaded Python, {version}t, for which there is no DDL yet; take python{version}\n"
    )


def test_the_versions_that_are_tested() -> None:
    assert pinned("torch", "3.9") is None and pinned("no-such-package", "3.11") is None
    tensorflows = [pinned("tensorflow-cpu", python) for python in ("3.9", "3.10")]
    versions = {name.split("call_op-")[1].rpartition(".")[0] for name in op_files()}
    assert versions == set(tensorflows)
    text = " ".join((ROOT / "docs" / "install.md").read_text().split())
    assert f"for TensorFlow {' and '.join(sorted(versions))}," in text


def test_the_core_uses_what_the_processor_has() -> None:
    """As each wheel is asked in the system where it is tried."""
    subprocess.run([sys.executable, "-c", KERNELS], cwd=ROOT, check=True, timeout=60)
