"""Gives ranks their parts of a ``tf.data.Dataset``: by element or by file (``shard``, ``shard_files``); ``equalize``.

All of it is done by ops of tf.data, nothing by Python for each element. Shuffle before ``shard`` only with a seed that
is the same on all ranks, else ranks have some elements in common; batch after it.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import tensorflow as tf

import ddl
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl_tensorflow._public import public_names
from ddl_tensorflow._where import Where, global_process_set

__all__ = ["equalize", "shard", "shard_files"]


@naming_rank
def shard(
    dataset: tf.data.Dataset, *, remainder: str = "pad", rank: Optional[int] = None, size: Optional[int] = None
) -> tf.data.Dataset:
    """Return this rank's elements of ``dataset``: every ``size``-th, from the ``rank``-th on. Not collective.

    remainder: what happens if the number of ranks does not divide that of the elements. "pad" (default): elements from
    the start are repeated, at most size - 1, so that all ranks have equally many, as averaging gradients needs; "drop":
    at most size - 1 are left out instead; "keep": nothing twice, nothing left out, and ranks may differ by one element,
    so by one batch: for evaluation, or with ``join``. rank, size: default those of the job, so ``init`` comes first.

    Where tf.data does not know how many elements there are (behind ``filter``, from files), "pad" and "drop" look at
    them in groups of ``size``, which takes some microseconds for each; ``tf.data.experimental.assert_cardinality``
    makes it known. Raises ``InvalidArgument`` for a wrong ``remainder`` or ``rank``.

    >>> dataset = ddl_tensorflow.data.shard(dataset).shuffle(10_000).batch(32)
    """
    rank, size = _place(rank, size)
    _check_remainder("shard", remainder, "keep")
    count = int(dataset.cardinality())
    if remainder == "keep" or size == 1 or count == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(size, rank)
    if count == tf.data.UNKNOWN_CARDINALITY:
        return _by_groups(dataset, remainder, rank, size)
    if remainder == "drop":
        return dataset.take(count - count % size).shard(size, rank)
    return dataset.concatenate(dataset.repeat().take(-count % size)).shard(size, rank)


def _by_groups(dataset: tf.data.Dataset, remainder: str, rank: int, size: int) -> tf.data.Dataset:
    def own(*parts: Any) -> tf.data.Dataset:
        window = parts if isinstance(dataset.element_spec, tuple) else parts[0]
        group = window if isinstance(window, tf.data.Dataset) else tf.data.Dataset.zip(window)
        whole = group.concatenate(dataset.repeat()) if remainder == "pad" else group
        return whole.skip(rank).take(1)

    return dataset.window(size, drop_remainder=remainder == "drop").flat_map(own)


@naming_rank
def shard_files(files: Any, *, rank: Optional[int] = None, size: Optional[int] = None) -> List[str]:
    """Return this rank's files: of a sorted list every ``size``-th, from the ``rank``-th on. Not collective.

    files: a list of names, or a pattern such as ``"train-*.tfrecord"``, of which all ranks see the same files. Ranks
    then read different numbers of elements: see ``equalize``. Raises ``InvalidArgument`` if there are fewer files than
    ranks: use ``shard``.

    >>> dataset = tf.data.TFRecordDataset(ddl_tensorflow.data.shard_files("train-*.tfrecord"))
    """
    rank, size = _place(rank, size)
    paths = tf.io.gfile.glob(files) if isinstance(files, str) else [str(name) for name in files]
    if len(paths) < size:
        raise ddl.InvalidArgument(
            f"shard_files: {len(paths)} files of {files!r:.100} are not enough for {size} ranks; read all of them on "
            "every rank and use ddl_tensorflow.data.shard"
        )
    return sorted(paths)[rank::size]


@naming_rank
def equalize(
    dataset: tf.data.Dataset,
    *,
    remainder: str = "pad",
    count: Optional[int] = None,
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """Return ``dataset``, which is this rank's own, with as many elements as that of every other rank. Collective.

    After ``batch``, so that all ranks make the same number of steps. remainder: "pad" (default): all have as many as
    the longest, shorter ones begin anew; "drop": as the shortest. count: how many elements it has, if that is known;
    else tf.data is asked, and where that does not know either, they are counted: all are read once, before training.
    Without this, a rank that runs out of data calls ``join``. Raises ``InvalidArgument``, on all ranks, if one has no
    element, or has endless ones.

    >>> dataset = ddl_tensorflow.data.equalize(dataset.batch(32))
    """
    _check_remainder("equalize", remainder)
    own = int(dataset.cardinality()) if count is None else count
    if own == tf.data.UNKNOWN_CARDINALITY:
        own = int(dataset.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))
    Where(process_set)
    communicator = process_set.communicator
    if communicator is None:
        raise ddl.InvalidArgument(f"equalize: this rank is not in {process_set!r}")
    counts = communicator.allgather_object(own)
    if min(counts) <= 0:
        where = counts.index(min(counts))
        what = "no element" if counts[where] == 0 else "endless elements"
        raise ddl.InvalidArgument(f"equalize: rank {where} of {process_set!r} has {what}; repeat() comes after it")
    steps = max(counts) if remainder == "pad" else min(counts)
    repeated = dataset.repeat() if steps > own else dataset
    return repeated.take(steps).apply(tf.data.experimental.assert_cardinality(steps))


def _place(rank: Optional[int], size: Optional[int]) -> Sequence[int]:
    rank = ddl.rank() if rank is None else rank
    size = ddl.size() if size is None else size
    if not 0 <= rank < size:
        raise ddl.InvalidArgument(f"rank={rank} is not one of size={size} ranks")
    return rank, size


def _check_remainder(verb: str, remainder: str, *more: str) -> None:
    allowed = ("pad", "drop", *more)
    if remainder not in allowed:
        raise ddl.InvalidArgument(f"{verb}: remainder={remainder!r} is none of {', '.join(map(repr, allowed))}")


__dir__ = public_names(globals())
