"""What is refused before anything is sent: the error is clear, and the communicator works as before.

Every rank makes the same wrong call (or, where an agreement comes first, calls that do not fit together), then all
ranks check that their sequence of operations is still the same one.
"""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import TRANSPORTS, connected
from core.values import Bfloat16

import ddl

pytestmark = pytest.mark.processes

Refusals = List[Tuple[str, str, str]]


def refusal(name: str, call: Callable[[], Any]) -> Tuple[str, str, str]:
    try:
        result = call()
    except Exception as error:  # noqa: BLE001 - the test looks at which one it is
        return name, type(error).__name__, str(error)
    return name, "accepted", repr(result)


def still_whole() -> None:
    """The communicator works on both lanes, and no rank has counted an operation more than another."""
    rank, size = ddl.rank(), ddl.size()
    assert float(ddl.allreduce(np.full(3, float(rank)), op=ddl.Sum)[2]) == size * (size - 1) / 2
    assert float(ddl.allreduce(np.full(30_000, float(rank)), op=ddl.Sum)[-1]) == size * (size - 1) / 2
    assert ddl.allgather(np.full(rank, rank)).tolist() == [r for r in range(size) for _ in range(r)]
    ddl.barrier()


class Named:
    """No array."""


class Owned:
    """An array of another library that does not want to share it, or that lies on device ``kind`` (1 is the CPU)."""

    def __init__(self, reason: str, kind: int) -> None:
        self.reason = reason
        self.kind = kind

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError(self.reason or "cannot be seen from the CPU")


