"""The timeline is a JSON file that Chrome's tracing reads, with each operation that rank 0 has waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
import ranks
from said import Said

import ddl

torch = pytest.importorskip("torch")


def write(path):
    import ddl_torch as hvd

    hvd.init()
    hvd.allreduce(torch.ones(1), name="before")
    hvd.start_timeline(path, mark_cycles=True)
    if hvd.rank() == 0:
        with pytest.raises(RuntimeError, match="stop_timeline"):
            hvd.start_timeline(path)
    else:
        ranks.meet()
        time.sleep(0.05)
    loss = hvd.allreduce_async(torch.ones(1), name="loss")
    if hvd.rank() == 0:
        ranks.meet()  # it has submitted it
    hvd.synchronize(loss)
    handle = hvd.allgather_async(torch.ones(1), name="rows")
    assert torch.equal(hvd.synchronize(handle), hvd.synchronize(handle))  # once in the timeline
    hvd.broadcast(torch.ones(1))
    model = torch.nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    hvd.stop_timeline()
    hvd.allreduce(torch.ones(1), name="after")


@pytest.mark.processes
def test_a_timeline(tmp_path):
    path = tmp_path / "timeline.json"
    ranks.run(2, write, str(path))
    events = json.loads(path.read_text())
    assert events[0]["name"] == "process_name" and events[0]["args"] == {"name": "rank 0 of 2"}
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(rows.values()) == ["allreduce.loss", "allgather.rows", "broadcast", "bucket.0"]
    assert len([event for event in events if event["name"] == "ALLGATHER"]) == 1
    spans = {(rows[e["tid"]], e["name"]): (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    for name, verb in [("allreduce.loss", "ALLREDUCE"), ("allgather.rows", "ALLGATHER"), ("broadcast", "BROADCAST")]:
        begin, waited = spans[name, f"NEGOTIATE_{verb}"]
        assert spans[name, verb][0] == pytest.approx(begin + waited, abs=0.01) and spans[name, verb][1] > 0
    assert spans["bucket.0", "ALLREDUCE"][1] > 0
    assert spans["allreduce.loss", "NEGOTIATE_ALLREDUCE"][1] > 50e3  # microseconds: rank 1 came so late
    assert len([event for event in events if event["name"] == "CYCLE_START"]) >= 3


def sockets_and_devices():
    held = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    return sorted(name for name in held if "socket:" in name or name.startswith("/dev/"))


def train_on_a_full_disk():
    import ddl_torch as hvd

    handler = Said()
    before = sockets_and_devices()
    hvd.init()
    sums = [hvd.allreduce(torch.ones(1), op=hvd.Sum, name=name).item() for name in ("one", "two")]
    hvd.shutdown()
    return sums, sockets_and_devices() == before, [line for line in handler.texts if "timeline" in line]


@pytest.mark.processes
def test_a_full_disk_ends_the_timeline_and_nothing_else():
    env = {"DDL_TIMELINE": "/dev/full", "DDL_TIMELINE_CYCLES": "1"}
    first, second = ranks.run(2, train_on_a_full_disk, env=env, initialise=False)
    assert first[:2] == second[:2] == ([2, 2], True)
    assert len(first[2]) == 1 and "/dev/full ends here" in first[2][0] and not second[2]


def begin_without_a_file():
    try:
        ddl.init()
    except (ddl.ConfigError, ddl.RendezvousError) as error:
        return type(error), ddl.is_initialized()


@pytest.mark.processes
def test_a_timeline_that_cannot_be_begun_fails_on_all_ranks(tmp_path):
    env = {"DDL_TIMELINE": str(tmp_path / "nowhere" / "file"), "DDL_START_TIMEOUT": "1"}
    answers = ranks.run(2, begin_without_a_file, env=env, initialise=False)
    assert answers == [(ddl.ConfigError, False), (ddl.RendezvousError, False)]


FORKS = """
import os, sys
from ddl.negotiation import timeline
timeline.start(sys.argv[1], mark_cycles=True)
timeline.active().cycle()
child = os.fork()
if child == 0:
    assert timeline.active() is None
    timeline.stop()
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
timeline.active().cycle()
assert open(sys.argv[1]).read().count("CYCLE_START") == 2, "it is written at once"
timeline.stop()
"""


@pytest.mark.processes
def test_a_forked_child_writes_nothing(tmp_path):
    path = tmp_path / "timeline.json"
    subprocess.run([sys.executable, "-W", "error", "-c", FORKS, str(path)], check=True, timeout=240)
    assert [event["name"] for event in json.loads(path.read_text())] == ["process_name", "CYCLE_START", "CYCLE_START"]


def train_by_ddp(hooked):
    import torch.distributed as dist

    import ddl_torch

    ddl_torch.init()
    store = dist.FileStore(f"{os.environ['RANKS_FOLDER']}/store", 2)
    dist.init_process_group("gloo" if hooked else "ddl", store=store, rank=ddl.rank(), world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    if hooked:
        model.register_comm_hook(None, ddl_torch.ddp_hook)
    for _ in range(2):
        model(torch.ones(3)).sum().backward()
    if not hooked:
        dist.barrier()
        dist.all_reduce(torch.ones(2), async_op=True).wait()
    dist.destroy_process_group()
    ddl.shutdown()


@pytest.mark.processes
@pytest.mark.parametrize("hooked", [False, True])
def test_a_timeline_of_ddp(tmp_path, hooked):
    path = tmp_path / "timeline.json"
    ranks.run(2, train_by_ddp, hooked, env={"DDL_TIMELINE": str(path)}, initialise=False)
    events = json.loads(path.read_text())
    assert all({"ph", "name", "pid", "tid", "ts"} <= event.keys() for event in events)
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [(rows[event["tid"]], event["name"]) for event in events if event["ph"] == "X"]
    if hooked:
        assert spans == 2 * [("bucket.0", "ALLREDUCE")]
    else:
        assert spans.count(("allreduce of default_pg", "ALLREDUCE")) >= 3  # of a bucket in each step, and the last one
        assert ("barrier of default_pg", "BARRIER") in spans
