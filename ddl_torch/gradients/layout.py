"""``BucketLayout``: which parameters an optimizer trains, in which buckets their gradients lie, and who averages them.

All of it must be the same on all ranks. A difference is found when buckets are laid out, before anything is sent.
"""

from __future__ import annotations

import weakref
from typing import Dict, List, Mapping, Protocol, Sequence, Tuple

import torch

import ddl
from ddl.adapter.buckets import Gradient, assign
from ddl.adapter.compression import fastest
from ddl.text.tracebacks import brief
from ddl_torch._compat import question_of_tracing
from ddl_torch._streams import is_on_gpu
from ddl_torch.gradients import overlap
from ddl_torch.gradients.bucket import GradientBucket
from ddl_torch.gradients.entry import Entry
from ddl_torch.gradients.options import OptimizerOptions
from ddl_torch.gradients.same_model import check_parameter, check_same_on_all_ranks

__all__ = ["BucketLayout"]


class GradientListener(Protocol):
    """What autograd tells of gradients."""

    def gradient_came(self, entry: Entry) -> None:
        """``p.grad`` of a parameter has its value of this backward pass."""


class BucketLayout:
    """The parameters and buckets of one reducer.

    ``own``: communicators to be closed with the optimizer, to which those are added that are made here.
    ``listener``: what autograd tells of each gradient; the parameters' hooks do not keep it alive.
    """

    def __init__(
        self,
        communicator: ddl.Communicator,
        options: OptimizerOptions,
        own: List[ddl.Communicator],
        listener: GradientListener,
    ) -> None:
        self.communicator = communicator
        self.overlap = False  #: decided in ``lay_out``, alike on all ranks
        self.entries: List[Entry] = []
        self.buckets: List[GradientBucket] = []
        self._options = options
        self._own = own
        self._listener = weakref.ref(listener)
        self._hooks: List[torch.utils.hooks.RemovableHandle] = []
        weakref.finalize(self, _remove, self._hooks).atexit = False

    @property
    def names(self) -> Dict[torch.Tensor, str]:
        """The name of each parameter."""
        return {entry.parameter: entry.name for entry in self.entries}

    def add(
        self, parameters: Sequence[Tuple[str, torch.Tensor]], groups: Mapping[torch.Tensor, int], sparse: bool
    ) -> None:
        """Take parameters on; they get places in the next ``lay_out``.

        ``groups``: parameter -> number of its group. ``sparse``: it is known that all their gradients will be.
        """
        for name, parameter in parameters:
            check_parameter(name, parameter)
        for name, parameter in parameters:
            entry = Entry(parameter, name, groups.get(parameter), self._options.sparse_as_dense)
            entry.sparse = entry.was_sparse = sparse
            self.entries.append(entry)

    def lay_out(self, backward_passes_per_step: int) -> None:
        """Give a place to every parameter that requires a gradient and has none. Collective if there is one."""
        moving = [entry for entry in self.entries if entry.parameter.requires_grad]
        placed = [entry for entry in moving if entry.bucket is None and not entry.sparse]
        fresh = [entry for entry in moving if entry.hook is None]
        if not placed and not fresh:
            return
        options = [*self._options.lines(), f"backward_passes_per_step={backward_passes_per_step}"]
        if any(entry.group is not None for entry in placed):
            options.append(f"groups={[entry.group for entry in placed]}")
        named = [(entry.name, entry.parameter) for entry in (*placed, *(e for e in fresh if e.sparse))]
        on_gpu = any(is_on_gpu(entry.parameter) for entry in self.entries)
        places = check_same_on_all_ranks(self.communicator, options, named, overlap.place(on_gpu))
        wanted = self._options.overlap
        self.overlap = overlap.pays(places) if wanted is None else wanted
        if self._options.deterministic and not self.communicator.deterministic:
            self._deterministic_twin()  # not before all have said that they want it
        gradients = [
            Gradient(e.parameter.numel(), (e.parameter.dtype, e.parameter.device), e.parameter.element_size(), e.group)
            for e in placed
        ]
        for bucket in assign(gradients, bucket_bytes=self._options.bucket_bytes):
            self.buckets.append(GradientBucket(len(self.buckets), bucket, placed))
        for entry in fresh:
            self._hook(entry)

    def _deterministic_twin(self) -> None:
        twin = self.communicator.split(0, deterministic=True)
        assert twin is not None
        self._go_over_to(twin)

    def _hook(self, entry: Entry) -> None:
        """Have autograd say when the gradient has come."""
        listener = self._listener

        def gradient_came() -> None:
            alive = listener()
            if alive is None:
                return
            try:
                alive.gradient_came(entry)
            except ddl.Error as error:
                brief(error)
                raise

        # What it does is no part of a graph: compiled autograd, which traces hooks, is to call it. All others are
        # spared the microseconds that it takes to tell the compiler so.
        untraced = torch.compiler.disable(gradient_came)  # type: ignore[no-untyped-call]

        is_traced = question_of_tracing()

        def hook(_: torch.Tensor) -> None:
            if is_traced():
                untraced()
            else:
                gradient_came()

        entry.hook = entry.parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._hooks.append(entry.hook)

    def go_over_to(self, communicator: ddl.Communicator, backward_passes_per_step: int, *, afresh: bool) -> None:
        """Go on with other ranks. ``afresh``: some are new, so all lay their buckets out anew. Collective, blocking."""
        self.communicator = communicator
        if afresh:
            for entry in self.entries:
                entry.sparse = entry.was_sparse
            self.leave_out(backward_passes_per_step)
            return
        for bucket in self.buckets:
            bucket.forget_calls()
        if self._options.deterministic and not communicator.deterministic:
            self._deterministic_twin()

    def leave_out(self, backward_passes_per_step: int) -> None:
        """Lay all buckets out anew, without parameters that have turned out to be sparse. Collective."""
        self.buckets = []
        for entry in self.entries:
            entry.displace()
        self.lay_out(backward_passes_per_step)

    def choose_wire(self) -> None:
        """Measure how the buckets are averaged fastest, and do so from now on. Collective; before the first step."""
        arrays = [ddl.empty(bucket.numbers, "float32") for bucket in self.buckets if bucket.float32]
        for array in arrays:
            array.fill(0)
        self._go_over_to(fastest(self.communicator, arrays))

    def _go_over_to(self, communicator: ddl.Communicator) -> None:
        if communicator is not self.communicator:
            self.communicator = communicator
            self._own.append(communicator)

    def release(self) -> None:
        """Leave the parameters to another reducer."""
        _remove(self._hooks)


def _remove(hooks: List[torch.utils.hooks.RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
