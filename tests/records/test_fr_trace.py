"""Records in the form of PyTorch's flight recorder; tests/torch/test_fr_trace.py lets its analyser read them."""

from __future__ import annotations

import pickle
import pickletools

import pytest
import recorded
from hypothesis import given
from hypothesis import strategies as st

from ddl.records.fr_trace import FORMAT, fr_traces
from ddl.records.layout import COLLECTIVES, DTYPES

ROUND = 1 << 40  #: a communicator of all ranks, after a second init


def entry_of(call, size=3):
    """The entry of a call, of a communicator of so many ranks."""
    world = recorded.communicator(0, 0, range(size), [call])
    (entry,) = fr_traces([recorded.process(0, world)])[0]["entries"]
    return entry


def test_a_dump() -> None:
    calls = [recorded.call(1), recorded.call(2, state="begun", ended=None, count=5, dtype="bfloat16")]
    dump = fr_traces([recorded.process(1, recorded.communicator(0, 1, range(3), calls))], library="ddl")[1]
    assert dump["version"] == FORMAT == "2.10"
    assert dump["pg_config"] == {"0": {"name": "0", "desc": "all ranks", "ranks": "[0, 1, 2]"}}
    last = {"last_enqueued_collective": "2", "last_started_collective": "2", "last_completed_collective": "1"}
    assert dump["pg_status"] == {"0": last}
    assert dump["entries"][1] == {
        "record_id": 2,
        "process_group": ("0", "all ranks"),
        "collective_seq_id": 2,
        "p2p_seq_id": 0,
        "op_id": 2,
        "is_p2p": False,
        "profiling_name": "ddl:all_reduce",
        "input_sizes": [[5]],
        "output_sizes": [[5]],
        "input_dtypes": ["BFloat16"],
        "output_dtypes": ["BFloat16"],
        "state": "started",
        "retired": False,
        "time_created_ns": 5_002_000_000_000,
        "time_discovered_started_ns": 5_002_000_000_000,
        "time_discovered_completed_ns": None,
        "duration_ms": None,
        "frames": [],
    }
    ended = dump["entries"][0]
    assert (ended["state"], ended["retired"]) == ("completed", True)
    assert ended["duration_ms"] == pytest.approx(1)


def test_it_is_made_of_plain_types() -> None:
    """So it can be read where there is no DDL."""
    data = pickle.dumps(fr_traces([recorded.process(0, recorded.communicator(0, 0, [0], [recorded.call(1)]))]), 2)
    assert not {opcode.name for opcode, _, _ in pickletools.genops(data)} & {"GLOBAL", "STACK_GLOBAL", "REDUCE"}


@pytest.mark.parametrize(
    ("collective", "name", "inputs", "outputs"),
    [
        ("allreduce", "all_reduce", [[8]], [[8]]),
        ("reducescatter", "reduce_scatter", [[24]], [[8]]),
        ("allgather", "all_gather", [[8]], [[24]]),
        ("broadcast", "broadcast", [[8]], [[8]]),
        ("alltoall", "all_to_all", [[24]], [[24]]),
        ("reduce", "reduce", [[8]], [[8]]),
        ("gather", "gather", [[8]], [[24]]),
        ("scatter", "scatter", [[24]], [[8]]),
        ("barrier", "barrier", [], []),
    ],
)
def test_every_collective(collective, name, inputs, outputs) -> None:
    assert collective in COLLECTIVES
    entry = entry_of(recorded.call(1, collective))
    assert entry["profiling_name"] == f"gloo:{name}"
    assert (entry["input_sizes"], entry["output_sizes"]) == (inputs, outputs)


def test_an_exchange_of_sizes_is_called_as_what_it_is_for() -> None:
    entry = entry_of(recorded.call(7, "allgather", sizes_for="alltoall", dtype="int64", count=35))
    assert (entry["profiling_name"], entry["collective_seq_id"]) == ("gloo:all_to_all", 7)
    assert (entry["input_sizes"], entry["input_dtypes"]) == ([[105]], ["Long"])


def test_every_type() -> None:
    names = [entry_of(recorded.call(1, dtype=dtype))["input_dtypes"] for dtype in DTYPES]
    assert all(len(name) == 1 for name in names) and len({name[0] for name in names}) == len(DTYPES)
    assert names[DTYPES.index("float64")] == ["Double"] and names[DTYPES.index("uint8")] == ["Byte"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"state": "submitted", "begun": None, "ended": None}, ("scheduled", False, 5_001_000_000_000)),
        ({"state": "failed"}, ("started", True, 5_001_000_000_000)),
        ({"submitted": None, "begun": None, "ended": None}, ("completed", True, 0)),  # nobody has read the clock
    ],
)
def test_states_and_times(changes, expected) -> None:
    entry = entry_of(recorded.call(1, **changes))
    assert (entry["state"], entry["retired"], entry["time_created_ns"]) == expected


