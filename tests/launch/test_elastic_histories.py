"""Any history of an elastic job: whatever comes in whatever order, elastic_model.py's rules hold after every event."""

from __future__ import annotations

from typing import Optional

from hypothesis import given, settings
from hypothesis import strategies as st
from launch.elastic_model import ElasticModel

from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.job.elastic_events import DiscoveryFailed, HostFailed, HostLeaves, HostReturned

HOSTS = ("a", "b", "c")


@st.composite
def jobs(draw: st.DrawFn) -> ElasticModel:
    size = draw(st.integers(1, 4))
    options = ElasticOptions(
        min_np=draw(st.integers(1, size)),
        max_np=draw(st.none() | st.integers(size, 6)),
        timeout=draw(st.sampled_from([1.0, 30.0, 600.0])),
        discovery_script=draw(st.sampled_from(["", "./hosts.sh"])),
        reset_limit=draw(st.none() | st.integers(0, 5)),
        cooldown_range=draw(st.none() | st.just((1.0, 20.0))),
        max_restarts=draw(st.none() | st.integers(0, 3)),
        leave_failed_hosts=draw(st.booleans()),
        returning=tuple(draw(st.sets(st.sampled_from(HOSTS)))),
    )
    return ElasticModel(options, size, lambda: draw(st.floats(0, 1)))


def act(job: ElasticModel, data: st.DataObject) -> None:
    """Let something happen that can happen now."""
    alive = sorted(job.alive)
    kinds = ["see", "time", "deadline", "script"] + ["well", "fail", "form", "form", "host", "leaves"] * bool(alive)
    kinds += ["returns"] * bool(job.lost)
    kind = data.draw(st.sampled_from(kinds), label="kind")
    if kind == "see":
        slots = {name: data.draw(st.integers(0, 3), label=name) for name in HOSTS}
        job.see(" ".join(f"{name}:{count}" for name, count in slots.items() if count))
    elif kind == "time":
        job.advance(data.draw(st.sampled_from([0.0, 0.5, 7.0]), label="seconds"))
    elif kind == "deadline":
        deadline = job.machine.next_deadline()
        job.advance(0.0 if deadline is None else deadline - job.now)
    elif kind == "script":
        job.handle(DiscoveryFailed(data.draw(st.sampled_from(["status", "hang"])), "it has failed"))
    elif kind == "host":
        job.handle(HostFailed(job.alive[data.draw(st.sampled_from(alive))].host, "it is gone"))
    elif kind == "leaves":
        job.handle(HostLeaves(job.alive[data.draw(st.sampled_from(alive))].host, "it was asked to"))
    elif kind == "returns":
        job.handle(HostReturned(data.draw(st.sampled_from(sorted(job.lost)))))
    elif kind == "form":
        members = data.draw(st.lists(st.sampled_from(alive), unique=True, min_size=1), label="members")
        job.form(data.draw(st.integers(0, 8), label="generation"), *members)
    else:
        job.end(data.draw(st.sampled_from(alive), label="who"), well=kind == "well")


@given(jobs(), st.data())
@settings(max_examples=400, deadline=None)
def test_any_history(job: ElasticModel, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 40), label="events")):
        act(job, data)


@given(jobs(), st.data())
@settings(max_examples=200, deadline=None)
def test_left_alone_every_job_ends_or_has_enough_ranks(job: ElasticModel, data: st.DataObject) -> None:
    """Nothing comes any more, but the newcomers become ranks, and what is let go leaves when it is forced to."""
    for _ in range(data.draw(st.integers(1, 20), label="events")):
        act(job, data)
    for _ in range(200):
        for number in [n for n in job.leaving if n in job.alive]:
            job.end(number)
        deadline: Optional[float] = job.machine.next_deadline()
        if deadline is None:
            break
        job.advance(deadline - job.now)
        if job.machine.problem:
            break
        if job.alive:
            job.form(0, *job.alive)
    machine = job.machine
    assert machine.problem or machine.finishing or (machine.begun and machine.running >= 1)
    assert machine.next_deadline() is None
