"""Results are there when a future says so, whatever stream and thread asks: the program that shows pytorch #170812.

gloo of some releases of torch fails it on a GPU: it orders the stream of its own thread only. Its result here is
printed, and is no failure of ours.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List

import drivers
import pytest
import ranks
import torch
from gpu.jobs import device, environment, group, side_stream

pytestmark = pytest.mark.processes
N, AT_ONCE = 1_000_000, 10
ROUNDS = 1000 if drivers.device() == "cuda" else 3


def last_element(future: Any, tensor: torch.Tensor) -> float:
    """Wait on a stream of its own, and read at once."""
    with side_stream():
        future.wait()
        return float(tensor[-1])


def in_a_thread(future: Any, tensor: torch.Tensor) -> float:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(last_element, future, tensor).result(60)


def in_a_callback(future: Any, tensor: torch.Tensor) -> float:
    return float(future.then(lambda _: tensor[-1:].clone()).wait())


READERS: Dict[str, Callable[[Any, torch.Tensor], float]] = {
    "side stream": last_element,
    "thread": in_a_thread,
    "callback": in_a_callback,
}


def wrong_values(backend: str, reader: str, rounds: int, aside: bool) -> int:
    """Return how many of the sums were read before they were there."""
    dist, rank, size = group(backend)
    source = torch.full((N,), float(rank + 1), device=device())
    read, expected, wrong = READERS[reader], size * (size + 1) / 2, 0
    for _ in range(rounds):
        clones: List[torch.Tensor] = []
        works = []

        def submit(clones: List[torch.Tensor] = clones, works: List[Any] = works) -> None:
            clones += [source.clone() for _ in range(AT_ONCE)]
            works += [dist.all_reduce(tensor, async_op=True) for tensor in clones]

        if aside:
            with side_stream():
                submit()
        else:
            submit()
        futures = [work.get_future() for work in works]
        wrong += sum(read(future, tensor) != expected for future, tensor in zip(futures, clones))
    dist.destroy_process_group()
    return wrong


@pytest.mark.few(1)
@pytest.mark.parametrize("aside", [False, True], ids=["default stream", "submitted on a side stream"])
@pytest.mark.parametrize("reader", READERS)
def test_results_are_there_when_a_future_says_so(reader: str, aside: bool) -> None:
    rounds = ROUNDS if reader == "side stream" else max(2, ROUNDS // 10)
    assert ranks.run(2, wrong_values, "ddl", reader, rounds, aside, env=environment()) == [0, 0]


def test_what_gloo_does() -> None:
    rounds = max(2, ROUNDS // 5)
    wrong = sum(ranks.run(2, wrong_values, "gloo", "side stream", rounds, False, env=environment()))
    if drivers.device() == "cuda":
        pytest.skip(f"for the record: gloo gave {wrong} wrong values of {2 * rounds * AT_ONCE}")
    assert wrong == 0
