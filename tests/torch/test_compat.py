"""Versions of torch: one warning where torch is newer than what was tested, and the same numbers everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import ranks

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import torch
torch.__version__ = "99.1.0a0+cpu"
import ddl_torch
import ddl_torch.c10d.process_group
ddl_torch.init()
ddl_torch.init()
"""


#: Torch 2.1 has these names in no module of their own.
OLD_TORCH = """
import sys
import torch
sys.modules["torch._C._dynamo.eval_frame"] = None
import ddl_torch
import ddl_torch.c10d.process_group
from ddl_torch._memory import in_host, is_ordinary
assert in_host(torch.ones(3))[2] == 3
assert not is_ordinary(torch.ones(3, requires_grad=True))
assert not is_ordinary(torch.ones(3, dtype=torch.complex64).conj())
"""


def test_an_old_torch_lacks_names() -> None:
    done = subprocess.run([sys.executable, "-c", OLD_TORCH], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_which_versions_are_newer() -> None:
    from ddl_torch._compat import NEWEST, newer_than_tested

    newest = ".".join(map(str, NEWEST))
    for version in ("2.1.2+cu121", "2.13.0+cpu", newest, f"{newest}.7", f"{newest}.0.dev20261123+cu132", "unknown"):
        assert newer_than_tested(version) is None
    for version in (f"{NEWEST[0]}.{NEWEST[1] + 1}.0", "3.0.0a0+git1234", "10.0"):
        text = newer_than_tested(version)
        assert f"up to {newest}, and this is {version}" in text and f"'torch<2.{NEWEST[1] + 1}'" in text


@pytest.mark.slow
def test_one_warning_in_a_process(tmp_path) -> None:
    line = [sys.executable, "-W", "always", "-c", PROGRAM]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len(re.findall("UserWarning: ddl_torch has been tested .* and this is 99.1.0a0", done.stderr)) == 1


def test_what_an_older_version_cannot_do_is_refused_by_name() -> None:
    from ddl_torch._compat import no_reconfigure

    for version in ("2.1.2+cu121", "2.13.0+cpu"):
        text = no_reconfigure(version)
        assert f"with torch 2.14 and later, and this is {version}" in text and "torchft.ProcessGroupDDL" in text
    for version in ("2.14.0", "2.15.0+cu132", "3.0.0", "unknown"):
        assert "pass enable_reconfigure=True to init_process_group" in no_reconfigure(version)


def without_reconfigure(path):
    import torch.distributed as dist

    import ddl_torch

    numbers = {"store": dist.FileStore(path, 1), "rank": 0, "world_size": 1}
    if not hasattr(dist, "_reconfigure"):
        with pytest.raises(TypeError, match="enable_reconfigure"):  # torch itself
            dist.init_process_group("ddl", **numbers, enable_reconfigure=True)
    dist.init_process_group("ddl", **numbers)
    group = dist.group.WORLD
    assert not group.supports_reconfigure and group.errored() is None
    for call in (group.get_reconfigure_handle, lambda: group.reconfigure(None)):
        with pytest.raises(ddl_torch.InvalidState, match="reconfigure.*: .*(torch 2.14 and|pass enable_reconf)"):
            call()


def test_a_group_that_was_made_without_it_cannot_be_reconfigured(tmp_path) -> None:
    ranks.run(1, without_reconfigure, str(tmp_path / "store"), initialise=False)


def test_the_newest_version_is_the_same_everywhere() -> None:
    from ddl_torch._compat import NEWEST

    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "environments" / "torch.txt").read_text(), re.MULTILINE)
    assert tuple(map(int, pinned.split(".")[:2])) == NEWEST
    table = (ROOT / "docs" / "compatibility.md").read_text()
    (main,) = re.findall(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    row = next(line for line in table.splitlines() if line.startswith("| PyTorch |"))
    assert main in row and pinned in row
    assert torch.__version__.split("+")[0] in row, "this version has been run: say so in docs/compatibility.md"