def wrong_calls() -> List[Tuple[str, Callable[[], Any], str]]:
    """(name, call, word that the message must have)"""
    size, ok = ddl.size(), np.ones((4, 3), np.float32)
    read_only = ok.copy()
    read_only.flags.writeable = False
    bits = Bfloat16(np.zeros(4, np.uint16))
    types: List[Tuple[str, Any, str]] = [
        ("object", np.array([None, 1, 2]), "object"),
        ("string", np.array(["a", "b", "c"]), "<U1"),
        ("bytes", np.array([b"a", b"b", b"c"]), "S1"),
        ("datetime", np.zeros(3, "datetime64[D]"), "datetime64"),
        ("record", np.zeros(3, [("a", "i4")]), "a"),
        ("big endian", np.ones(3, ">f4"), ">f4"),
        ("long double", np.ones(3, np.longdouble), "float128"),
        ("list of texts", ["a", "b", "c"], ""),
        ("none", None, "NoneType"),
        ("text", "abc", "str"),
        ("instance", Named(), "Named"),
        ("refused by its owner", Owned("needs a gradient", 1), "needs a gradient"),
        ("on another device", Owned("", 10), "CPU"),
    ]
    calls: List[Tuple[str, Callable[[], Any], str]] = []
    for name, x, word in types:
        calls += [
            (f"allreduce {name}", lambda x=x: ddl.allreduce(x), word),
            (f"allreduce_ {name}", lambda x=x: ddl.allreduce_(x), word),
            (f"allreduce_async_ {name}", lambda x=x: ddl.allreduce_async_(x), word),
            (f"broadcast {name}", lambda x=x: ddl.broadcast(x), word),
            (f"broadcast_ {name}", lambda x=x: ddl.broadcast_(x), word),
            (f"allgather {name}", lambda x=x: ddl.allgather(x), word),
            (f"gather {name}", lambda x=x: ddl.gather(x), word),
            (f"alltoall {name}", lambda x=x: ddl.alltoall(x, [1] * size), word),
            (f"reducescatter {name}", lambda x=x: ddl.reducescatter(x), word),
            (f"reduce {name}", lambda x=x: ddl.reduce(x), word),
            (f"send {name}", lambda x=x: ddl.send(x, (ddl.rank() + 1) % size), word),
            (f"recv {name}", lambda x=x: ddl.recv(x, (ddl.rank() + 1) % size), word),
        ]
    for root in (-1, size, 10**12, 1.5, "0", None):
        for verb in ("broadcast", "broadcast_", "broadcast_async_", "reduce", "gather", "scatter", "broadcast_object"):
            calls.append((f"{verb} root {root!r}", lambda v=verb, r=root: getattr(ddl, v)(ok, root=r), "root"))
    for peer in (-1, size, ddl.rank(), "1"):
        calls.append((f"send to {peer!r}", lambda p=peer: ddl.send(ok, p), "send"))
        calls.append((f"recv from {peer!r}", lambda p=peer: ddl.recv(ok, p), "recv"))
    for op in (-1, 0, 5, 99):
        calls.append((f"op {op}", lambda o=op: ddl.allreduce(ok, op=o), f"op={op} is no operator"))
        calls.append((f"reduce op {op}", lambda o=op: ddl.reduce(ok, op=o), "op"))
    calls += [
        ("read-only", lambda: ddl.allreduce_(read_only), "read-only"),
        ("read-only async", lambda: ddl.allreduce_async_(read_only), "read-only"),
        ("read-only broadcast", lambda: ddl.broadcast_(read_only, root=0), "read-only"),
        ("read-only recv", lambda: ddl.recv(read_only, (ddl.rank() + 1) % size), "read-only"),
        ("strided", lambda: ddl.allreduce_(np.ones((4, 4))[:, ::2]), "contiguous"),
        ("transposed", lambda: ddl.broadcast_(np.ones((4, 3)).T, root=0), "contiguous"),
        ("strided recv", lambda: ddl.recv(np.ones(8)[::2], (ddl.rank() + 1) % size), "contiguous"),
        ("average of bool", lambda: ddl.allreduce(np.ones(3, bool)), "bool"),
        ("average of bool, reduce", lambda: ddl.reduce(np.ones(3, bool)), "bool"),
        ("average of bool, reducescatter", lambda: ddl.reducescatter(np.ones(3, bool)), "bool"),
        ("no rows to scatter", lambda: ddl.reducescatter(np.float32(3)), "dimensions"),
        ("no rows to gather", lambda: ddl.allgather(np.float32(3)), "dimensions"),
        ("no rows to exchange", lambda: ddl.alltoall(np.float32(3)), "dimensions"),
        ("no rows at the root", lambda: ddl.scatter(np.float32(3)), "dimensions"),
        ("rows do not divide", lambda: ddl.alltoall(np.ones(size + 1)), "splits"),
        ("too few splits", lambda: ddl.alltoall(ok, [4]), "splits"),
        ("wrong sum", lambda: ddl.alltoall(ok, [3] * size), "splits"),
        ("no whole splits", lambda: ddl.alltoall(ok, [0.5] * size), "whole numbers"),
        ("negative split", lambda: ddl.alltoall(ok, [-1, 5, *[0] * (size - 2)]), "splits"),
        ("color", lambda: ddl.split("red"), "color"),
        ("key", lambda: ddl.split(0, "x"), "key='x'"),
        ("part of a key", lambda: ddl.split(0, 1.7), "key=1.7"),
        ("one member", lambda: ddl.world().subset(5), "5 must be a list"),
        ("members in a text", lambda: ddl.world().subset("01"), "'01' must be a list"),
        ("timeout", lambda: ddl.world().set_timeout("x"), "seconds above 0"),
        ("half a surrogate", lambda: ddl.broadcast_object("\ud800"), "surrogates"),
        ("bfloat16 for numpy", lambda: ddl.allreduce(bits), "in-place"),
    ]
    return calls


def refused_alike() -> Refusals:
    answers = []
    calls = wrong_calls()
    for number, (name, call, word) in enumerate(calls):
        got = refusal(name, call)
        problem = ""
        if got[1] != "InvalidArgument":
            problem = "wrong class"
        elif word not in got[2]:
            problem = f"the message has no {word!r}"
        if problem:
            answers.append((name, problem, f"{got[1]}: {got[2]}"))
        if number % 25 == 0:
            still_whole()
    still_whole()
    assert len(calls) > 200
    return answers


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_refused_before_anything_is_sent(transport: str) -> None:
    for rank, answers in enumerate(ranks.run(3, refused_alike, **connected(transport))):
        assert not answers, f"rank {rank}:\n" + "\n".join(": ".join(answer) for answer in answers)


