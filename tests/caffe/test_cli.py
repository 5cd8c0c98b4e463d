"""``ddl-caffe train`` under ddlrun: what ``caffe train`` does, on all ranks; bad flags are refused before anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import caffe_solvers
import numpy as np
import pytest

caffe = pytest.importorskip("caffe")
h5py = pytest.importorskip("h5py")

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes

DIES = """
import os, signal
import caffe
import ddl

class Layer(caffe.Layer):
    passes = 0

    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data
        self.passes += 1
        if self.passes == 4 and ddl.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff
"""


def inputs(folder, batch):
    data, labels = caffe_solvers.arrays(steps=6)
    with h5py.File(folder / "rows.h5", "w") as file:
        file["data"], file["label"] = data, labels
    (folder / "rows.txt").write_text(f"{folder}/rows.h5\n")
    return f"""layer {{ name: "data" type: "HDF5Data" top: "data" top: "label"
      hdf5_data_param {{ source: "{folder}/rows.txt" batch_size: {batch} }} }}\n"""


def write(folder, batch=caffe_solvers.GLOBAL // 2, more="", **how):
    more = f"momentum: 0.9 display: 2 test_iter: 3 test_interval: 4 snapshot: 6 {more}"
    return caffe_solvers.write(folder, inputs=inputs(folder, batch), more=more, **how)


def train(*flags, ranks=2, cwd=None):
    """Run it; return what subprocess does."""
    path = os.pathsep.join(filter(None, [str(cwd or ""), str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": path, "GLOG_minloglevel": "0", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "ddl.launch", "-np", str(ranks), sys.executable, "-m", "ddl_caffe", "train", *flags]
    return subprocess.run(line, env=environ, cwd=cwd or ROOT, capture_output=True, text=True, timeout=240)


def weights(folder, iteration):
    net = caffe.Net(
        str(folder / "solver_net.prototxt"), str(folder / f"solver_iter_{iteration}.caffemodel"), caffe.TEST
    )
    return [blob.data.copy() for blobs in net.params.values() for blob in blobs]


def test_two_ranks_write_what_one_process_does(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    write(tmp_path / "one", batch=caffe_solvers.GLOBAL)
    two = write(tmp_path / "two")
    start = caffe.get_solver(two)
    start.net.params["out"][0].data[...] = 0
    start.net.save(str(tmp_path / "start.caffemodel"))
    scores = []
    for folder, ranks in ((tmp_path / "one", 1), (tmp_path / "two", 2)):
        done = train(f"-solver={folder}/solver.prototxt", "--weights", f"{tmp_path}/start.caffemodel", ranks=ranks)
        assert done.returncode == 0, done.stderr
        text = done.stdout + done.stderr
        assert text.count("Optimization Done.") == 1 and "[1]" not in text
        assert re.findall(r"Iteration (\d+), Testing net", text) == ["0", "4", "8"]
        assert re.findall(r"Iteration (\d+) \(.*loss = ", text) == ["0", "2", "4", "6"]
        scores.append([float(score) for score in re.findall(r"Test net output #0: accuracy = (\S+)", text)])
        losses = re.findall(r"Test net output #1: loss = (\S+) \(\* 1 = \S+ loss\)", text)
        assert len(losses) == 3 and losses[0] == "1.09861"  # log 3: of weights that say nothing
        files = sorted(path.name for path in folder.glob("solver_iter_*"))
        assert files == [f"solver_iter_{n}.{end}" for n in (6, 8) for end in ("caffemodel", "solverstate")]
    assert scores[0][-1] > scores[0][0] and len(scores[1]) == 3
    assert caffe_solvers.distance(weights(tmp_path / "one", 8), weights(tmp_path / "two", 8)) < 1e-6


def test_options_of_ibms_caffe_and_a_resumed_job(tmp_path):
    """HDF5Data begins with its first rows again: after six steps both jobs do."""
    path = write(tmp_path, more="test_initialization: false")
    done = train(f"--solver={path}", "-bvlc", "-ddl", "-mode b:2")
    assert done.returncode == 0, done.stderr
    first = weights(tmp_path, 8)
    done = train("--solver", path, f"-snapshot={tmp_path}/solver_iter_6.solverstate", "--ddl=-mode r:2x1")
    assert done.returncode == 0, done.stderr
    text = done.stdout + done.stderr
    assert "restoring history" in text and re.findall(r"Iteration (\d+), Testing net", text) == ["8"]
    assert all(np.array_equal(array, other) for array, other in zip(first, weights(tmp_path, 8)))


def test_snapshots_are_named_as_caffe_names_them(tmp_path):
    """By the solver's file, where snapshot_prefix is missing or a folder."""
    path = Path(write(tmp_path))
    text = path.read_text().replace(f'snapshot_prefix: "{tmp_path}/solver"', "{}")
    (tmp_path / "folder").mkdir()
    for name, prefix in (("missing", ""), ("named", f'snapshot_prefix: "{tmp_path}/folder"')):
        (tmp_path / f"{name}.prototxt").write_text(text.format(prefix))
        done = train(f"--solver={name}.prototxt", ranks=1, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "missing_iter_8.caffemodel").exists()
    assert (tmp_path / "folder" / "named_iter_8.caffemodel").exists()


