"""The timeline is a JSON file that Chrome's tracing reads, with each operation that rank 0 has waited for."""

from __future__ import annotations

import json
import time

import pytest
import ranks

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
        time.sleep(0.05)
    hvd.allreduce(torch.ones(1), name="loss")
    hvd.allgather_async(torch.ones(1), name="rows").wait()
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
    events = [event for event in json.loads(path.read_text()) if event]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert list(rows.values()) == ["allreduce.loss", "allgather.rows", "broadcast", "bucket.0"]
    spans = {(rows[e["tid"]], e["name"]): (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    for name, verb in [("allreduce.loss", "ALLREDUCE"), ("allgather.rows", "ALLGATHER"), ("broadcast", "BROADCAST")]:
        begin, waited = spans[name, f"NEGOTIATE_{verb}"]
        assert spans[name, verb][0] == pytest.approx(begin + waited, abs=0.01) and spans[name, verb][1] > 0
    assert spans["bucket.0", "ALLREDUCE"][1] > 0
    assert spans["allreduce.loss", "NEGOTIATE_ALLREDUCE"][1] > 30e3  # microseconds: rank 1 came so late
    assert len([event for event in events if event["name"] == "CYCLE_START"]) >= 3
