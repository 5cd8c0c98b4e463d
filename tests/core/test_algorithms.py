"""Every algorithm and layout that can be forced, checked on all collectives; and the table that chooses among them."""

from __future__ import annotations

import itertools
import os
from typing import Any, List, Sequence, Tuple

import pytest
import ranks
from core.everything import on_world
from core.jobs import connected

import ddl
from ddl._comm.group import discover
from ddl.plan import algorithms, build
from ddl.plan.ir import Collective
from ddl.topology import Topology
from ddl.tuning.select import select

SEPARATE = ["ring", "recursive_doubling", "leaders", "tree", "multiring"]
PLANNED = [collective for collective in Collective if collective not in (Collective.SEND, Collective.RECV)]


def counts(size: int) -> List[int]:
    return [0, 1, size - 1, size, size + 1, 107, 4099, 270_011]


def with_each(algorithms: Sequence[str]) -> List[int]:
    """Be in a job of each algorithm, one after the other, in the same processes."""
    rounds = []
    for algorithm in algorithms:
        os.environ["DDL_ALGORITHM"] = algorithm
        ddl.init()
        try:
            assert ddl.world()._group.job.settings.algorithm == algorithm
            rounds.append(on_world(counts(ddl.size())))
        except BaseException as error:
            raise AssertionError(f"with {algorithm}: {error!r}") from error
        ddl.shutdown()
    return rounds


@pytest.mark.few(4)
@pytest.mark.processes
@pytest.mark.parametrize(
    ("transport", "size"),
    # Two ranks of "hybrid" are on one host: that is "shared".
    [*itertools.product(["shared", "tcp"], [2, 3, 4]), ("hybrid", 3), ("hybrid", 4)],
)
def test_forced_algorithm(transport: str, size: int) -> None:
    answers = ranks.run(size, with_each, SEPARATE, initialise=False, **connected(transport))
    assert answers == [[8] * len(SEPARATE)] * size


@pytest.mark.few(2)
@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_forced_algorithm_in_shared_memory(size: int) -> None:
    assert ranks.run(size, with_each, ["eager", "direct"], initialise=False) == [[8, 8]] * size


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("size", "dimensions"), [(6, "2x3"), (8, "2x4"), (8, "2x2x2")])
def test_leaders_of_several_hosts(size: int, dimensions: str) -> None:
    job = connected("hybrid", DDL_ALGORITHM="leaders", DDL_DIMENSIONS=dimensions)
    assert ranks.run(size, on_world, counts(size), **job) == [8] * size


LAYOUTS = [
    *[(4, transport, dims) for transport in ("shared", "tcp", "hybrid") for dims in ("2x2", "4x1", "1x4", "4")],
    *[(6, transport, dims) for transport in ("tcp", "hybrid") for dims in ("3x2", "2x3")],
    (6, "interleaved", "3x2"),
    (4, "uneven", "2x2"),
    *[(8, transport, "2x2x2") for transport in ("shared", "tcp", "hybrid")],
]


@pytest.mark.few(2)
@pytest.mark.processes
@pytest.mark.parametrize(("size", "transport", "dimensions"), LAYOUTS)
def test_dimensions(size: int, transport: str, dimensions: str) -> None:
    job = connected(transport, DDL_ALGORITHM="multiring", DDL_DIMENSIONS=dimensions)
    counts = [0, 1, size - 1, size + 1, 4099, 70_003]
    assert ranks.run(size, on_world, counts, **job) == [6] * size


def init_again() -> Tuple[str, str, bool]:
    try:
        ddl.init()
    except ddl.ConfigError as error:
        return "ConfigError", str(error), ddl.is_initialized()
    return "initialised", "", ddl.is_initialized()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("DDL_DIMENSIONS", "3x2", ["3x2", "6", "4 ranks"]),
        ("DDL_DIMENSIONS", "2y2", ["DDL_DIMENSIONS", "2y2"]),
        ("DDL_TIMEOUT", "soon", ["DDL_TIMEOUT", "soon"]),
        ("DDL_SHM", "maybe", ["DDL_SHM", "maybe"]),
    ],
)
def test_wrong_settings_are_refused_by_init(variable: str, value: str, named: List[str]) -> None:
    answers: List[Any] = ranks.run(4, init_again, initialise=False, env={variable: value})
    for kind, text, initialised in answers:
        assert kind == "ConfigError" and not initialised
        assert all(name in text for name in named), text


