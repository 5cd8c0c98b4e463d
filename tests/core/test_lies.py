"""What the core does not take on trust: a peer's word about its memory, and numbers that come from Python."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import socket
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np
import pytest
import ranks
from core.faults import descriptors
from said import Said

import ddl
from ddl import _core
from ddl._comm import size_exchange
from ddl._comm.peer import Peer
from ddl.plan.ir import Collective

PAGE = os.sysconf("SC_PAGE_SIZE")
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def memory(size: int, seals: int = SEALS, flags: int = os.MFD_ALLOW_SEALING) -> int:
    fd = os.memfd_create("liar", flags | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    if flags & os.MFD_ALLOW_SEALING:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def plain_file(size: int) -> int:
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        return os.dup(file.fileno())


LIES: List[Tuple[str, Callable[[], int], int, str]] = [
    ("shorter than it says", lambda: memory(PAGE), 2 * PAGE, f"has {2 * PAGE} bytes, but it has {PAGE}"),
    ("longer than it says", lambda: memory(2 * PAGE), PAGE, f"has {PAGE} bytes, but it has {2 * PAGE}"),
    ("empty", lambda: memory(0), 0, "has 0 bytes"),
    ("so long that no offset fits", lambda: memory(PAGE), 2**64 - 1, "but it has"),
    ("not sealed", lambda: memory(PAGE, 0), PAGE, "can be made shorter"),
    ("cannot be sealed", lambda: memory(PAGE, flags=0), PAGE, "can be made shorter"),
    ("sealed against growing only", lambda: memory(PAGE, fcntl.F_SEAL_GROW), PAGE, "can be made shorter"),
    ("a file", lambda: plain_file(PAGE), PAGE, "can be made shorter"),
    ("a pipe", lambda: os.pipe()[0], PAGE, "but it has 0"),
]


@pytest.fixture
def hung_up() -> Iterator[Callable[[], int]]:
    """Descriptors of sockets as ``PeerMemory`` takes over; their other ends are closed after the test."""
    ends: List[socket.socket] = []

    def one_end() -> int:
        here, there = socket.socketpair()
        ends.append(there)
        return here.detach()

    yield one_end
    for end in ends:
        end.close()


@pytest.mark.parametrize(("make", "said", "text"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
def test_memory_that_could_end_this_process_is_refused(
    make: Callable[[], int], said: int, text: str, hung_up: Callable[[], int]
) -> None:
    fd, before = make(), descriptors()
    with pytest.raises(ddl.ProtocolError, match=text):
        _core.PeerMemory(fd, said, hung_up())
    assert descriptors() == before  # it has closed both that it took, and the fixture has one more


def test_the_arena_is_what_a_peer_takes(hung_up: Callable[[], int]) -> None:
    """It is sealed, can be mapped by a peer, and still gives freed pages back."""
    assert fcntl.fcntl(_core.arena_fd(), fcntl.F_GET_SEALS) == SEALS
    for change in (-PAGE, PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(_core.arena_fd(), _core.arena_bytes() + change)
    theirs = _core.PeerMemory(os.dup(_core.arena_fd()), _core.arena_bytes(), hung_up())
    x = ddl.empty(8 << 20, np.uint8)
    x[:] = 7
    place = _core.arena_offset(x)
    assert theirs.read(place, 3) == b"\7\7\7"
    del x
    assert theirs.read(place, 3) == b"\0\0\0"


def test_a_neighbours_board_lies_in_its_memory(hung_up: Callable[[], int]) -> None:
    memory_of_peer = _core.PeerMemory(memory(PAGE), PAGE, hung_up())
    core = _core.Communicator(rank=0, size=2, timeout=1, spin_us=0, yield_us=0)
    for offset in (0, PAGE, 2**63, 64):  # a board is longer than a page; and it begins on a pair of cache lines
        with pytest.raises(ddl.ProtocolError, match=f"rank 1 says that its board lies at {offset}"):
            core.add_neighbour(1, memory_of_peer, offset)
    with pytest.raises(ddl.InternalError, match="a neighbour out of range"):
        core.add_neighbour(2, memory_of_peer, 0)
    core.shutdown()


def with_a_liar() -> Tuple[float, List[str]]:
    """Rank 1 says that its arena is twice as long as it is; returned: a sum, and this rank's warnings."""
    handler = Said(level=logging.WARNING)
    if int(os.environ["DDL_RANK"]) == 1:
        said = 2 * _core.arena_bytes()
        _core.arena_bytes = lambda: said
    ddl.init()
    return float(ddl.allreduce(np.full(100_000, ddl.rank() + 1.0), op=ddl.Sum)[-1]), handler.texts


