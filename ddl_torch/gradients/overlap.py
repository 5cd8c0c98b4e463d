"""Decides whether to average gradients in the background of the backward pass.

Between hosts that is faster: the network needs time, and a core can compute meanwhile. Within a host, averaging is work
for a core. If every core runs a rank's arithmetic, a thread in the background takes time from the backward pass, and
more: the core switches between the two, and each pushes the other's data out of the cache. Then the caller averages
everything itself when the backward pass has ended (docs/performance.md, "Training"). A GPU computes while the cores
have next to nothing to do.
"""

from __future__ import annotations

import os
from typing import List, Sequence, Tuple

import torch

import ddl

__all__ = ["pays", "place"]

Place = Tuple[int, List[int], int]


def place(on_gpu: bool) -> Place:
    """Return this rank's host, the cores that it may run on, and the threads that PyTorch computes with.

    ``on_gpu``: it has parameters on a GPU, which needs one thread to be told what to do.
    """
    return ddl.cross_rank(), sorted(os.sched_getaffinity(0)), 1 if on_gpu else torch.get_num_threads()


def pays(places: Sequence[Place]) -> bool:
    """Return whether the ranks, at least two, are on several hosts, or leave one core for each of them idle."""
    if len(places) == 1:
        return False
    if len({host for host, _, _ in places}) > 1:
        return True
    cores = {core for _, cores, _ in places for core in cores}
    return len(cores) >= sum(threads + 1 for _, _, threads in places)