@pytest.mark.faults
def test_a_killed_rank_ends_the_job(tmp_path):
    (tmp_path / "dies.py").write_text(DIES)
    path = write(tmp_path)
    net = (tmp_path / "solver_net.prototxt").read_text()
    layer = 'layer { name: "dies" type: "Python" bottom: "data" top: "same" '
    layer += 'python_param { module: "dies" layer: "Layer" } }'
    net = net.replace('bottom: "data"', 'bottom: "same"')
    (tmp_path / "solver_net.prototxt").write_text(
        net.replace('layer { name: "first"', layer + '\nlayer { name: "first"')
    )
    done = train(f"--solver={path}", cwd=tmp_path)
    assert done.returncode == 128 + 9, done.stderr
    assert "Iteration 2 (" in done.stderr and "Iteration 6 (" not in done.stderr
    assert re.search(r"PeerLost: \[rank 0/2.*gradients.*lost rank 1", done.stderr)
    *_, end, dumps = done.stderr.splitlines()
    assert re.search(r"ddlrun: rank 1 .*was killed by signal 9", end) and "ddl blame" in dumps


BAD = {
    "the solver": (["--solver=none.prototxt"], "none.prototxt: .*No such file"),
    "no solver": ([], "--solver=: "),
    "its text": (["--solver=bad.prototxt"], "bad.prototxt: .*no_such_field"),
    "its mode": (["--solver=gpu.prototxt"], "solver_mode is GPU; ddl_caffe needs Caffe on the CPU"),
    "a snapshot": (["--solver=solver.prototxt", "-snapshot=none"], "No such file.*none"),
    "weights": (["--solver=solver.prototxt", "-weights=solver.prototxt,none"], "No such file.*none"),
    "both": (["-solver", "solver.prototxt", "-snapshot=bad.prototxt", "-weights=bad.prototxt"], "give one of them"),
    "a level": (["--solver=solver.prototxt", "--level=high"], "invalid literal"),
    "a processor": (["--solver=solver.prototxt", "-gpu", "0"], "unrecognized arguments: -gpu"),
    "a mode": (["--solver=solver.prototxt", "-ddl", "-mode b:4x2"], "dimensions 4x2 are 8 ranks, but the job has 1"),
    "a letter": (["--solver=solver.prototxt", "-ddl=-mode m"], "nothing here answers to 'm'"),
    "an option": (["--solver=solver.prototxt", "-ddl", "-mode b:1 -dump_iter 100"], "nothing here answers to the rest"),
    "a contradiction": (
        ["--solver=solver.prototxt", "-ddl=-mode r"],
        "means DDL_ALGORITHM=ring, but it is tree already",
    ),
    "a flag": (["--solver=solver.prototxt", "-frob"], "unrecognized arguments: -frob"),
    "a command": (["--solver=solver.prototxt", "test"], "unrecognized arguments|invalid choice"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_usage_is_refused(case, tmp_path, monkeypatch, capsys):
    from ddl_caffe.cli import main

    monkeypatch.chdir(tmp_path)
    if case == "a contradiction":
        monkeypatch.setenv("DDL_ALGORITHM", "tree")
    text = Path(write(tmp_path)).read_text()
    Path("bad.prototxt").write_text(text + " no_such_field: 1")
    Path("gpu.prototxt").write_text(text.replace("CPU", "GPU"))
    flags, said = BAD[case]
    try:
        status = main(["train", *flags])
    except SystemExit as end:  # by argparse
        status = end.code
    assert status == 2
    assert re.search(said, capsys.readouterr().err)


def test_help_says_what_the_flags_mean(capsys):
    from ddl_caffe.cli import main

    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--solver" in text and "ddlrun's --mode" in text
