"""A user's mistake shows where the script made it: one traceback, and of DDL's own frames only the last."""

from __future__ import annotations

import functools
import logging
import traceback
from pathlib import Path
from typing import Any, Callable, List

import numpy as np
import pytest

import ddl
from ddl.text.tracebacks import brief, briefly

torch = pytest.importorskip("torch")


@pytest.fixture
def alone():
    import ddl_torch as hvd

    hvd.init()
    yield hvd
    hvd.shutdown()


def frames(call: Callable[[], Any]) -> List[str]:
    """Return the files that the traceback of ``call`` names, without this one."""
    try:
        call()
    except ddl.Error as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        assert text.count("Traceback") == 1, text
        return [frame.filename for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    raise AssertionError("it was accepted")


def test_the_traceback_of_a_mistake_is_short(alone):
    hvd = alone
    weight = torch.nn.Parameter(torch.ones(1))
    mistakes = [
        lambda: ddl.allreduce(np.array([None])),
        lambda: ddl.allreduce("abc"),
        lambda: ddl.allreduce([[1], [2, 3]]),
        lambda: ddl.allgather(np.array([None])),
        lambda: ddl.broadcast_object(object()),
        lambda: ddl.split("red"),
        lambda: ddl.allreduce_(np.ones((4, 4))[:, ::2]),
        lambda: ddl.broadcast_(np.ones(3), 7),
        lambda: ddl.alltoall([1.0], [2]),
        lambda: hvd.allreduce([1]),
        lambda: hvd.allreduce(torch.ones(3, dtype=torch.bool)),
        lambda: hvd.allreduce(torch.ones(3), op="sun"),
        lambda: hvd.allgather(torch.tensor(1.0)),
        lambda: hvd.reducescatter(torch.ones(2), op="adasum"),
        lambda: hvd.broadcast_object(object()),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op="max"),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), compression="int4"),
        lambda: ddl.init("no communicator"),
        lambda: hvd.process_set_by_id(9),
    ]
    for mistake in mistakes:
        assert len(frames(mistake)) <= 1
    assert len(frames(lambda: hvd.elastic.ObjectState(rows=(row for row in [1])))) == 2


def test_the_traceback_of_a_step_is_short(alone):
    hvd = alone
    model = torch.nn.Linear(2, 2)
    old, new = (hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0)) for _ in range(2))
    model(torch.ones(1, 2)).sum().backward()
    new.step()
    below = frames(old.step)  # the parameters are another's now
    assert [Path(name).parts[-2] for name in below] == ["optim", "text"]  # torch's own wrapper, and one of ours


def test_a_wrong_variable_is_said_once(monkeypatch):
    monkeypatch.setenv("DDL_TIMEOUT", "abc")
    assert len(frames(ddl.init)) == 1  # and one traceback, though it begins with a ValueError


def test_frames_of_others_stay():
    spaces = [{"__name__": name} for name in ("ddl.somewhere", "somebody", "ddl_torch.verbs", "ddlx")]
    inner = None
    for space in reversed(spaces):
        exec("def call(inner, error):\n    if inner: inner()\n    raise error", space)
        inner = functools.partial(space["call"], inner, ddl.InvalidArgument("here"))
    with pytest.raises(ddl.InvalidArgument) as caught:
        briefly(inner)()
    frames = [step.frame.f_globals["__name__"] for step in caught.traceback][1:]
    assert frames == ["ddl.text.tracebacks", "somebody", "ddlx"]


def test_nothing_is_hidden_of_a_bug_or_from_who_debugs(alone, caplog):
    bug = ddl.InternalError("a bug")
    kept = list(traceback.walk_tb(frames_below(bug)))
    assert len(kept) == 2
    brief(bug)
    assert list(traceback.walk_tb(bug.__traceback__)) == kept
    with caplog.at_level(logging.DEBUG, logger="ddl"):
        assert len(frames(lambda: ddl.allreduce("abc"))) > 1


def frames_below(error: ddl.Error) -> Any:
    space = {"__name__": "ddl.somewhere", "error": error}
    try:
        exec("raise error", space)
    except ddl.Error:
        return error.__traceback__
