"""The code of docs/caffe.md runs on two ranks, to weights of the same bits; what it says of flags is so."""

from __future__ import annotations

import re

import caffe_solvers
import numpy as np
import pytest
import ranks
from documents import names_after, python_blocks, text_of

h5py = pytest.importorskip("h5py")
pytest.importorskip("caffe")

TEXT, BLOCKS = text_of("docs/caffe.md"), python_blocks("docs/caffe.md")


def weights_after(code, folder):
    names = names_after(code, folder)
    solver = names["state"].solver if "state" in names else names["solver"]
    return [array.tobytes() for array in caffe_solvers.parameters(solver)]


@pytest.mark.processes
@pytest.mark.parametrize("number", range(3), ids=["step", "own loop", "elastic"])
def test_code_runs_on_two_ranks(number, tmp_path):
    assert len(BLOCKS) == 3
    data, labels = caffe_solvers.arrays()
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["data"], file["label"] = data, labels.astype(np.float32)
    (tmp_path / "rows.txt").write_text(f"{tmp_path}/rows.h5\n")
    inputs = 'layer { name: "data" type: "HDF5Data" top: "data" top: "label" '
    inputs += f'hdf5_data_param {{ source: "{tmp_path}/rows.txt" batch_size: 12 }} }}\n'
    caffe_solvers.write(tmp_path, inputs=inputs)
    first, second = ranks.run(2, weights_after, BLOCKS[number], str(tmp_path), initialise=False)
    assert first == second and len(first) == 4
    assert (tmp_path / f"solver_iter_{caffe_solvers.STEPS}.caffemodel").exists() == (number != 1)


def test_every_flag_and_name_is_there():
    import ddl_caffe
    from ddl_caffe.options import parser

    known = {option for action in parser()._actions for option in action.option_strings}
    (section,) = re.findall(r"## The command line\n(.*?)\n## ", TEXT, re.DOTALL)
    has, missing = section.split("There is no")
    assert {flag for flag in re.findall(r"`(--?\w+)", has) if flag != "--mode"} <= known
    assert not {flag for flag in re.findall(r"`(--?\w+)", missing)} & known
    named = set(re.findall(r"ddl_caffe\.(\w+)\(", TEXT))
    assert named == set(ddl_caffe.__all__) - {"Averaging", "elastic"}
