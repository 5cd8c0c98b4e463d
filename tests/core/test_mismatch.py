"""Ranks that make different calls: every rank learns it, with both sides in the text, and for good."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import TRANSPORTS, connected

import ddl

pytestmark = pytest.mark.processes

SMALL, LARGE = 10, 40_000


def f32(count: int) -> np.ndarray:
    return np.ones(count, np.float32)


def barrier(comm: ddl.Communicator) -> None:
    comm.barrier()


Call = Callable[[ddl.Communicator], Any]


#: name: (what most ranks call, what one rank calls, words of both sides)
CASES: Dict[str, Tuple[Call, Call, List[str]]] = {
    "type": (lambda c: c.allreduce(f32(SMALL)), lambda c: c.allreduce(np.ones(SMALL)), ["float32", "float64"]),
    "integers": (  # both are added up as int64
        lambda c: c.allreduce(np.ones(SMALL, np.int16)),
        lambda c: c.allreduce(np.ones(SMALL, np.int64)),
        ["10 x int16, average", "10 x int64, average"],
    ),
    "complex": (
        lambda c: c.allreduce(f32(SMALL)),
        lambda c: c.allreduce(np.ones(SMALL // 2, np.complex64)),
        ["10 x float32", "5 x complex64"],
    ),
    "count": (lambda c: c.allreduce(f32(10)), lambda c: c.allreduce(f32(11)), ["10 x", "11 x"]),
    "operator": (
        lambda c: c.allreduce(f32(SMALL), op=ddl.Sum),
        lambda c: c.allreduce(f32(SMALL), op=ddl.Max),
        ["sum", "max"],
    ),
    "root": (
        lambda c: c.broadcast(f32(SMALL), root=0),
        lambda c: c.broadcast(f32(SMALL), root=1),
        ["root 0", "root 1"],
    ),
    "collective": (lambda c: c.allreduce(f32(SMALL)), lambda c: c.broadcast(f32(SMALL)), ["allreduce", "broadcast"]),
    "barrier": (barrier, lambda c: c.allreduce(f32(1)), ["barrier", "allreduce"]),
    "large type": (
        lambda c: c.allreduce(f32(LARGE)),
        lambda c: c.allreduce(np.ones(LARGE)),
        ["float32", "float64"],
    ),
    "large complex": (
        lambda c: c.broadcast(np.ones(LARGE)),
        lambda c: c.broadcast(np.ones(LARGE // 2, np.complex128)),
        ["40000 x float64", "20000 x complex128"],
    ),
    "large count": (lambda c: c.allreduce(f32(LARGE)), lambda c: c.allreduce(f32(LARGE + 1)), ["40000", "40001"]),
    "large root": (
        lambda c: c.reduce(f32(LARGE), root=1),
        lambda c: c.reduce(f32(LARGE), root=2),
        ["root 1", "root 2"],
    ),
    "large collective": (
        lambda c: c.reducescatter(f32(LARGE)),
        lambda c: c.allreduce(f32(LARGE)),
        ["reducescatter", "allreduce"],
    ),
    "lane": (lambda c: c.allreduce(f32(SMALL)), lambda c: c.allreduce(f32(LARGE)), ["10 x", "40000 x"]),
    "barrier and large": (barrier, lambda c: c.allreduce(f32(LARGE)), ["barrier", "40000 x"]),
    "sizes": (lambda c: c.allgather(f32(SMALL)), lambda c: c.alltoall(f32(12)), ["allgather", "alltoall"]),
    "sizes and data": (lambda c: c.allgather(f32(SMALL)), lambda c: c.allreduce(f32(1)), ["allgather", "allreduce"]),
}


def odd_one_of(case: str) -> int:
    return 3 if len(case) % 2 else 1


def call_and_call_again(comm: ddl.Communicator, case: str, loops: int) -> List[Tuple[str, str]]:
    """Some calls that match, then one that does not on one rank, then others until two have failed.

    A rank may finish its part before the others look: one that only sends has nothing to wait for.
    """
    usual, other, _ = CASES[case]
    follow_ups: List[Call] = [lambda c: c.allreduce(f32(1)), lambda c: c.allreduce(f32(LARGE))]
    calls = [*follow_ups * loops, other if comm.rank == odd_one_of(case) else usual, *[*follow_ups, usual] * 5]
    said: List[Tuple[str, str]] = []
    for call in calls:
        try:
            call(comm)
        except ddl.CommunicatorError as error:
            said.append((type(error).__name__, str(error)))
            if len(said) == 2:
                break
    return said


def each_case(cases: Sequence[str], on_world: str) -> Dict[str, List[Tuple[str, str]]]:
    """What was said in each case. Each has a communicator of all ranks; for ``on_world``, the last, it is the world."""
    answers = {}
    for case in cases:
        comm = ddl.split(0)
        assert comm is not None
        answers[case] = call_and_call_again(comm, case, 3)
    return {**answers, on_world: call_and_call_again(ddl.world(), on_world, 3)}


ON_HYBRID = ["count", "root", "large type", "large root", "large collective", "lane"]


@pytest.mark.few(5)
@pytest.mark.parametrize(("transport", "cases"), [("shared", list(CASES)), ("tcp", list(CASES)), ("hybrid", ON_HYBRID)])
def test_every_rank_learns_of_it(transport: str, cases: List[str]) -> None:
    """By ``CollectiveMismatch``, and so before the deadline."""
    size, *others, on_world = 4, *cases
    everybody = ranks.run(size, each_case, others, on_world, **connected(transport))
    for rank, answers in enumerate(everybody):
        assert list(answers) == cases
        for case, said in answers.items():
            usual, odd = CASES[case][2]
            assert [kind for kind, _ in said] == ["CollectiveMismatch"] * 2, f"{case}, rank {rank}: {said}"
            text = said[0][1]
            assert said[1][1] == text, f"{case}, rank {rank} does not repeat itself: {said}"
            assert f"[rank {rank}/{size}" in text and " called " in text and "as operation #" in text, (case, text)
            # With several roots, most ranks only send: who had nothing to wait for is compared by a later call, which
            # knows only that the histories differ.
            if "root" not in case:
                assert usual in text and odd in text and f"rank {odd_one_of(case)} called" in text, (case, text)


def swapped_order() -> List[str]:
    """Two asynchronous operations, submitted in another order on one rank."""
    sizes = [LARGE, LARGE + 64] if ddl.rank() != 2 else [LARGE + 64, LARGE]
    works: List[ddl.Work] = []
    kinds = []
    try:
        works = [ddl.allreduce_async(f32(count), name=f"tensor of {count}") for count in sizes]
    except ddl.CommunicatorError as error:  # the news came before the second one was submitted
        kinds.append(type(error).__name__)
        assert "40000" in str(error) and "40064" in str(error), str(error)
    for work in works:
        try:
            work.wait()
            kinds.append("returned")
        except ddl.CommunicatorError as error:
            kinds.append(type(error).__name__)
            assert "40000" in str(error) and "40064" in str(error), str(error)
    return sorted(set(kinds))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_another_order(transport: str) -> None:
    assert ranks.run(4, swapped_order, **connected(transport)) == [["CollectiveMismatch"]] * 4


def one_call_less() -> Tuple[str, str]:
    """Rank 1 forgets a call and goes on with the next one, which looks the same: only the numbers differ in time."""
    try:
        for number in range(40):
            if not (number == 20 and ddl.rank() == 1):
                ddl.allreduce(f32(SMALL + number % 2))
    except ddl.CollectiveMismatch as error:
        return "CollectiveMismatch", str(error)
    return "returned", ""


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_a_forgotten_call(transport: str) -> None:
    for kind, text in ranks.run(2, one_call_less, **connected(transport)):
        assert kind == "CollectiveMismatch" and "#21" in text, (kind, text)


def send_and_recv_differ() -> Tuple[str, str]:
    try:
        if ddl.rank() == 0:
            ddl.send(np.ones(5, np.float32), 1)
        else:
            ddl.recv(np.ones(6, np.float32), 0)
        ddl.barrier()
    except ddl.CommunicatorError as error:
        return type(error).__name__, str(error)
    return "returned", ""


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_send_and_recv_differ(transport: str) -> None:
    for kind, text in ranks.run(2, send_and_recv_differ, **connected(transport)):
        said = r"rank 0\b.* sends 5 x float32, but rank 1\b.* receives 6 x float32; both must be of one type and length"
        assert kind == "CollectiveMismatch" and re.search(said, text), (kind, text)