def do_not_fit() -> Refusals:
    """Calls whose sizes are exchanged first: refused on every rank with the same words."""
    rank, size = ddl.rank(), ddl.size()
    odd = rank == size - 1
    wide = np.ones((2, 4 if odd else 3))
    other_type = np.ones((2, 3), np.float32 if odd else np.float64)
    other_rank = np.ones((2, 3, 1) if odd else (2, 3))
    flat = np.ones(() if odd else (3,))
    answers = []
    for x in (wide, other_type, other_rank, flat):
        answers.append(refusal(f"allgather {x.shape}", lambda x=x: ddl.allgather(x)))
        answers.append(refusal(f"allgather_async {x.shape}", lambda x=x: ddl.allgather_async(x)))
        answers.append(refusal(f"gather {x.shape}", lambda x=x: ddl.gather(x, root=1)))
        if x is not flat:
            splits = [2, *[0] * (size - 1)]
            answers.append(refusal(f"alltoall {x.shape}", lambda x=x, s=splits: ddl.alltoall(x, s)))
    still_whole()
    return answers


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_shapes_that_do_not_fit_are_refused_on_every_rank(transport: str) -> None:
    everybody = ranks.run(4, do_not_fit, **connected(transport))
    assert len(everybody[0]) == 15
    for answers in everybody:
        assert [(kind, text) for _, kind, text in answers] == [(kind, text) for _, kind, text in everybody[0]]
        assert all(kind == "InvalidArgument" for _, kind, _ in answers), answers
        assert all("rank 3" in text for _, _, text in answers), answers


def one_rank_refuses() -> List[Any]:
    """Only rank 0 makes a wrong call, corrects it, and nobody else notices."""
    answers = []
    for wrong in (lambda: ddl.allreduce_(np.ones(8)[::2]), lambda: ddl.allreduce(np.array([None, 1]))):
        if ddl.rank() == 0:
            answers.append(refusal("wrong", wrong)[1])
        answers.append(float(ddl.allreduce(np.full(3, 2.0))[0]))
    still_whole()
    return answers


def test_the_others_do_not_notice() -> None:
    first, *others = ranks.run(3, one_rank_refuses)
    assert first == ["InvalidArgument", 2.0, "InvalidArgument", 2.0]
    assert others == [[2.0, 2.0]] * 2


def outside_of_a_job() -> Refusals:
    """Before init and after shutdown, everything that needs a job says so."""
    x = np.ones(3)
    calls: List[Tuple[str, Callable[[], Any]]] = [
        ("rank", ddl.rank),
        ("size", ddl.size),
        ("local_rank", ddl.local_rank),
        ("cross_size", ddl.cross_size),
        ("world", ddl.world),
        ("allreduce", lambda: ddl.allreduce(x)),
        ("allreduce_async_", lambda: ddl.allreduce_async_(x)),
        ("barrier", ddl.barrier),
        ("send", lambda: ddl.send(x, 0)),
        ("split", lambda: ddl.split(0)),
        ("abort", ddl.abort),
        ("broadcast_object", lambda: ddl.broadcast_object(1)),
    ]
    answers = [refusal(name, call) for name, call in calls]
    assert not ddl.is_initialized()
    ddl.init()
    world = ddl.world()
    still_whole()
    child = ddl.split(0)
    assert child is not None
    pending = None
    if ddl.rank() == 0:
        ddl.recv(np.ones(3), 1)
        pending = ddl.recv_async(np.ones(3), 1)  # nobody sends
    else:
        left = refusal("until rank 0 has left", lambda: [ddl.send(x, 0), ddl.recv(np.ones(3), 0)])
        assert left[1] == "PeerLost", left
    ddl.shutdown()
    assert not ddl.is_initialized()
    answers += [refusal(name + " after", call) for name, call in calls]
    answers.append(refusal("kept world", lambda: world.allreduce(x)))
    answers.append(refusal("kept child", lambda: child.allreduce(x)))
    if pending is not None:
        answers.append(refusal("kept work", pending.wait))
    return answers


@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_outside_of_a_job(transport: str) -> None:
    everybody = ranks.run(2, outside_of_a_job, initialise=False, **connected(transport))
    assert everybody[0][-1][:2] == ("kept work", "Aborted"), everybody[0][-1]
    for answers in everybody:
        kinds = {name: kind for name, kind, _ in answers}
        texts = {name: text for name, _, text in answers}
        broken = {name: kinds.pop(name) for name in ("kept world", "kept child", "kept work") if name in kinds}
        assert set(kinds.values()) == {"InvalidState"}, kinds
        assert "ddl.init()" in texts["allreduce"] and "shutdown" in texts["allreduce after"]
        assert set(broken.values()) <= {"Aborted", "InvalidState"}
        assert "shut down" in texts["kept world"]