@pytest.mark.processes
def test_a_rank_that_lies_about_its_memory_gets_messages_instead() -> None:
    (total, warnings), (other_total, other_warnings) = ranks.run(2, with_a_liar, initialise=False)
    assert total == other_total == 3.0
    text = r"rank 0: turned a connection away: rank 1's memory is refused: the peer says that .* but it has \d+"
    assert any(re.search(text, warning) for warning in warnings), warnings
    assert any("rank 1: no shared memory with rank 0" in warning for warning in other_warnings), other_warnings


NO_CORES: List[Tuple[Any, Any, Any]] = [(7, "0", 0.0), ("m", 0, 0.0), ("m", "0-", 0.0), ("m", "0", -1), ("m", "0", "1")]


def introduction() -> Dict[str, Any]:
    return {
        **{"rank": 1, "host": "b", "host_id": "b", "offers": [["10.0.0.0/8", "10.0.0.1", 5, 0.0]], "unix_name": "u"},
        **{"nonce": [64, "00"], "board_offset": 128, "shared": True, "deterministic": False, "version": "1"},
        "encrypt": False,
        "checksum": False,
        "cores": {"machine": "m", "cpus": "0-7,16", "quota": 1.5},
    }


@pytest.mark.parametrize(
    "changed",
    [
        *({"rank": 0}, {"rank": "1"}, {"host": 7}, {"offers": []}, {"offers": [["n"]]}, {"offers": [[1, "a", 5, 0]]}),
        *({"offers": [["n", "a", "5", 0]]}, {"nonce": 5}, {"nonce": ["64", "00"]}, {"nonce": [-64, "00"]}),
        *({"board_offset": None}, {"board_offset": -1}, {"board_offset": True}, {"more": 1}, {"cores": 8}),
        *({"cores": {"machine": machine, "cpus": cpus, "quota": quota}} for machine, cpus, quota in NO_CORES),
    ],
    ids=repr,
)
def test_a_rank_that_introduces_itself_wrongly_is_named(changed: Dict[str, Any]) -> None:
    assert Peer.parse(1, json.dumps(introduction())).nonce.offset == 64
    with pytest.raises(ddl.ProtocolError, match="rank 1 told the others .* same version of DDL"):
        Peer.parse(1, json.dumps({**introduction(), **changed}))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "[" * 100_000, '{"offers": ' + "[" * 5000])
def test_what_is_no_introduction_names_the_rank(text: str) -> None:
    with pytest.raises(ddl.ProtocolError, match="rank 3 told the others"):
        Peer.parse(3, text)


@pytest.mark.parametrize("place", [(0, -1), (0, 99), (1, -1), (1, 31), (2, -5)], ids=repr)
def test_sizes_that_cannot_be_are_refused(place: Tuple[int, int]) -> None:
    rows = np.array([size_exchange.row(np.ones((2, 3), np.float32))] * 2)
    size_exchange.check_rows("allgather", rows)
    rows[1, place[0]] = place[1]
    with pytest.raises(ddl.ProtocolError, match="allgather: a rank told of an array that cannot be"):
        size_exchange.check_rows("allgather", rows)


# --- what comes from Python ---


