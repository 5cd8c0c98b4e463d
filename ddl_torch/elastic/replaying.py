"""``replay``: a training whose ranks came and went, done again by one process, from nothing but its log.

A step's line in the log determines what it has computed. It says who took part; the samples of each rank, the order in
which gradients were added, and the number by which they were divided follow from that. So a replay has the same
weights, to the bit. It proves that the account of samples is true, and finds out what happened at a step of a long
training.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Generator, Iterable, Iterator, List, Sequence

import torch

import ddl
from ddl.adapter import sample_cursor
from ddl.adapter.sample_cursor import StepRecord
from ddl.adapter.virtual_shards import shard_seed
from ddl_torch.elastic._shard_gradients import ShardGradients
from ddl_torch.sampler import epoch_order

__all__ = ["replay"]


def replay(
    optimizer: torch.optim.Optimizer,
    dataset: Sequence[Any],
    log: Iterable[StepRecord],
    *,
    shuffle: bool = True,
    seed: int = 0,
    collate: Callable[[List[Any]], Any] = torch.utils.data.default_collate,
) -> Iterator[Iterator[Any]]:
    """Yield the steps of ``log``, each as the batches of those that took part. Not collective.

    optimizer: as at the beginning of the training, with the same weights, and not distributed. log: of a rank that was
    there from the first step to the last. shuffle, seed: as its ``ElasticBatches`` had them. collate: makes a batch of
    samples. The script does with each step what it did then: schedules of learning rates, clipping.

    Weights have the same bits after a ``TrainingByShards``, and after a ``Training`` with ``deterministic=True`` and
    parameters of float32 or float64. Dropout has the same random numbers only after a ``TrainingByShards``.

    Raises ``InvalidArgument`` for a log with missing steps, and in a job of several ranks; ``InvalidState`` for a loop
    over batches that was left before its end.

    >>> for shards in ddl_torch.elastic.replay(optimizer, dataset, log):
    ...     for x, y in shards:
    ...         loss(model(x), y).backward()
    ...     optimizer.step()
    """
    if ddl.size() > 1:
        raise ddl.InvalidArgument(f"elastic.replay is for a job of one rank, and this one has {ddl.size()}")
    gradients = ShardGradients(optimizer, keeps=False)
    length = len(dataset)

    def batches(record: StepRecord, indices: List[List[int]]) -> Generator[Any, None, None]:
        gradients.begin(ddl.world(), [0] * len(indices))
        for shard, of_shard in enumerate(indices):
            torch.manual_seed(shard_seed(seed, record.step, shard))
            yield collate([dataset[i] for i in of_shard])
            gradients.take(shard)
        gradients.average()

    for record, shares in sample_cursor.replay(length, log):
        order = epoch_order(length, shuffle, seed + record.epoch)
        used = [positions for rank, (positions, _) in enumerate(shares) if rank not in record.lost]
        shards = batches(record, [order[torch.from_numpy(positions)].tolist() for positions in used])
        yield shards
        if inspect.getgeneratorstate(shards) != inspect.GEN_CLOSED:
            raise ddl.InvalidState(f"the loop over the batches of step {record.step} was left before its end")