def test_messages_are_counted_from_one_rank_to_another() -> None:
    """Their numbers in the record count all messages of a rank. Ranks of a part may be in any order."""
    of_two = [
        recorded.call(1, "send", root=1),
        recorded.call(2, "recv", root=1, count=4),
        recorded.call(3, "send", root=1),
    ]
    of_zero = [recorded.call(1, "recv", root=0, state="begun", ended=None)]
    records = [
        recorded.process(rank, recorded.communicator(0, rank, range(3), [recorded.call(1)]), part)
        for rank, part in (
            (0, recorded.communicator(5, 1, (2, 0), messages=of_zero)),
            (2, recorded.communicator(5, 0, (2, 0), messages=of_two)),
        )
    ]
    traces = fr_traces(records)
    config = {"name": "5.2->0", "desc": "messages from rank 2 to rank 0", "ranks": "[0, 2]"}
    assert all(trace["pg_config"]["5.2->0"] == config for trace in traces.values())
    seen = {
        rank: [
            (entry["process_group"][0], entry["profiling_name"], entry["collective_seq_id"], entry["op_id"])
            for entry in trace["entries"]
            if entry["is_p2p"]
        ]
        for rank, trace in traces.items()
    }
    assert seen == {
        0: [("5.2->0", "gloo:recv 0<-1", 1, 1)],
        2: [
            ("5.2->0", "gloo:send 1->0", 1, 1),
            ("5.2->0", "gloo:send 1->0", 2, 3),
            ("5.0->2", "gloo:recv 1<-0", 1, 2),
        ],
    }


@pytest.mark.parametrize("lacking", [0, 1])
def test_messages_are_left_out_if_the_first_ones_are_forgotten(lacking) -> None:
    worlds = []
    for rank, (verb, peer) in enumerate([("send", 1), ("recv", 0)]):
        messages = [recorded.call(number, verb, root=peer) for number in range(3 if rank == lacking else 1, 9)]
        worlds.append(recorded.communicator(0, rank, range(2), [recorded.call(1)], messages, 8))
    traces = fr_traces([recorded.process(rank, world) for rank, world in enumerate(worlds)])
    assert [list(trace["pg_config"]) for trace in traces.values()] == [["0"], ["0"]]


def test_a_communicator_that_one_of_its_ranks_has_closed_is_left_out() -> None:
    worlds = [recorded.communicator(0, rank, range(3), [recorded.call(1)]) for rank in range(3)]
    part = [recorded.communicator(1, rank, (0, 1), [recorded.call(1)]) for rank in (0, 1)]
    records = [recorded.process(0, worlds[0], part[0]), recorded.process(1, worlds[1]), recorded.process(2, worlds[2])]
    assert list(fr_traces(records)[0]["pg_config"]) == ["0"]
    records[1] = recorded.process(1, worlds[1], part[1])
    assert list(fr_traces(records)[0]["pg_config"]) == ["0", "1"]


def test_a_part_with_ranks_on_other_hosts_begins_at_a_round_number() -> None:
    part = recorded.communicator(1, 0, (0, 1), recorded.last_calls(100, 64))
    world = recorded.communicator(0, 0, range(2), [recorded.call(1)])
    entries = fr_traces([recorded.process(0, world, part)])[0]["entries"]
    numbers = [entry["collective_seq_id"] for entry in entries if entry["process_group"][0] == "1"]
    assert numbers == list(range(65, 101))


def test_ranks_are_those_of_now() -> None:
    """A process keeps its number when others are lost. What is of an earlier generation is left out."""
    earlier = recorded.communicator(0, 2, range(3), [recorded.call(1), recorded.call(2, state="failed")])
    part_of_earlier = recorded.communicator(1, 1, (0, 2), [recorded.call(1)])
    world = recorded.communicator(ROUND, 1, (0, 2), [recorded.call(1)])
    part = recorded.communicator(ROUND + 1, 0, (2,), [recorded.call(1)])
    being_made = recorded.communicator(0, 0, (0, 1))
    behind = recorded.process(1, recorded.communicator(0, 1, range(3), [recorded.call(1)]))
    now = recorded.process(1, being_made, earlier, part_of_earlier, world, part)
    traces = fr_traces([behind, now])
    assert list(traces) == [1]
    assert {name: group["ranks"] for name, group in traces[1]["pg_config"].items()} == {
        str(ROUND): "[0, 1]",
        str(ROUND + 1): "[1]",
    }
    assert fr_traces([]) == {} == fr_traces([recorded.process(0)])


def kept_by_the_analyser(traces):
    """Its align_trace_from_beginning."""
    begin = max(trace["entries"][0]["record_id"] for trace in traces.values() if trace["entries"])
    return {
        rank: {
            (entry["process_group"][0], entry["collective_seq_id"])
            for entry in trace["entries"]
            if entry["record_id"] >= begin
        }
        for rank, trace in traces.items()
    }


@given(
    counts=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=4, max_size=4),
    forgets=st.lists(st.integers(1, 6), min_size=3, max_size=3),
    hosts=st.sampled_from([[[0, 1, 2, 3]], [[0, 1], [2, 3]]]),
)
def test_a_rank_lacks_only_what_it_has_not_called(counts, forgets, hosts) -> None:
    """Ranks are apart, and have forgotten different calls, in all communicators: of all, and of some on one host."""
    members = {0: range(4), 1: (0, 1), 2: (3, 2)}
    called = {(number, rank): counts[rank][number] for number in members for rank in members[number]}
    for rank in range(4):  # nobody calls nothing at all with others, who have forgotten a lot of it already
        called[0, rank] = max(called[0, rank], 1)
    records = {
        rank: recorded.process(
            rank,
            *(
                recorded.communicator(
                    number, list(ranks).index(rank), ranks, recorded.last_calls(called[number, rank], forgets[number])
                )
                for number, ranks in members.items()
                if rank in ranks
            ),
        )
        for rank in range(4)
    }
    traces = {}
    for host in hosts:
        traces.update(fr_traces([records[rank] for rank in host]))
    kept = kept_by_the_analyser(traces)
    for keys in kept.values():
        for group, number in keys:
            for other in members[int(group)]:
                assert (group, number) in kept[other] or called[int(group), other] < number
    newest = max(called[0, rank] for rank in range(4))
    assert all(("0", newest) in kept[rank] for rank in range(4) if called[0, rank] == newest)
