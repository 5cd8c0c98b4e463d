"""Writes scikit-learn's handwritten digits for Caffe, once as HDF5 and once as LMDB, and a LeNet that trains on them.

    python examples/caffe_lenet/write_digits.py FOLDER --batch-size 32
    cd FOLDER
    ddlrun -np 2 ddl-caffe train --solver=solver_lmdb.prototxt

The batch size is that of each rank, as it stands in the net: two ranks with 32 take the steps of one process with 64.
Both forms have the same 1500 digits for training and 297 for testing, of 8x8 pixels from 0 to 1. Each rank reads its
share by itself. (First weights differ between the two forms, since a Data layer draws a random number before them.)
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Tuple

import h5py
import lmdb
import numpy as np
from caffe.proto.caffe_pb2 import Datum
from sklearn.datasets import load_digits

HERE = Path(__file__).resolve().parent
TRAINED = 1500


def digits() -> Tuple[np.ndarray, np.ndarray]:
    """Return pixels, uint8 from 0 to 16 and of shape (1797, 1, 8, 8), and labels; shuffled, always alike."""
    bunch = load_digits()
    order = np.random.RandomState(0).permutation(len(bunch.target))
    return bunch.images[order, None].astype(np.uint8), bunch.target[order]


def write_hdf5(folder: Path, name: str, pixels: np.ndarray, labels: np.ndarray) -> None:
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file["data"], file["label"] = pixels.astype(np.float32) / 16, labels.astype(np.float32)
    (folder / f"{name}.txt").write_text(f"{name}.h5\n", encoding="ascii")


def write_lmdb(folder: Path, name: str, pixels: np.ndarray, labels: np.ndarray) -> None:
    path = folder / f"{name}_lmdb"
    shutil.rmtree(path, ignore_errors=True)
    with lmdb.open(str(path), map_size=1 << 24) as store, store.begin(write=True) as transaction:
        for number, (image, label) in enumerate(zip(pixels, labels)):
            datum = Datum(channels=1, height=8, width=8, data=image.tobytes(), label=int(label))
            transaction.put(f"{number:05d}".encode(), datum.SerializeToString())


def write_net(folder: Path, batch_size: int) -> None:
    for solver in HERE.glob("solver_*.prototxt"):
        shutil.copy(solver, folder)
    text = (HERE / "lenet.prototxt").read_text(encoding="utf-8")
    (folder / "lenet.prototxt").write_text(text.replace("batch_size: 64", f"batch_size: {batch_size}"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write handwritten digits and a LeNet for Caffe.")
    parser.add_argument("folder", type=Path, help="where to, perhaps new")
    parser.add_argument("--batch-size", type=int, default=64, help="digits of each rank in a step (%(default)s)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = digits()
    for name, rows in (("train", slice(TRAINED)), ("test", slice(TRAINED, None))):
        for write in (write_hdf5, write_lmdb):
            write(given.folder, name, pixels[rows], labels[rows])
    write_net(given.folder, given.batch_size)


if __name__ == "__main__":
    main()
