"""``Fused`` and ``broadcast_many_``: many arrays as one operation, each with its own values and none with another's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import TRANSPORTS, connected

import ddl
from ddl.adapter.fused_arrays import Fused, broadcast_many_
from ddl.adapter.same_step import StepNumber
from ddl.negotiation import timeline

pytestmark = pytest.mark.processes

MIB = 1 << 20
ALONE = 256 << 10  #: bytes from which on an array is not copied
#: Types and shapes: small ones, none at all, one without elements or dimensions, and some that go alone.
SHAPES = [
    ("float32", (3, 5)),
    ("float64", (7,)),
    ("float32", (0, 4)),
    ("float32", ()),
    ("float32", (ALONE // 4 + 1,)),
    ("float16", (33,)),
    ("float32", (ALONE // 4 - 1,)),
    ("float64", (ALONE // 8,)),
    ("float32", (1,)),
]


def arrays(rank: int, step: int) -> List[np.ndarray]:
    """Whole numbers that every type holds exactly, another for each array, element, rank and step."""
    result = []
    for number, (dtype, shape) in enumerate(SHAPES):
        x = np.arange(int(np.prod(shape)), dtype=np.int64) % 17 + number + 3 * rank + step
        result.append(x.reshape(shape).astype(dtype))
    return result


def combined(size: int, step: int, op: ddl.ReduceOp) -> List[np.ndarray]:
    inputs = [arrays(rank, step) for rank in range(size)]
    sums = [np.sum([np.asarray(of_rank[i], np.float64) for of_rank in inputs], axis=0) for i in range(len(SHAPES))]
    return [(x / size if op == ddl.Average else x) for x in sums]


def right(got: List[np.ndarray], wanted: List[np.ndarray]) -> None:
    for (dtype, shape), array, other in zip(SHAPES, got, wanted):
        assert array.dtype == dtype and array.shape == shape
        np.testing.assert_allclose(array, other, rtol=1e-3 if dtype == "float16" else 1e-6)


def steps(op: ddl.ReduceOp) -> List[bytes]:
    group = ddl.world()
    fused = Fused(group, arrays(0, 0), op=op)
    bits = []
    for step in range(6):
        inputs = arrays(group.rank, step)  # elsewhere than those before
        if step % 2:
            fused.start(inputs)
            fused.wait()
        else:
            fused(inputs)
        right(inputs, combined(group.size, step, op))
        bits.append(b"".join(x.tobytes() for x in inputs))
    two = [Fused(group, [x]) for x in arrays(0, 0)[:2]]
    inputs = arrays(group.rank, 9)[:2]
    for call, x in zip(two, inputs):
        call.start([x])
    for call in two:
        call.wait()
    right(inputs, combined(group.size, 9, ddl.Average)[:2])
    Fused(group, [])([])
    return bits


@pytest.mark.few(5)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("op", [ddl.Average, ddl.Sum])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_array_gets_its_own_values(size: int, op: ddl.ReduceOp, transport: str) -> None:
    answers = ranks.run(size, steps, op, **connected(transport))
    assert all(answer == answers[0] for answer in answers)


def broadcasts() -> None:
    group = ddl.world()
    for root in range(group.size):
        inputs = arrays(group.rank, root)
        broadcast_many_(inputs, root=root)
        assert [x.tolist() for x in inputs] == [x.tolist() for x in arrays(root, root)]
    part = group.split(group.rank % 2)
    inputs = arrays(group.rank, 0)
    broadcast_many_(inputs, root=part.size - 1, communicator=part)
    last = max(rank for rank in range(group.size) if rank % 2 == group.rank % 2)
    assert [x.tolist() for x in inputs] == [x.tolist() for x in arrays(last, 0)]
    broadcast_many_([])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_is_broadcast_arrives(transport: str) -> None:
    ranks.run(3, broadcasts, **connected(transport))


def recorded(folder: str) -> None:
    path = Path(folder, f"{ddl.rank()}.json")
    fused = Fused(ddl.world(), [np.ones(3)], name="weights")
    fused([np.ones(3)])
    timeline.start(str(path))
    fused([np.ones(3)])
    fused.start([np.ones(3)])
    fused.wait()
    timeline.stop()
    events = [event for event in json.loads(path.read_text()) if event.get("ph") == "X"]
    assert [event["name"] for event in events] == ["ALLREDUCE"] * 2
    assert all(event["dur"] > 0 for event in events) and events[0]["ts"] < events[1]["ts"]
    assert '"weights"' in path.read_text()


def test_a_timeline_shows_each(tmp_path: Path) -> None:
    ranks.run(2, recorded, str(tmp_path))


def standings(op: ddl.ReduceOp, dtype: str, shape: Tuple[int, ...]) -> List[bool]:
    """Equal numbers change nothing; each bit in which the last rank's differs is an error on all, with both sides."""
    group = ddl.world()
    array = np.ones(shape, dtype)
    fused = Fused(group, [array, array.copy()], op=op, name="weights", advice="Begin anew.")
    last = group.rank == group.size - 1
    outcomes = []
    for number in (0, 1, 0xAAAA, 0xFFFF, 1 << 16, *(1 << bit for bit in range(16))):
        for own in (number, number ^ 1 if last else number, number ^ (1 << 15) if last else number):
            inputs = [np.ones(shape, dtype), np.ones(shape, dtype)]
            try:
                fused(inputs, StepNumber(own, f"number {own}"))
            except ddl.InvalidState as error:
                outcomes.append(True)
                assert f"weights: ranks are not in step (rank 0: number {number}; rank" in str(error) or group.size > 2
                assert str(error).startswith(f"[rank {group.rank}/") and str(error).endswith("Begin anew.")
            else:
                outcomes.append(False)
                sums = group.size if op == ddl.Sum else 1
                assert all((x == sums).all() for x in inputs)
    return outcomes