def wrong_numbers() -> List[Tuple[str, str]]:
    """What does not raise ``InvalidArgument`` on this rank, before anything is sent."""
    core, x, size = ddl.world()._core, np.ones(4), ddl.size()
    y, all_of = np.ones(4), np.ones(4 * ddl.size())

    def run(collective: int, data: Any, target: Any, **fields: Any) -> Any:
        return core.run(_core.Call(collective, data, target, None, **fields))

    numbers = [-1, 0, 12, 99, 256 + int(Collective.BARRIER), 2**31 - 1, -(2**31)]
    calls: List[Tuple[str, Callable[[], Any]]] = []
    for n in (*numbers, 2**62, -(2**62)):
        calls.append((f"call {n}", lambda n=n: core.call(n, x, y, 0, 0)))
        calls.append((f"prepare {n}", lambda n=n: core.prepare(n, x, 0, "", None)))
    for n in numbers:
        calls += [
            (f"attempt {n}", lambda n=n: core.attempt(_core.Call(n, x, y, None))),
            (f"run {n}", lambda n=n: run(n, x, y)),
            (f"start {n}", lambda n=n: core.start(_core.Call(n, x, y, None))),
            (f"install {n}", lambda n=n: core.install(n, 0, [])),
        ]
        if n != 0:  # for none
            calls.append((f"sizes for {n}", lambda n=n: run(1, x, y, sizes_for=n)))
    for root in (-1, size, 2**31 - 1, 2**40):
        calls.append((f"root {root}", lambda r=root: core.call(Collective.BROADCAST, x, y, 0, r)))
    for root in (-1, size):
        calls += [
            (f"run root {root}", lambda r=root: run(Collective.REDUCE, x, y, root=r)),
            (f"send {root}", lambda r=root: run(Collective.SEND, x, None, root=r)),
        ]
    for op in (-1, 5, 255, 2**40):
        calls.append((f"op {op}", lambda o=op: core.call(Collective.ALLREDUCE, x, y, o, 0)))
    # Buffers that are not there, and lengths of blocks that the buffers do not have.
    core.call(Collective.ALLREDUCE, x, y, 0, 0)
    calls += [
        ("no buffers", lambda: core.call(Collective.ALLREDUCE, None, None, 0, 0)),
        ("no output", lambda: core.call(Collective.ALLREDUCE, x, None, 0, 0)),
        ("no input", lambda: run(Collective.ALLGATHER, None, all_of, part_lengths=[4])),
        ("send to itself", lambda: run(Collective.SEND, x, None, root=ddl.rank())),
        ("send nothing", lambda: run(Collective.SEND, None, None, root=1 - ddl.rank())),
        ("prepare nothing", lambda: core.prepare(Collective.ALLREDUCE, None, 0, "", None)),
        ("prepare blocks", lambda: core.prepare(Collective.ALLGATHER, x, 0, "", None)),
    ]
    for verb in (Collective.ALLGATHER, Collective.ALLTOALL, Collective.REDUCESCATTER):
        for lengths in ([], [2**40], [2**63], [2**63, 2**63], [4, 5], [4] * 5, [2**64 - 1, 5, 1, 1]):
            calls.append(
                (f"{verb.name} {lengths}", lambda v=verb, n=lengths: run(v, x, all_of, part_lengths=n)),
            )
    return [("accepted", name) for name, call in calls if not refused(call)]


def refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except ddl.InvalidArgument:
        return True
    return False


def wrong_numbers_and_right_ones() -> Tuple[List[Tuple[str, str]], float]:
    wrong = wrong_numbers()
    return wrong, float(ddl.allreduce(np.ones(5), op=ddl.Sum)[4])


@pytest.mark.processes
def test_numbers_that_name_nothing_are_refused() -> None:
    assert ranks.run(2, wrong_numbers_and_right_ones) == [([], 2.0)] * 2


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"rank": 2}, "rank 2 of 2"),
        ({"rank": -1}, "rank -1 of 2"),
        ({"size": 0}, "rank 0 of 0"),
        ({"size": -5}, "rank 0 of -5"),
        ({"timeout": float("nan")}, "timeout: nan"),
        ({"timeout": float("inf")}, "timeout: inf"),
        ({"timeout": -1.0}, "timeout: -1"),
        ({"spin_us": float("nan")}, "spin_us: nan"),
        ({"connections": 0}, "0 connections"),
        ({"connections": 17}, "17 connections"),
    ],
)
def test_a_communicator_of_wrong_numbers_is_refused(changed: Any, error: str) -> None:
    with pytest.raises(ddl.InvalidArgument, match=re.escape(error)):
        _core.Communicator(**{"rank": 0, "size": 2, "timeout": 1.0, "spin_us": 0.0, "yield_us": 0.0, **changed})


