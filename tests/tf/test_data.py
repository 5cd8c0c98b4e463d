"""A data set shared out over the ranks: nothing twice or missing but what is asked for; without a job, and with one."""

from __future__ import annotations

import pytest
import ranks

tf = pytest.importorskip("tensorflow")


def sources(count):
    """The same elements, of a known number and of an unknown one."""
    known = tf.data.Dataset.range(count)
    return [known, known.filter(lambda _: True)]


def numbers(dataset):
    return [int(element) for element in dataset]


def shards():
    """In a process of its own: TensorFlow must not run in the one that ranks are forked from."""
    from ddl_tensorflow import data

    for count in (0, 2, 7):
        for size in (1, 3):
            for dataset in sources(count):
                for remainder in ("pad", "drop", "keep"):
                    parts = [
                        numbers(data.shard(dataset, remainder=remainder, rank=rank, size=size)) for rank in range(size)
                    ]
                    order = list(range(count))
                    if remainder == "pad" and count:
                        order = [i % count for i in range(-(-count // size) * size)]
                    if remainder == "drop":
                        order = order[: count - count % size]
                    assert parts == [order[rank::size] for rank in range(size)], (count, size, remainder)
    endless = tf.data.Dataset.range(5).repeat()
    assert numbers(data.shard(endless, rank=1, size=2).take(5)) == [1, 3, 0, 2, 4]
    nested = tf.data.Dataset.range(3).map(lambda i: {"x": tf.fill([i], i), "y": (i, (i + 1,))}).filter(lambda _: True)
    for shaped in (
        nested,
        nested.map(lambda element: (element["y"], element["x"])),
        nested.map(lambda element: (element["y"][0],)),
    ):
        part = data.shard(shaped, rank=1, size=2)
        assert part.element_spec == shaped.element_spec
        tf.nest.assert_same_structure(list(part)[0], list(shaped)[1])
        assert len(list(part)) == 2


def jobs():
    import numpy as np

    import ddl_tensorflow as ddl
    from ddl_tensorflow.data import compute_service

    rank, size = ddl.rank(), ddl.size()
    if rank == 0:
        shards()
    ddl.barrier()
    assert numbers(ddl.data.shard(tf.data.Dataset.range(4))) == list(range(rank, 4, size))
    files = [f"part-{i}" for i in (3, 1, 0, 2, 4)]
    shard = ddl.data.shard_files(files)
    assert shard == [f"part-{i}" for i in range(rank, 5, size)]
    own = tf.data.Dataset.range(10 * rank, 10 * rank + 3 + 2 * rank)
    for dataset in (own, own.filter(lambda _: True)):
        for remainder, steps in (("pad", 1 + 2 * size), ("drop", 3)):
            even = ddl.data.equalize(dataset, remainder=remainder)
            assert int(even.cardinality()) == steps
            expected = [10 * rank + i % (3 + 2 * rank) for i in range(steps)]
            assert numbers(even) == numbers(even) == expected
    assert numbers(ddl.data.equalize(own, count=3)) == [10 * rank + i for i in range(3)]
    with pytest.raises(ddl.InvalidArgument, match=r"^\[rank .*rank 1 of .* has no element"):
        ddl.data.equalize(tf.data.Dataset.range(1 - rank))
    with pytest.raises(ddl.InvalidArgument, match="has endless elements"):
        ddl.data.equalize(own.repeat() if rank else own)
    with pytest.raises(ddl.InvalidArgument, match=f"1 files of .* are not enough for {size} ranks"):
        ddl.data.shard_files(["one"])
    with pytest.raises(ddl.InvalidArgument, match="'half' is none of 'pad', 'drop', 'keep'"):
        ddl.data.shard(own, remainder="half")
    with pytest.raises(ddl.InvalidArgument, match=f"rank={size} is not one of size={size} ranks"):
        ddl.data.shard(own, rank=size)
    for refused in (
        lambda: compute_service.TfDataServiceConfig(1, 2),
        lambda: compute_service.tf_data_service(None, 0),
        lambda: compute_service.send_to_data_service(own, None, 0),
        lambda: compute_service.compute_worker_fn(None),
    ):
        with pytest.raises(ddl.InvalidState, match="DDL starts no tf.data service.*ddl_tensorflow.data.shard"):
            refused()
    assert np.array(numbers(ddl.data.shard(own, size=1, rank=0))).size == 3 + 2 * rank


@pytest.mark.slow
@pytest.mark.processes
def test_each_rank_has_its_part():
    ranks.run(2, jobs)
