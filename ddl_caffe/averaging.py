"""``attach``: callbacks that make a solver's steps those of one process with the batches of all ranks.

Caffe calls ``on_gradients_ready`` once in a step, before it clips, divides by iter_size, decays and updates. So an
average there is exact for every solver. Buckets of layers are sent earlier, while lower layers compute: each as soon as
``after_backward`` was called for the lowest layer that has one of its parameters, in the last of iter_size passes.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import caffe
import numpy as np

import ddl
from ddl.adapter.buckets import BUCKET_BYTES
from ddl.adapter.consistency import check_consistent
from ddl.adapter.fused_arrays import Fused, broadcast_many_
from ddl.adapter.rank_prefix import naming_rank
from ddl.adapter.step_record import note_step

__all__ = ["Averaging", "attach"]


def _arrays(gradients: List[Any], statistics: List[Any]) -> Callable[[], List[np.ndarray]]:
    """Return what asks blobs for their arrays anew in each step: views of Caffe's memory, float32."""
    return lambda: [blob.diff for blob in gradients] + [blob.data for blob in statistics]


class Averaging:
    """What is done in each step of one solver. A loop without ``solver.step`` calls the two methods itself:

    >>> averaging.on_start()
    >>> net.clear_param_diffs(), net.forward(), net.backward()
    >>> averaging.on_gradients_ready()
    >>> solver.apply_update()
    """

    def __init__(self, solver: Any, overlap: bool, bucket_bytes: int) -> None:
        self._net = solver.net  # Caffe makes a wrapper each time: this one is kept
        self._solver = f"a {type(solver).__name__}, base_lr {solver.param.base_lr:g}, max_iter {solver.param.max_iter}"
        self._overlap, self._bucket_bytes = overlap, bucket_bytes
        self._statistics: List[Any] = []
        gradients: Dict[int, Tuple[int, Any]] = {}  # by address: what layers share is complete after the lowest one
        for index, layer in reversed(list(enumerate(self._net.layers))):
            if layer.type == "BatchNorm":
                self._statistics += layer.blobs  # they have no gradients
            else:
                gradients.update({blob.diff.ctypes.data: (index, blob) for blob in layer.blobs})
        self._gradients = sorted(gradients.values(), key=lambda pair: -pair[0])
        self._buckets: Dict[int, Tuple[Fused, Any]] = {}  # by the layer that completes them, in the order of sending
        self._sent: Set[int] = set()  # those that are under way
        self._before: Optional[List[np.ndarray]] = None  # statistics as they were when all ranks got those of rank 0
        self._passes = 0  # iter_size, which a solver does not tell: counted in the first step
        self._done = -1  # passes that are done in this step; outside of steps -1

    @naming_rank
    def broadcast(self) -> None:
        """Give all ranks the weights and statistics of rank 0, if that is still to be done. Collective, blocking."""
        if self._before is None:
            broadcast_many_([blob.data for blob in [*(blob for _, blob in self._gradients), *self._statistics]])
            self._before = [blob.data.copy() for blob in self._statistics]

    def on_start(self) -> None:
        """Begin a step; the first one with a broadcast."""
        self.broadcast()
        self._done = 0

    def after_backward(self, index: int) -> None:
        if self._overlap and index in self._buckets and self._done == self._passes - 1:
            fused, arrays = self._buckets[index]
            fused.start(arrays())
            self._sent.add(index)
        if index == 0 and self._done >= 0:
            self._done += 1

    @naming_rank
    def on_gradients_ready(self) -> None:
        """Average gradients and what BatchNorm has gathered, in place. Collective, blocking.

        Raises ``InvalidArgument`` if the solvers of the ranks differ, ``InvalidState`` without an ``on_start``, and
        what an all-reduce raises, as ``PeerLost``: out of ``solver.step``, too.
        """
        if self._done < 0:
            raise ddl.InvalidState("on_gradients_ready: call on_start first, before the forward pass")
        if not self._buckets:
            self._make_buckets()
        self._done = -1
        for index, (fused, arrays) in self._buckets.items():
            if index in self._sent:
                self._sent.remove(index)
                fused.wait()
            else:
                fused(arrays())
        note_step()  # what is left of it, Caffe does without another word

    def _make_buckets(self) -> None:
        self._passes = self._done
        moved = [not np.array_equal(blob.data, old) for blob, old in zip(self._statistics, self._before or [])]
        lines = [self._solver, f"iter_size {self._passes}"]
        votes = check_consistent(ddl.world(), "attach", lines, "Make the same solver on all ranks.", own=moved)
        # What is frozen (use_global_stats) stays as it is: an average of the same can differ in its last bit.
        moving = [blob for blob, *theirs in zip(self._statistics, *votes) if any(theirs)]
        waiting: List[Any] = []
        for (index, blob), (following, _) in zip(self._gradients, [*self._gradients[1:], (-1, None)]):
            waiting.append(blob)
            if following < 0 or (following < index and sum(b.diff.nbytes for b in waiting) >= self._bucket_bytes):
                arrays = _arrays(waiting, moving if following < 0 else [])
                self._buckets[index] = Fused(ddl.world(), arrays(), name=f"gradients.{index}"), arrays
                waiting = []


def _solve() -> None:
    raise ddl.InvalidState("solve: at its end Caffe aborts all ranks but 0; use solver.step, then ddl_caffe.snapshot")


@naming_rank
def attach(solver: Any, *, overlap: bool = True, bucket_bytes: int = BUCKET_BYTES) -> Averaging:
    """Make each step of ``solver`` one of all ranks: weights of rank 0 at first, averages of gradients from then on.

    For every type of solver, with iter_size, clipping, decay and shared parameters. Statistics of BatchNorm are
    averaged, too, so that what is tested and saved is of all ranks. Their weights stay equal, bit for bit. Called on
    all ranks, before the first step. ``overlap``: send while lower layers compute, in buckets of ``bucket_bytes`` (0:
    each layer by itself). Raises ``InvalidArgument``, also for a solver made before ``ddl_caffe.init``;
    ``InvalidState`` before ``ddl.init``.
    """
    if (caffe.solver_count(), caffe.solver_rank()) != (ddl.size(), ddl.rank()):
        raise ddl.InvalidArgument(
            f"attach: Caffe takes this for solver {caffe.solver_rank()} of {caffe.solver_count()}, so it would read "
            "and save what is not its own; call ddl_caffe.init() before you make the solver"
        )
    if not isinstance(solver, caffe._caffe.Solver):
        raise ddl.InvalidArgument(f"attach: a {type(solver).__name__} is no solver of Caffe; see caffe.get_solver")
    if hasattr(solver, "_ddl"):
        raise ddl.InvalidArgument("attach: this solver is attached already")
    averaging = solver._ddl = Averaging(solver, overlap, bucket_bytes)
    if ddl.size() > 1:
        solver.solve = _solve
    known = weakref.proxy(averaging)  # Caffe never lets go of a callback, and the averaging holds the net
    averaging._net.after_backward(lambda index: known.after_backward(index))
    solver.add_callback(lambda: known.on_start(), lambda: known.on_gradients_ready())
    return averaging
