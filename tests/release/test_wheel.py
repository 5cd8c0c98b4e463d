"""A wheel as setup.py makes it passes what `make release-check` looks at; one with a stray file does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from ddl import _core
from ddl._version import __version__
from release.targets import WheelTarget
from release.tensorflow_ops import op_files

pytest.importorskip("check_wheel_contents", reason="check-wheel-contents needs Python 3.10")
from release import check  # noqa: E402 (it needs that, too)
from release.wheel_lint import lint  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["setup.py", "pyproject.toml", "README.md", "LICENSE", "environments"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel of this checkout: with the native modules that are there, and with ops that are no ops."""
    folder = tmp_path_factory.mktemp("wheel")
    for path in [*(ROOT / name for name in SOURCES), *ROOT.glob("ddl"), *ROOT.glob("ddl_*")]:
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("*.so", "__pycache__", "prebuilt"))
        else:
            shutil.copy(path, folder)
    for name in op_files():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"the op {name}" if name.endswith(".so") else "the flags of all")
    assert _core.__file__ is not None
    (library,) = (ROOT / "ddl_jax").glob(f"_mpi{sysconfig.get_config_var('EXT_SUFFIX')}")
    for native, package in ((_core.__file__, "ddl"), (library, "ddl_jax")):
        (folder / "lib" / package).mkdir(parents=True)
        shutil.copy(native, folder / "lib" / package)
    (folder / "setup.cfg").write_text("[build]\nbuild_lib = lib\n")
    line = [sys.executable, "setup.py", "--quiet", "build_py", "bdist_wheel", "--skip-build"]
    subprocess.run(line, cwd=folder, env={**os.environ, "DDL_WHEEL_TAG": tag()}, check=True, timeout=240)
    (built,) = (folder / "dist").iterdir()
    return built


def tag() -> str:
    return WheelTarget("{}.{}".format(*sys.version_info), "x86_64").tag


def with_file(wheel: Path, folder: Path, name: str, text: str) -> Path:
    """Pack a wheel again into ``folder``, with one more file."""
    packing = [sys.executable, "-m", "wheel"]
    subprocess.run([*packing, "unpack", str(wheel), "--dest", str(folder)], check=True, timeout=60)
    unpacked = folder / f"open_ddl-{__version__}"
    (unpacked / name).parent.mkdir(exist_ok=True)
    (unpacked / name).write_text(text)
    subprocess.run([*packing, "pack", str(unpacked), "--dest-dir", str(folder)], check=True, timeout=60)
    return folder / wheel.name


def test_it_has_nothing_that_nobody_meant(wheel: Path) -> None:
    assert wheel.name == f"open_ddl-{__version__}-{tag()}.whl"
    assert list(lint(wheel)) == []
    assert list(check.of_contents([wheel])) == []


def test_torch_and_vllm_find_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read(f"open_ddl-{__version__}.dist-info/entry_points.txt").decode()
    assert "[torch.distributed.backends]\nddl = ddl_torch.c10d.backend:register\n" in entry_points + "\n"
    assert "[vllm.platform_plugins]\nddl = ddl_torch.vllm:plugin\n" in entry_points + "\n"


def test_a_third_copy_is_a_finding(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        script = archive.read("ddl/tools/completion/scripts/completion.zsh").decode()
    (finding,) = lint(with_file(wheel, tmp_path, "ddl/tools/completion/scripts/another.zsh", script))
    assert finding.startswith(f"{wheel.name}: W002: Wheel contains duplicate files:\n")
    assert "\n  ddl/tools/completion/scripts/another.zsh" in finding


def test_an_op_of_another_version_is_a_finding(wheel: Path, tmp_path: Path) -> None:
    (finding,) = lint(with_file(wheel, tmp_path, "ddl_tensorflow/prebuilt/call_op-1.0.0.so", "an old op"))
    assert "W004" in finding and "\n  ddl_tensorflow/prebuilt/call_op-1.0.0.so" in finding


def test_tests_of_ours_are_a_finding(wheel: Path, tmp_path: Path) -> None:
    (finding,) = lint(with_file(wheel, tmp_path, "tests/test_x.py", "a test"))
    assert finding == f"{wheel.name}: W005: Wheel contains common toplevel name in library:\n  tests/"
