"""Makes a function run its all-reduces in the same order on all ranks, and in place; finds the one that ends a step.

If neither of two all-reduces needs the other, nothing in a graph says which comes first, and Theano uses the order of
outputs. Here they run in the order in which they were made; those inside a scan run when its first one would. All
linkers of Theano follow the ``orderings`` of a feature, which operations in place need. The optimizer ``None`` ignores
them, and so does ``Function.copy``, which forgets all features.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, List, Optional, Set, Tuple

from theano.compile.builders import OpFromGraph
from theano.compile.mode import AddFeatureOptimizer, optdb
from theano.gof import InconsistencyError, Optimizer, TopoOptimizer, local_optimizer
from theano.gof.graph import ancestors, io_toposort
from theano.gof.toolbox import Feature
from theano.scan_module.scan_op import Scan

from ddl_theano.gradients import AllReduce


def _place(op: Any) -> Optional[Tuple[int, int, int]]:
    """Return the place of an all-reduce, or of the first one inside of the Op; None: there is none."""
    if isinstance(op, AllReduce):
        return op.place
    inside = op.outputs if isinstance(op, Scan) else op.local_outputs if isinstance(op, OpFromGraph) else []
    return min(
        filter(None, (_place(variable.owner.op) for variable in ancestors(inside) if variable.owner)), default=None
    )


def _in_order(fgraph: Any) -> List[Any]:
    """Return the nodes that communicate: by their places, but each after those that it needs."""
    places = {node: place for node in fgraph.apply_nodes for place in [_place(node.op)] if place is not None}
    if len(places) < 2:
        return list(places)
    needs: Dict[Any, Set[Any]] = {}
    for node in io_toposort(fgraph.inputs, fgraph.outputs):
        owners = [variable.owner for variable in node.inputs if variable.owner]
        needs[node] = {before for owner in owners for before in needs[owner] | (places.keys() & {owner})}
    waiting = [node for node in needs if node in places]
    done: List[Any] = []
    while waiting:
        done.append(min((before for before in waiting if needs[before].issubset(done)), key=places.__getitem__))
        waiting.remove(done[-1])
    return done


class InOrder(Feature):
    def orderings(self, fgraph: Any) -> Any:
        nodes = _in_order(fgraph)
        return OrderedDict((after, [before]) for before, after in zip(nodes, nodes[1:]))

    def validate(self, fgraph: Any) -> None:
        try:  # otherwise, an operation in place contradicts it
            if self.orderings(fgraph):
                fgraph.toposort()
        except ValueError as error:
            raise InconsistencyError(str(error)) from error


@local_optimizer([AllReduce], inplace=True)
def _in_place(node: Any) -> Any:
    return isinstance(node.op, AllReduce) and not node.op.in_place and node.op.overwriting(node.inputs)


class MarkEndOfStep(Optimizer):
    """Mark the last of the all-reduces that updates of shared variables need: when it has ended, a step has.

    The update follows at once. A function without updates is no step, as one that averages a metric. All-reduces inside
    a scan or an OpFromGraph are not marked: their own function does not know how often it is called.
    """

    def apply(self, fgraph: Any) -> None:
        updated = [fgraph.outputs[number] for number in fgraph.update_mapping or ()]
        needed = {variable.owner for variable in ancestors(updated)}
        last = [node for node in _in_order(fgraph) if node in needed and isinstance(node.op, AllReduce)][-1:]
        for node in last:
            node.tag.ends_step = True


_optimizer = TopoOptimizer(_in_place, failure_callback=TopoOptimizer.warn_inplace)
optdb.register("ddl_theano_order", AddFeatureOptimizer(InOrder()), 49.4, "fast_run", "fast_compile", "merge")
optdb.register("ddl_theano_in_place", _optimizer, 60, "fast_run", "inplace")
optdb.register("ddl_theano_end_of_step", MarkEndOfStep(), 101, "fast_run", "fast_compile", "merge")  # in the last graph