STANDINGS: List[Tuple[ddl.ReduceOp, str, Tuple[int, ...]]] = [
    (ddl.Average, "float32", (3, 5)),
    (ddl.Average, "float16", ()),
    (ddl.Average, "float64", (ALONE // 4,)),
    (ddl.Sum, "int8", (3,)),
    (ddl.Sum, "uint16", (3,)),
    (ddl.Product, "int64", (3,)),
    (ddl.Min, "float32", (3,)),
    (ddl.Max, "bool", (0,)),
]


def all_standings() -> Dict[str, List[bool]]:
    return {f"{op.name} of {dtype} {shape}": standings(op, dtype, shape) for op, dtype, shape in STANDINGS}


@pytest.mark.few(7)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_in_different_steps_are_told(size: int, transport: str) -> None:
    for outcomes in ranks.run(size, all_standings, **connected(transport)):
        assert len(outcomes) == len(STANDINGS)
        assert {name: told for name, told in outcomes.items() if told != [False, True, True] * 21} == {}


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_numbers_survive_a_shorter_wire(wire: str) -> None:
    job = connected("tcp", DDL_WIRE=wire)
    assert ranks.run(2, standings, ddl.Average, "float32", (1 << 15,), **job) == [[False, True, True] * 21] * 2


def refusals() -> Dict[str, str]:
    group = ddl.world()
    rank = group.rank
    big = np.ones(MIB, np.float32)
    fused = Fused(group, [np.ones(3, np.float32), big])
    fused([np.ones(3, np.float32), big])
    read_only = np.ones(3, np.float32)
    read_only.flags.writeable = False
    mistakes = {
        "number": [np.ones(3, np.float32)],
        "length": [np.ones(4, np.float32), big],
        "type": [np.ones(3, np.float64), big],
        "large": [np.ones(3, np.float32), np.ones(MIB + 1, np.float32)],
        "contiguous": [np.ones(6, np.float32)[::2], big],
        "array": [None, big],
        "writable": [read_only, big],
    }
    texts = {}
    for name, inputs in mistakes.items():
        with pytest.raises(ddl.InvalidArgument, match=rf"^\[rank {rank}/2") as caught:
            fused(inputs)
        texts[name] = str(caught.value)
    with pytest.raises(ddl.InvalidState, match="wait without a start"):
        fused.wait()
    own = [np.full(3, rank + 1, np.float32), big]
    fused.start(own)
    with pytest.raises(ddl.InvalidState, match="started again before wait"):
        fused.start(own)
    fused.wait()
    assert own[0].tolist() == [1.5] * 3, "refusals have harmed nothing"
    other = Fused(group, [np.ones(2 + rank, np.float32)], name="parts")
    with pytest.raises(ddl.InvalidArgument, match=r"parts: on rank 0 there is array 0 of float32 and shape \(2,\)"):
        other([np.ones(2 + rank, np.float32)])
    with pytest.raises(ddl.InvalidArgument, match="broadcast: on rank 0 .*on rank 1 nothing"):
        broadcast_many_([np.ones(2)] * (2 - rank))
    with pytest.raises(ddl.InvalidArgument, match="root=7 is no rank"):
        broadcast_many_([np.ones(2)], root=7)
    return texts


def test_what_is_refused() -> None:
    texts = ranks.run(2, refusals)[0]
    assert "1 arrays; at first there were 2" in texts["number"]
    assert "array 0 is 4 x float32, but was 3 x float32" in texts["length"]
    assert "array 0 is 3 x float64, but was 3 x float32" in texts["type"]
    assert "array 1 of float32 and shape (1048577,); at first array 1 of float32" in texts["large"]
    assert "array 0" in texts["contiguous"] and "contiguous" in texts["contiguous"]
    assert "array 0" in texts["writable"] and "read-only" in texts["writable"]
    assert "array 0" in texts["array"] and "NoneType" in texts["array"]
