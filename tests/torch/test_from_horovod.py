"""What docs/from_horovod.md promises: a script for Horovod runs but for its import, and so does the document's code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import python_blocks
from process_groups import ROOT, launch

pytest.importorskip("torch")
pytest.importorskip("sklearn")

#: The public names of horovod.torch that scripts use.
NAMES = set(
    "init shutdown is_initialized size rank local_size local_rank cross_size cross_rank Average Sum Min Max Product "
    "Adasum allreduce allreduce_ allreduce_async allreduce_async_ allgather broadcast broadcast_ alltoall "
    "reducescatter join barrier poll synchronize DistributedOptimizer broadcast_parameters broadcast_object "
    "broadcast_optimizer_state allgather_object SyncBatchNorm HorovodInternalError elastic Compression".split()
)


@pytest.mark.processes
@pytest.mark.slow
def test_a_script_for_horovod_learns_on_two_ranks(tmp_path: Path):
    text = (ROOT / "examples" / "torch_horovod.py").read_text()
    assert "ddl" not in text.replace("import ddl_torch as hvd\n", "").split('"""', 2)[2]  # one line is another
    assert set(re.findall(r"\bhvd\.(\w+)", text)) <= NAMES
    program = tmp_path / "torch_horovod.py"
    program.write_text(text.replace(", root_rank=0)", ", 0)"))  # however the argument is called
    (percent,) = re.findall(r"test accuracy ([\d.]+)%", launch("ddlrun", [str(program)], tmp_path))  # rank 0 only
    assert float(percent) > 93


@pytest.mark.slow
@pytest.mark.processes
def test_the_code_of_the_document_runs_on_two_ranks(tmp_path: Path):
    (block,) = python_blocks("docs/from_horovod.md")
    program = tmp_path / "program.py"
    program.write_text(block + "print('end', state.epoch, sampler.epoch, len(sampler))\n")
    lines = launch("ddlrun", [str(program)], tmp_path).splitlines()
    assert sorted(lines) == [f"[{rank}] end 3 3 50" for rank in range(2)]
