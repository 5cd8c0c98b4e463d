"""What a real store's machines were told is told to fresh ones: they must answer alike, in every single turn.

So the machines depend on nothing else: no clock, no order of a set, no thread. That is what makes the simulated world
of tests/simulation speak of real jobs.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple
from unittest import mock

import pytest
from elastic import test_generations
from elastic.elastic_job import ElasticJob

from ddl.store.membership.membership import Membership
from ddl.store.verdict import JobVerdicts

#: What the store's loop calls (ddl/store/server.py).
EVENTS: Dict[type, Tuple[str, ...]] = {
    Membership: ("received", "gone", "left", "lost", "remove", "tick", "next_deadline", "why_absent"),
    JobVerdicts: ("joined", "dropped", "lost", "received", "tick", "next_deadline", "renumber", "is_present"),
}


class TracedCall(NamedTuple):
    """A call of a machine, and what it returned."""

    machine: int
    kind: type
    method: str
    arguments: Tuple[Any, ...]
    options: Dict[str, Any]
    answer: Any


@contextlib.contextmanager
def recorded(trace: List[TracedCall]) -> Iterator[None]:
    """Note all calls of machines from outside, in their order."""
    inside: List[int] = []  # machines that are being called: they also call themselves

    def noted(kind: type, method: str) -> Callable[..., Any]:
        original = getattr(kind, method)

        @functools.wraps(original)
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            if id(self) in inside:
                return original(self, *arguments, **options)
            given = copy.deepcopy((arguments, options))
            inside.append(id(self))
            try:
                answer = original(self, *arguments, **options)
            finally:
                inside.pop()
            trace.append(TracedCall(id(self), kind, method, *given, copy.deepcopy(answer)))
            return answer

        return call

    with contextlib.ExitStack() as stack:
        for kind, methods in EVENTS.items():
            for method in ("__init__", *methods):
                stack.enter_context(mock.patch.object(kind, method, noted(kind, method)))
        yield


def replayed(trace: List[TracedCall]) -> Dict[int, Any]:
    """Call fresh machines alike; return them, by the numbers that their originals have in the trace."""
    machines: Dict[int, Any] = {}
    for number, call in enumerate(trace):
        arguments, options = copy.deepcopy((call.arguments, call.options))
        if call.method == "__init__":
            machines[call.machine] = call.kind(*arguments, **options)
            continue
        answer = getattr(machines[call.machine], call.method)(*arguments, **options)
        assert answer == call.answer, f"call {number}: {call}"
    return machines


def test_fresh_machines_answer_as_those_of_a_real_job() -> None:
    trace: List[TracedCall] = []
    with recorded(trace), ElasticJob(4, test_generations.leave_when_asked) as job:
        job.wait_until(5)
        job.lose(1)
        job.gain(steps=5)
        job.leaving.append(2)
        job.store.remove(2)
        job.wait_for_generation(3)
        job.lose(0)
        job.wait_until(max(job.steps().values()) + 5, ranks_there=2)
        assert sorted(job.finish()) == [2, 3, 4]
        membership = job.store._membership
    calls = {(call.kind, call.method) for call in trace}
    assert calls >= {(Membership, method) for method in ("received", "gone", "remove", "tick")}
    assert calls >= {(JobVerdicts, method) for method in ("received", "joined", "dropped", "tick")}
    machines = replayed(trace)
    fresh = machines[id(membership)]
    assert membership is not None and membership.record.generation == 4
    assert (fresh.record, fresh.phase, fresh.ended) == (membership.record, membership.phase, membership.ended)


def test_a_machine_that_is_not_told_all_answers_otherwise() -> None:
    """The comparison can fail."""
    trace: List[TracedCall] = []
    with recorded(trace), ElasticJob(3, test_generations.train) as job:
        job.wait_until(5)
        job.lose(1)
        job.finish()
    gone = next(call for call in trace if call.method in ("gone", "lost") and call.kind is Membership)
    with pytest.raises(AssertionError, match="call "):
        replayed([call for call in trace if call is not gone])
