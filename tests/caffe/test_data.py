"""Every row is read by one rank: by layers that know their solver's rank, and by what is made of arrays."""

from __future__ import annotations

import caffe_solvers
import numpy as np
import pytest
import ranks

caffe = pytest.importorskip("caffe")
h5py = pytest.importorskip("h5py")
lmdb = pytest.importorskip("lmdb")

pytestmark = pytest.mark.processes

BATCH = 4


def rows(count=32):
    return np.repeat(np.arange(count, dtype="f"), 5).reshape(count, 1, 1, 5)


def write_hdf5(folder):
    with h5py.File(folder / "rows.h5", "w") as file:
        file["data"], file["label"] = rows(), np.zeros(len(rows()), "f")
    (folder / "rows.txt").write_text(f"{folder}/rows.h5\n")
    return f'type: "HDF5Data" hdf5_data_param {{ source: "{folder}/rows.txt" batch_size: {BATCH} }}'


def write_lmdb(folder):
    with lmdb.open(str(folder / "rows"), map_size=1 << 22) as store, store.begin(write=True) as transaction:
        for number, row in enumerate(rows()):
            datum = caffe.proto.caffe_pb2.Datum(channels=1, height=1, width=5, label=0, data=bytes(row.astype("u1")))
            transaction.put(f"{number:08d}".encode(), datum.SerializeToString())
    return f'type: "Data" data_param {{ source: "{folder}/rows" batch_size: {BATCH} backend: LMDB }}'


def write_memory(folder):
    return f'type: "MemoryData" memory_data_param {{ batch_size: {BATCH} channels: 1 height: 1 width: 5 }}'


def reads(inputs, folder):
    """Return the rows of three batches, and what ``shard`` gives."""
    import ddl
    import ddl_caffe

    ddl_caffe.init()
    inputs = f'layer {{ name: "data" top: "data" top: "label" {inputs} }}\n'
    solver = caffe.get_solver(caffe_solvers.write(f"{folder}/{ddl.rank()}", inputs=inputs))
    if "MemoryData" in inputs:
        ddl_caffe.set_input_arrays(solver, rows(), np.zeros(32))
    numbers = []
    for _ in range(3):
        solver.net.forward()
        numbers += solver.net.blobs["data"].data[..., 0].ravel().tolist()
    assert ddl_caffe.shard(rows()[:13]).ravel()[::5].tolist() == numbers[: 13 // ddl.size()]
    return numbers


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("write", [write_hdf5, write_lmdb, write_memory], ids=["HDF5Data", "Data", "MemoryData"])
def test_ranks_share_the_rows(write, size, tmp_path):
    for rank, numbers in enumerate(ranks.run(size, reads, write(tmp_path), str(tmp_path))):
        count = len(rows())
        assert numbers == [(rank + size * i) % count for i in range(3 * BATCH)]


def refuses(folder):
    import ddl
    import ddl_caffe

    with pytest.raises(
        ddl.InvalidArgument, match=rf"^\[rank {ddl.rank()}/2 host \S+\] shard: .*\(1,\) has no row for each of 2"
    ):
        ddl_caffe.shard([7])
    with pytest.raises(ddl.InvalidArgument, match="shard"):
        ddl_caffe.shard(3.0)
    ddl_caffe.init()
    solver = caffe.get_solver(caffe_solvers.write(f"{folder}/{ddl.rank()}", inputs=caffe_solvers.memory(BATCH)))
    for data, labels in ((rows()[:, 0], np.zeros(32)), (rows(), np.zeros(31))):
        with pytest.raises(ddl.InvalidArgument, match="four dimensions, and each row a label"):
            ddl_caffe.set_input_arrays(solver, data, labels)


def test_refusals(tmp_path):
    ranks.run(2, refuses, str(tmp_path))
