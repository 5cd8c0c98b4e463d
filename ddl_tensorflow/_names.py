"""The name by which all ranks know an op: from the graph that it is in, and from the place where TensorFlow runs it.

One op may run in several places at once: in iterations of a loop that do not need one another, or where a function is
called twice. Ranks may come to these in different orders, so each has a name of its own: that of the op, in front of it
the calls that lead to it, and behind it the number of the iteration. It depends only on the program: not on the order
in which functions were traced, and not on how often.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any, Callable, Optional, Tuple, TypeVar

import tensorflow as tf

__all__ = ["ITERATIONS", "OpName", "Place", "gradient_name", "name_here", "op_name", "part_name", "run_at"]

T = TypeVar("T")

#: As many iterations of a loop have names of their own; TensorFlow runs 10 at once, if nobody says otherwise.
ITERATIONS = 16

#: In the name of a node: what a condition or a loop was replaced by, with a number that depends on the whole graph.
_INSIDE = re.compile(r"/(?:body|cond|then|else|branch\d*)/_\d+/")


class OpName(str):
    """A name that also says where the op is run; other names are what the user says they are."""

    __slots__ = ()


def op_name(name: Optional[str], verb: str, ignore_name_scope: bool = False) -> Optional[str]:
    """Return the name of an op that is made now; None: ranks pair those without in the order of their calls.

    Eagerly it is ``name``. In a graph, a name that is there already gets a number, as TensorFlow's own ops do; without
    a name it is made of the function's and ``verb``. The scope is in front. With
    ``ignore_name_scope`` only ``name`` counts.
    """
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    if name is not None and ignore_name_scope:
        with graph.name_scope(None):
            return str(graph.unique_name(name))
    own = str(graph.unique_name(name or f"ddl_{verb}"))
    return OpName(own if name is not None else "/".join([*_function(graph), own]))


def gradient_name(name: Optional[str]) -> Optional[str]:
    """Return the name of an op of the gradient of that of ``name``. In a graph, that may be taken several times."""
    if name is None:
        return None
    result = f"{name}.gradient"
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        with graph.name_scope(None):
            result = str(graph.unique_name(result))
    return type(name)(result)


def part_name(name: Optional[str], part: str) -> Optional[str]:
    """Return the name of one of several operations that are those of ``name``."""
    return None if name is None else type(name)(f"{name}.{part}")


def _function(graph: Any) -> Tuple[str, ...]:
    """Return the name of the function that a graph is, or is a part of: then also which branches of conditions it is.

    The rest of a part's name is that of its op, which is in the scope, and a number that this process has counted up.
    """
    if not graph.building_function:
        return ()
    kinds = {kind.__name__ for kind in type(graph).__mro__}
    if "CondBranchFuncGraph" in kinds:
        return (*_function(graph.outer_graph), re.sub(r"_\d+$", "", graph.name).rpartition("_")[2])
    if kinds & {"WhileBodyFuncGraph", "WhileCondFuncGraph"}:
        return _function(graph.outer_graph)
    return (graph.name,)


class Place:
    """Where TensorFlow runs an op: ``calls`` that lead to it, and which ``turn`` of a loop (empty: none, the first)."""

    __slots__ = ("calls", "turn")

    def __init__(self, calls: str, turn: str) -> None:
        self.calls = calls
        self.turn = turn

    @classmethod
    @functools.lru_cache(maxsize=4096)
    def of(cls, node: str, op: str, loop: int, iteration: int) -> Place:
        """Return the place of a node that was made of ``op`` when its function became a part of another graph.

        ``loop`` differs for each iteration of an outer loop. Iterations are numbered modulo ``ITERATIONS``: a loop
        would otherwise have more names than ranks remember.
        """
        *outer, last = _INSIDE.split(node)
        calls = [last[: -len(op)].rstrip("/")] if last.endswith(op) else []
        for scope in reversed(outer):  # mostly it is the scope of what is in it
            if not last.startswith(f"{scope}/"):
                calls.insert(0, scope)
            last = scope
        turn = [str(iteration % ITERATIONS)] if iteration > 0 else []
        if node.count("/body/_") > 1:  # a loop in a loop
            turn = [f"{loop:x}", *turn]
        return cls("/".join(filter(None, calls)), ".".join(turn))


class _CurrentPlace(threading.local):
    place: Optional[Place] = None


_now = _CurrentPlace()


def run_at(place: Optional[Place], function: Callable[..., T], *arguments: Any) -> T:
    """Return ``function(*arguments)``; this thread runs an op at ``place`` meanwhile."""
    before, _now.place = _now.place, place
    try:
        return function(*arguments)
    finally:
        _now.place = before


def name_here(name: Optional[str]) -> Optional[str]:
    """Return the name of the operation for which an op of that name is run now, by this thread."""
    place = _now.place
    if name is None or place is None:
        return name
    full = f"{place.calls}/{name}" if place.calls and isinstance(name, OpName) else str(name)
    return f"{full}[{place.turn}]" if place.turn else full