def test_a_communicator_that_was_not_initialised_is_refused() -> None:
    with pytest.raises(ddl.InvalidArgument, match="__init__ was not called"):
        _core.Communicator.__new__(_core.Communicator).call(Collective.ALLREDUCE, np.ones(1), np.ones(1), 0, 0)


#: What a copy to a peer has besides its kind.
TO_PEER: Any = {"peers": [1], "dst_blocks": [], "remotes": [_core.Remote(0, [0])]}


def plan(**changed: Any) -> _core.Plan:
    """A plan of one rank: one copy from input to output; or one that differs from it."""
    step = {"kind": 7, "src": 0, "dst": 1, "final": False, "onto": False, "after_sends": False, "phase": 0, "peers": []}
    step.update(src_blocks=[0], dst_blocks=[0], remotes=[])
    step.update(changed.pop("step", {}))
    fields: Any = {
        **{"rank": 0, "size": 2, "split": True, "parts": 1, "tables": [[0], []], "own_tables": [0, 0, 1]},
        **{"exposed": [[False], [False], []], "channels": [[_core.Step(**step)]]},
    }
    return _core.Plan(**{**fields, **changed})


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"parts": 0}, "no parts"),
        ({"wire": 9}, "codec 9"),
        ({"own_tables": [0, 0, 2]}, "table 2"),
        ({"channels": [[]] * 5}, "5 channels"),
        ({"step": {"kind": 0}}, "kind of step 0"),
        ({"step": {"kind": 10}}, "kind of step 10"),
        ({"step": {"src": 3}}, "buffer 3"),
        ({"step": {"dst": -1}}, "buffer -1"),
        ({"step": {"onto": True}}, "a step of kind 7 that adds onto its target"),
        ({"step": {"pull": True}}, "a step that a peer may do instead, of kind 7"),
        (
            {"step": {"kind": 6, "pull": True, "src": 1, **TO_PEER}},
            "a step that a peer may do instead, of what is no input",
        ),
        ({"step": {"kind": 8, "phase": 255, "src_blocks": [], "dst_blocks": []}}, "phase 255"),
        ({"step": {"src_blocks": [1]}}, "source block 1 of 1"),
        ({"step": {"src_blocks": []}}, "different lengths"),
        ({"step": {"kind": 1, "peers": [2], "dst_blocks": []}}, "peer 2"),
        ({"step": {"kind": 1, "peers": [0], "dst_blocks": []}}, "peer 0"),
        ({"step": {"kind": 5, "src_blocks": []}}, "without its peers' side"),
        (
            {"step": {"kind": 5, "peers": [1], "src_blocks": [], "remotes": [_core.Remote(0, [])]}},
            "peers have other blocks",
        ),
        ({"step": {"kind": 5, "peers": [1], "src_blocks": [], "remotes": [_core.Remote(7, [0])]}}, "remote table 7"),
    ],
)
def test_a_malformed_plan_is_refused(changed: Any, error: str) -> None:
    with pytest.raises(ddl.InternalError, match=f"malformed plan: .*{error}"):
        plan(**changed)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ({"lane": 3}, "lane 3"),
        ({"lane": -1}, "lane -1"),
        ({"in_flight": 0}, "0 pieces in flight"),
        ({"plan": None}, "a plan that is not for rank 1 of 2"),
        ({}, "a plan that is not for rank 1 of 2"),
    ],
)
def test_a_plan_of_another_communicator_is_refused(line: Any, error: str) -> None:
    core = _core.Communicator(rank=1, size=2, timeout=1, spin_us=0, yield_us=0)
    with pytest.raises((ddl.InternalError, ddl.InvalidArgument), match=error):
        choice = {"max_bytes": 2**63, "lane": 0, "piece_bytes": 0, "in_flight": 1, "plan": plan(), **line}
        core.install(Collective.BARRIER, 0, [_core.Choice(**choice)])
    core.shutdown()
