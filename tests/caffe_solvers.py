"""Small solvers of Caffe for tests: one process with a whole batch, or one of some ranks with its share of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

STEPS, GLOBAL = 8, 24

TAIL = """
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "out" bottom: "label" top: "loss" }}
layer {{ name: "accuracy" type: "Accuracy" bottom: "out" bottom: "label" top: "accuracy" include {{ phase: TEST }} }}
"""
IP = """
layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{top}" {more}
  inner_product_param {{ num_output: {units} weight_filler {{ type: "xavier" }} }} }}
"""
TANH = 'layer {{ name: "tanh_{0}" type: "TanH" bottom: "{0}" top: "{0}" }}\n'
SHARED = 'param { name: "weights" } param { name: "bias" }'
NORM = 'layer { name: "norm" type: "BatchNorm" bottom: "first" top: "norm" %s }\n'


def ip(name, bottom, units, more="", top=""):
    return IP.format(name=name, bottom=bottom, top=top or name, units=units, more=more)


def body(kind):
    """Return layers from "data" to "out"."""
    if kind == "plain":
        return ip("first", "data", 16) + TANH.format("first") + ip("out", "first", 3)
    if kind == "shared":
        first = ip("first", "data", 5, SHARED) + TANH.format("first")
        return first + ip("second", "first", 5, SHARED) + TANH.format("second") + ip("out", "second", 3)
    middle = {"norm": NORM % "", "frozen": NORM % "batch_norm_param { use_global_stats: true }"}[kind]
    return ip("first", "data", 16) + middle + ip("out", "norm", 3)


def memory(batch, phase="TRAIN"):
    return f"""layer {{ name: "data" type: "MemoryData" top: "data" top: "label" include {{ phase: {phase} }}
      memory_data_param {{ batch_size: {batch} channels: 1 height: 1 width: 5 }} }}\n"""


def arrays(steps=STEPS):
    random = np.random.RandomState(0)
    data = random.randn(steps * GLOBAL, 1, 1, 5).astype("f")
    return data, np.argmax(data[:, 0, 0, :3], 1).astype("f")


def write(folder, *, inputs, kind="plain", solver="SGD", lr=0.1, more="", name="solver"):
    """Write a solver's and its net's prototxt; return the solver's path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}_net.prototxt").write_text(inputs + body(kind) + TAIL.format())
    path = folder / f"{name}.prototxt"
    path.write_text(
        f'net: "{folder}/{name}_net.prototxt" type: "{solver}" base_lr: {lr} lr_policy: "step" gamma: 0.5 stepsize: 4 '
        f'random_seed: 3 max_iter: {STEPS} snapshot_prefix: "{folder}/{name}" solver_mode: CPU {more}'
    )
    return str(path)


def parameters(solver):
    """Return copies of all blobs, each once."""
    unique = {blob.data.ctypes.data: blob.data.copy() for blobs in solver.net.params.values() for blob in blobs}
    return list(unique.values())


def distance(first, others):
    """Return how far apart two lists of arrays are, relative to their norm."""
    vector, other = (np.concatenate([array.ravel() for array in arrays]).astype("d") for arrays in (first, others))
    return np.linalg.norm(vector - other) / np.linalg.norm(vector)


def same_everywhere(arrays):
    """Whether all ranks have the same bits. Collective."""
    import ddl

    rows = ddl.allgather(np.concatenate([array.ravel() for array in arrays])[None]).view(np.uint32)
    return (rows == rows[0]).all()
