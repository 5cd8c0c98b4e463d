"""The program of docs/elastic.md for equal bits, started by ddlrun: a rank kills itself, and no bit is another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import python_blocks
from launch.launcher import Launcher

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEP = "        optimizer.step()  # by the average over all 12\n"
DIE = (
    "        if training.finished == 5 and ddl.size() == 4 and ddl.rank() == {}:\n            os.kill(os.getpid(), 9)\n"
)
DIGEST = """
import hashlib
weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
print(training.finished, hashlib.sha256(weights.numpy().tobytes()).hexdigest())
"""


def test_a_lost_rank_changes_no_bit(launcher: Launcher, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (block,) = (block for block in python_blocks("docs/elastic.md") if "TrainingByShards" in block)
    assert STEP in block
    digests = []
    for lost, options in ((-1, ["-np", "1"]), (0, ["-np", "4", "--elastic"]), (2, ["-np", "4", "--elastic"])):
        program = tmp_path / f"lost_{lost}.py"
        program.write_text("import os\n" + block.replace(STEP, STEP + DIE.format(lost)) + DIGEST)
        process = launcher.start(*options, str(program))
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        assert len(out.splitlines()) == (1 if lost < 0 else 3) and ("was killed by signal 9" in err) == (lost >= 0), err
        digests += [line.rpartition("] ")[2] for line in out.splitlines()]
    assert len(digests) == 7 and len(set(digests)) == 1 and digests[0].startswith("8 "), digests
