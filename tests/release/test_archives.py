"""The archive of the sources has the same bytes whoever packs it; what is not ready is not called ready."""

from __future__ import annotations

import os
import tarfile
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Dict

import pytest

from ddl._version import __version__
from release import check
from release.tensorflow_ops import op_files
from release.wheels import needed_glibc, pack_anew

EPOCH = 1_700_000_000


def archive(folder: Path, age: int, owner: str) -> Path:
    """Make an archive as setuptools does: with the files' times, and the name of who has made it."""
    for number, name in enumerate(("b.py", "a.sh")):
        path = folder / "source" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"content of {name}")
        path.chmod((0o600, 0o755)[number])
        os.utime(path, (age, age))
    result = folder / "source.tar.gz"
    with tarfile.open(result, "w:gz") as tar:
        for name in ("b.py", "a.sh"):
            member = tar.gettarinfo(folder / "source" / name, f"source/{name}")
            member.uname = owner
            with open(folder / "source" / name, "rb") as file:
                tar.addfile(member, file)
    return result


def test_archives_are_equal(tmp_path: Path) -> None:
    packed = []
    for number, owner in enumerate(("somebody", "else")):
        folder = tmp_path / owner
        folder.mkdir()
        packed.append(archive(folder, 1_000_000_000 + number, owner))
        pack_anew(packed[-1], EPOCH)
    assert packed[0].read_bytes() == packed[1].read_bytes()
    with tarfile.open(packed[0]) as tar:
        members = {member.name: (member.mtime, member.mode, member.uname) for member in tar}
        assert members == {"source/a.sh": (EPOCH, 0o755, ""), "source/b.py": (EPOCH, 0o644, "")}
        content = tar.extractfile("source/b.py")
        assert content is not None and content.read() == b"content of b.py"


def wheel(folder: Path, tag: str, files: Dict[str, str]) -> None:
    with zipfile.ZipFile(folder / f"open_ddl-{__version__}-{tag}.whl", "w") as file:
        for name, text in files.items():
            file.writestr(name, text)


def native(version: int, text: str) -> Dict[str, str]:
    return {f"{name}.cpython-{version}.so": text for name in ("ddl/_core", "ddl_jax/_mpi")}


def test_wheels_differ_in_what_is_native_alone(tmp_path: Path) -> None:
    tags = ["cp39-cp39-manylinux_2_28_x86_64", "cp310-cp310-manylinux_2_28_x86_64", "cp39-cp39-manylinux_2_28_aarch64"]
    ops = {name: "an op" for name in op_files()}
    files = {"ddl/api.py": "text", **ops}
    wheel(
        tmp_path,
        tags[0],
        {**files, **native(39, "core"), "ddl.dist-info/RECORD": "1"},
    )
    wheel(
        tmp_path,
        tags[1],
        {
            **files,
            "ddl/_core.cpython-310.so": "another",
            "ddl_jax/_mpi.cpython-310.so": "another",
            "ddl.dist-info/RECORD": "2",
        },
    )
    paths = [tmp_path / f"open_ddl-{__version__}-{tag}.whl" for tag in tags]
    assert list(check.of_contents(paths[:2])) == []
    wheel(tmp_path, tags[2], {"ddl/api.py": "other", "ddl/old.so": "core"})
    assert list(check.of_contents(paths)) == [
        f"{paths[2].name} has the native modules ['ddl/old.so'], and should have ddl/_core and ddl_jax/_mpi",
        f"{paths[2].name} differs from the other wheels in ddl/api.py",
    ]
    wheel(
        tmp_path,
        tags[1],
        {"ddl/api.py": "text", **native(310, "another")},
    )
    wheel(
        tmp_path,
        tags[2],
        {
            "ddl/api.py": "text",
            "ddl/_core.cpython-39.so": "third",
            "ddl_jax/_mpi.cpython-39.so": "third",
            op_files()[0]: "an op",
        },
    )
    assert list(check.of_contents(paths)) == [
        f"{paths[1].name} has no op of TensorFlow, and should have {op_files()}",
        f"{paths[2].name} has ['{op_files()[0]}'] of TensorFlow, and should have none",
    ]


def test_which_c_library_a_wheel_needs() -> None:
    said = 'x.whl is consistent\nwith the following platform tag: "linux_x86_64".\n'
    assert needed_glibc(said) == (0, 0)
    assert needed_glibc(f'{said}This constrains the platform\ntag to "manylinux_2_27_x86_64". In order') == (2, 27)
    assert needed_glibc(f'{said}This constrains the platform tag to "manylinux_2_34_x86_64".') == (2, 34)


def test_an_empty_folder_is_no_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "open_ddl-0.0.9.tar.gz").touch()
    assert check.run(Namespace(dest=tmp_path)) == 1
    said = capsys.readouterr().err
    assert f"release: {tmp_path}/open_ddl-{__version__}.tar.gz is missing: run `make wheels`\n" in said
    assert said.count(" is missing: run `make wheels`\n") == 13
    assert f"release: {tmp_path}/open_ddl-0.0.9.tar.gz is of another version" in said
    assert f"git tag --annotate v{__version__}" in said or "commit them" in said
    assert not (tmp_path / "SHA256SUMS").exists()