def unknown_algorithm() -> str:
    try:
        ddl.allreduce(1.0)
    except ddl.ConfigError as error:
        return str(error)
    return "accepted"


@pytest.mark.processes
def test_unknown_algorithm_is_refused() -> None:
    for text in ranks.run(2, unknown_algorithm, env={"DDL_ALGORITHM": "telepathy"}):
        assert "DDL_ALGORITHM" in text and "telepathy" in text and "multiring" in text


# --- the table, without processes ---

TOPOLOGIES = [
    Topology.flat(1, shared=True),
    Topology.flat(4, shared=True),
    Topology.flat(4),
    Topology.parse("2x2", shared=1),
    Topology.parse("3x2x2", shared=1),
    Topology.parse("2x2", shared=2),
]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("collective", PLANNED)
def test_every_line_can_be_planned(collective: Collective, topology: Topology) -> None:
    lines = select(collective, topology)
    limits = [line.max_bytes for line in lines]
    assert limits == sorted(limits) and limits[-1] >= 2**63 - 1
    for line in lines:
        assert line.algorithm in algorithms(collective)
        assert build(collective, line.algorithm, topology, 0).size == topology.size
        assert line.piece_bytes >= 0


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("collective", PLANNED)
def test_a_forced_algorithm_serves_where_it_can(collective: Collective, topology: Topology) -> None:
    for algorithm in SEPARATE:
        used = {line.algorithm for line in select(collective, topology, algorithm)}
        if algorithm in algorithms(collective):
            assert used == {algorithm}
        else:
            assert used == {line.algorithm for line in select(collective, topology)}


def test_a_forced_algorithm_must_exist() -> None:
    with pytest.raises(ddl.ConfigError, match="DDL_ALGORITHM='nonsense'.*recursive_doubling"):
        select(Collective.BARRIER, Topology.flat(2), "nonsense")


@pytest.mark.parametrize(
    ("hosts", "dimensions", "text", "local_size", "order"),
    [
        ([[0, 1, 2, 3]], "", "4", 4, (0, 1, 2, 3)),
        ([[0], [1], [2]], "", "3", 1, (0, 1, 2)),
        ([[0, 1], [2, 3], [4, 5]], "", "2x3", 2, (0, 1, 2, 3, 4, 5)),
        ([[0, 2], [1, 3]], "", "2x2", 2, (0, 2, 1, 3)),
        ([[0], [1, 2, 3]], "", "4", 1, (0, 1, 2, 3)),  # uneven hosts: flat
        ([[0, 3], [1], [2]], "", "4", 1, (0, 3, 1, 2)),
        ([[0, 1, 2, 3]], "2x2", "2x2", 4, (0, 1, 2, 3)),
        ([[0, 1], [2, 3]], "2x2", "2x2", 2, (0, 1, 2, 3)),
        ([[0, 1], [2, 3]], "4x1", "4x1", 1, (0, 1, 2, 3)),
        ([[0, 1], [2, 3]], "1x4", "1x4", 1, (0, 1, 2, 3)),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], "2x2x2", "2x2x2", 4, tuple(range(8))),
        ([[0, 1, 2], [3, 4, 5]], "2x3", "2x3", 1, tuple(range(6))),  # 2 straddles the hosts of 3
        ([[0]], "", "1", 1, (0,)),
    ],
)
def test_discover(hosts: Any, dimensions: str, text: str, local_size: int, order: Tuple[int, ...]) -> None:
    topology = discover(hosts, dimensions)
    assert str(topology) == text
    assert topology.local_size == local_size
    assert topology.order == order
    for rank in range(topology.size):  # who is said to share memory does
        host = next(host for host in hosts if rank in host)
        assert set(topology.local_group(rank)) <= set(host)


def test_discover_refuses_a_wrong_product() -> None:
    with pytest.raises(ddl.ConfigError, match="3x2.*multiply to 6.*4 ranks"):
        discover([[0, 1], [2, 3]], "3x2")
