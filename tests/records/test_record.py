"""What a process records: the bytes are as the core lays them out, and anybody on the host reads the same from them."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import threading
import time

import numpy as np
import pytest
import ranks
from own_record import own_record

from ddl import _core
from ddl.errors import ProtocolError
from ddl.plan.ir import Collective
from ddl.records import layout
from ddl.records.memory import ProcessMemory, processes_with_records
from ddl.records.sample import sample_of
from ddl.reduce_op import ReduceOp


def test_offsets_are_those_of_the_core() -> None:
    places = _core.record_layout()
    assert places["kRecordVersion"] == layout.VERSION and places["kRootBytes"] == layout.ROOT_BYTES
    assert places["Entry"] == layout._ENTRY.size and places["Record"] == layout._RECORD_BYTES
    assert places["Traffic"] == layout._TRAFFIC.size
    assert places["kRecords"] * 8 == layout._RECORDS.size
    assert places["RecordRoot.records"] == layout._RECORDS_AT
    assert places["RecordRoot.steps"] == layout._STEPS_AT
    assert 8 + places["bytes of RecordRoot.step_ends"] == layout._STEPS.size
    assert layout._STEPS_AT + layout._STEPS.size <= layout.ROOT_BYTES
    assert places["Record.plan_names"] == layout._PLAN_NAMES_AT
    assert places["kPlanNameBytes"] == layout._PLAN_NAME_BYTES
    assert places["Record.failure"] + 4 + 512 == layout._RECORD.size == places["Record.plan_names"]


def test_names_are_those_of_the_wire() -> None:
    assert layout.COLLECTIVES[1:] == tuple(collective.name.lower() for collective in Collective)
    assert len(layout.COLLECTIVES) == 1 + len(Collective)
    of_the_core = tuple(op.name.lower() for op in sorted(ReduceOp) if op is not ReduceOp.Adasum)
    assert of_the_core == layout.OPS


def test_memory_without_a_record_is_refused() -> None:
    with pytest.raises(ProtocolError, match="has not made a communicator yet"):
        layout.read_process(lambda offset, size: bytes(size))
    with pytest.raises(ProtocolError, match="has version 99, this DDL reads version 4"):
        layout.read_process(lambda offset, size: (b"ddl-rec\0\x63\0\0\0").ljust(size, b"\0"))


def test_a_broken_record_takes_no_memory_and_no_terminal() -> None:
    memory = bytearray(3 * layout.ROOT_BYTES)
    layout._ROOT.pack_into(memory, 0, b"ddl-rec\0", layout.VERSION, 42, 0, 0, 0, 4, b"nope")
    layout._RECORDS.pack_into(memory, layout._RECORDS_AT, layout.ROOT_BYTES, *[0] * 255)
    fields = [0] * 17 + [0, 1, 0, 0, 10_000, 11_000, 12_000, 12_000, 64, 64, 0, 6, b"\x1b[2Jab\n"]
    layout._RECORD.pack_into(memory, layout.ROOT_BYTES, *fields)

    def read(offset, size):
        assert size < 1 << 20
        return bytes(memory[offset : offset + size])

    record = layout.read_process(read)
    assert record.identity == {} and record.communicators[0].failure == "?[2Jab"
    fields[18] = 1 << 31
    layout._RECORD.pack_into(memory, layout.ROOT_BYTES, *fields)
    with pytest.raises(ProtocolError, match="makes no sense: rank 0 of 2147483648"):
        layout.read_process(read)


def test_steps_are_read_from_a_ring_that_is_being_written() -> None:
    """Whichever place was written last, and whether its time has been written: the times are in order."""
    memory = bytearray(layout.ROOT_BYTES)
    layout._ROOT.pack_into(memory, 0, b"ddl-rec\0", layout.VERSION, 42, 0, 0, 0, 0, b"")

    def read(count, ends):
        layout._STEPS.pack_into(memory, layout._STEPS_AT, count, *ends, *[0] * (64 - len(ends)))
        return layout.read_process(lambda offset, size: bytes(memory[offset : offset + size])).steps

    seconds = [1_000_000_000 * second for second in range(200)]
    assert read(0, []) == layout.StepsRecord(0, ())
    assert read(3, seconds[7:10]) == layout.StepsRecord(3, (7.0, 8.0, 9.0))
    assert read(3, seconds[7:9]) == layout.StepsRecord(3, (7.0, 8.0))  # the third has no time yet
    ring = [*seconds[64:70], *seconds[6:64]]  # 70 steps have ended, at 0 s, 1 s and so on
    times = tuple(float(second) for second in range(6, 70))
    assert read(70, ring) == layout.StepsRecord(70, times)
    assert read(71, ring) == layout.StepsRecord(71, times)  # step 71 is about to be written at place 6


def wait_until_asleep() -> float:
    """Return when this rank waits in its last collective, and since when it does so at the latest."""
    while own_record().communicators[0].collectives[-1].awaited is None:
        time.sleep(0.001)
    return time.monotonic()


def average_of_integers():
    import ddl

    ddl.init()
    ddl.allreduce(np.ones(5, np.int8))
    (communicator,) = own_record().communicators
    return [operation.text for operation in communicator.collectives]


def test_an_average_has_the_type_of_the_array() -> None:
    assert ranks.run(2, average_of_integers, initialise=False) == [["allreduce(5 x int8, average)"]] * 2


def all_calls():
    import ddl

    ddl.init()
    world, rank = ddl.world(), ddl.rank()
    ddl.allreduce_(np.ones(2, np.float32), op=ddl.Average)
    ddl.broadcast_(np.ones(3, np.int16), root=1)
    large = np.ones(1 << 20)
    begun = time.monotonic()
    world.allreduce_async_(large, op=ddl.Sum, name="bucket.4").wait()
    ended = time.monotonic()
    ddl.allgather(np.ones(4, np.uint8))
    if rank == 0:
        world.send(np.ones(7, np.float16), 1)
    else:
        world.recv(np.ones(7, np.float16), 0)
    if rank == 0:
        ahead = time.monotonic()
        work = ddl.barrier_async()
        asleep = wait_until_asleep()
        time.sleep(0.1)
        alone = time.monotonic() - asleep
        ranks.meet()
        work.wait()
        behind = time.monotonic()
    else:
        ranks.meet()  # rank 0 waits for this rank
        ddl.barrier()
    record = own_record()
    (communicator,) = record.communicators
    texts = [operation.text for operation in communicator.collectives]
    assert texts == [
        "allreduce(2 x float32, average)",
        "broadcast(3 x int16, root 1)",
        "allreduce(1048576 x float64, sum)",
        "allgather(sizes)",
        "allgather(uint8)",
        "barrier()",
    ]
    assert [operation.number for operation in communicator.collectives] == [1, 2, 3, 4, 5, 6]
    assert all(operation.state == "ended" for operation in communicator.collectives)
    assert all(operation.plan for operation in communicator.collectives)
    bucket = communicator.collectives[2]
    assert (bucket.label, bucket.lane) == ("bucket.4", "large")
    assert bucket.pieces == bucket.pieces_ended > 1
    assert begun <= bucket.submitted <= bucket.begun <= bucket.ended <= ended
    barrier = communicator.collectives[-1]
    if rank == 0:
        assert alone < barrier.ended - barrier.begun < behind - ahead and barrier.awaited == 1
        deadline = time.monotonic() + 60  # a lane counts its wait after it has told its caller
        while own_record().communicators[0].lanes["small"].waited <= alone and time.monotonic() < deadline:
            time.sleep(0.001)
        assert own_record().communicators[0].lanes["small"].waited > alone
    (message,) = communicator.messages
    assert message.text == ("send(7 x float16, to rank 1)" if rank == 0 else "recv(7 x float16, from rank 0)")
    assert (message.lane, message.plan, message.state) == ("messages", "message", "ended")
    assert (communicator.rank, communicator.ranks, communicator.submitted) == (rank, (0, 1), 6)
    assert sum(messages for messages, _ in communicator.sent) == ddl.metrics().sent_messages
    assert record.identity["rank"] == rank and record.identity["size"] == 2
    before, wall, after = time.monotonic(), time.time(), time.monotonic()
    assert wall - after - 0.1 < record.wall - record.monotonic < wall - before + 0.1
    ddl.shutdown()
    (communicator,) = own_record().communicators
    assert communicator.closed is not None and communicator.failure == ""


def complex_calls():
    import ddl

    ddl.init()
    for dtype in (np.complex64, np.complex128, np.complex64, np.float32):
        ddl.allreduce(np.ones(3, dtype), op=ddl.Sum)
    (communicator,) = own_record().communicators
    return [operation.text for operation in communicator.collectives]


@pytest.mark.processes
def test_complex_numbers_are_called_so() -> None:
    types = ["complex64", "complex128", "complex64", "float32"]
    assert ranks.run(2, complex_calls, initialise=False) == [[f"allreduce(3 x {t}, sum)" for t in types]] * 2
    assert (layout.ITEM_BYTES["complex64"], layout.ITEM_BYTES["complex128"]) == (8, 16)


@pytest.mark.processes
def test_every_kind_of_call() -> None:
    ranks.run(2, all_calls, initialise=False)


def notes_steps():
    """By several threads; in a second job of the same process the counter goes on, and a forked child adds nothing."""
    import ddl

    ddl.init()
    assert own_record().steps == layout.StepsRecord(0, ())
    begun = time.monotonic()
    _core.note_step()
    _core.note_step()
    steps = own_record().steps
    assert steps.count == 2 and begun <= steps.ended[0] <= steps.ended[1] <= time.monotonic()
    ddl.shutdown()
    _core.note_step()
    ddl.init()
    assert own_record().steps.count == 3
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [_core.note_step() for _ in range(250)], range(4)))
    later = own_record().steps
    assert later.count == 1003 and len(later.ended) == 64
    assert list(later.ended) == sorted(later.ended) and steps.ended[1] < later.ended[0]
    child = os.fork()
    if child == 0:
        _core.note_step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and own_record().steps == later


@pytest.mark.processes
def test_steps_are_counted() -> None:
    ranks.run(1, notes_steps, initialise=False)


def last_calls(memory: ProcessMemory):
    (communicator,) = memory.record().communicators
    return [(call.number, call.text, call.state) for call in communicator.collectives[-2:]]


def read_by_another():
    """Rank 0 reads what rank 1 records while that is stopped, and when it has been killed."""
    import ddl

    ddl.init()
    pids = ddl.world().allgather_object(os.getpid())
    ddl.allreduce_(np.ones(5, np.int32), op=ddl.Max)
    expected = own_record().communicators[0].submitted
    ranks.meet()
    if ddl.rank() == 1:
        time.sleep(1000)
    os.kill(pids[1], signal.SIGSTOP)
    memory = ProcessMemory.find(pids[1])
    assert memory is not None and memory.record().pid == pids[1]
    assert last_calls(memory)[-1] == (expected, "allreduce(5 x int32, max)", "ended")
    assert {pids[0], pids[1]} <= {other.pid for other in processes_with_records()}
    work = ddl.world().allreduce_async_(np.ones(5), name="gradient")
    wait_until_asleep()
    os.kill(pids[1], signal.SIGKILL)
    while ProcessMemory.find(pids[1]) is not None:
        time.sleep(0.01)
    assert last_calls(memory)[-1] == (expected, "allreduce(5 x int32, max)", "ended")
    memory.close()
    with pytest.raises(ddl.PeerLost):
        work.wait()
    (communicator,) = own_record().communicators
    assert communicator.failure.startswith("PeerLost: [rank 0/2 ") and "lost rank 1" in communicator.failure
    failed = communicator.collectives[-1]
    assert (failed.label, failed.state, failed.awaited) == ("gradient", "failed", 1)
    assert failed.submitted < failed.begun < failed.ended < time.monotonic()


@pytest.mark.processes
@pytest.mark.faults
def test_another_process_reads_it() -> None:
    ranks.run(2, read_by_another, initialise=False, may_die=[1])


def waits_for_the_other():
    """Rank 0 waits in an operation; what it has waited so far counts before that is over."""
    import ddl

    ddl.barrier()
    if ddl.rank() == 1:
        ranks.meet()  # rank 0 waits for this rank
        return ddl.barrier()
    ahead = time.monotonic()
    before = sample_of(own_record(), "sleeps", ahead)
    work = ddl.barrier_async()
    while own_record().communicators[0].lanes["small"].waiting_since is None:
        time.sleep(0.001)
    asleep = time.monotonic()
    time.sleep(0.1)
    moment = time.monotonic()
    now = sample_of(own_record(), "sleeps", moment)
    assert moment - asleep <= now.waited - before.waited <= moment - ahead
    assert 0 < now.under_way - before.under_way <= moment - ahead
    assert own_record().communicators[0].lanes["small"].waiting_since is not None
    ranks.meet()
    work.wait()
    after = sample_of(own_record(), "runs", time.monotonic())
    assert after.waited >= now.waited
    deadline = time.monotonic() + 100
    while own_record().communicators[0].lanes["small"].waiting_since is not None:
        assert time.monotonic() < deadline  # DDL's own thread notes the end, after it has told who waits for the work
        time.sleep(0.001)


@pytest.mark.processes
def test_a_wait_counts_before_it_is_over() -> None:
    ranks.run(2, waits_for_the_other)


def more_than_there_is_room_for():
    import ddl

    world = ddl.world()
    step = world.prepare_allreduce(np.zeros(1))
    for _ in range(3000):
        step()
    (communicator,) = own_record().communicators
    numbers = [call.number for call in communicator.collectives]
    assert numbers == list(range(communicator.submitted - 2047, communicator.submitted + 1))
    for number in range(1300):
        if ddl.rank() == 0:
            world.send(np.array([number]), 1)
        else:
            world.recv(np.array([0]), 0)
    (communicator,) = own_record().communicators
    assert [call.number for call in communicator.messages] == list(range(1300 - 1023, 1301))
    parts = [world.split(ddl.rank()) for _ in range(3)]  # of one rank each
    for part in parts:
        for _ in range(100):
            part.allreduce_(np.zeros(1))
    sizes = [len(each.collectives) for each in own_record().communicators]
    assert sizes == [2048, 64, 64, 64]


@pytest.mark.processes
def test_the_last_ones_are_kept() -> None:
    ranks.run(2, more_than_there_is_room_for)


def reading_all_the_time():
    """Whatever the moment, an entry that is read is whole."""
    import ddl

    world, looks = ddl.world(), []
    (first,) = own_record().communicators
    texts = ["broadcast(7 x uint16, root 0)", "allreduce(3 x int8, max)"]

    def look_until(over):
        while not over.is_set():
            (communicator,) = own_record().communicators
            new = [call for call in communicator.collectives if call.number > first.submitted]
            assert all(call.text == texts[call.number - first.submitted & 1] for call in new)
            looks.append(len(new))

    over = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reader = pool.submit(look_until, over)
        for _ in range(1000):
            world.allreduce_(np.zeros(3, np.int8), op=ddl.Max)
            world.broadcast_(np.zeros(7, np.uint16), root=0)
        over.set()
        reader.result()
    assert max(looks) > 0  # it has looked while they were written


@pytest.mark.slow  # the reader and the ranks want three cores; 0.6 s, or many times that on a busy machine
@pytest.mark.processes
def test_a_reader_at_any_moment() -> None:
    ranks.run(2, reading_all_the_time)
