"""``Entry``: one parameter of an optimizer, where its gradient lies, and what became of it in this round.

Autograd brings a gradient in memory of its own. ``adopt`` copies it to its place in a bucket and lets ``p.grad`` share
that memory. Where a round may have to be done again, it keeps what autograd has brought: that costs no second copy.

Two gradients are treated differently:

* One that has a graph (``backward(create_graph=True)``) keeps it: ``p.grad`` becomes the average as a function of it.
* While averages are awaited after the backward pass (``overlap_update``), ``p.grad`` refuses to be read.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Optional, Protocol, Tuple

import torch

import ddl
from ddl_torch._compat import storage_users

__all__ = ["Entry", "EntryBucket", "Replaced"]


class EntryBucket(Protocol):
    """What an entry, and who has one, know of the bucket (bucket.py) that it lies in."""

    number: int
    sent: bool
    pending: int

    @property
    def on_gpu(self) -> bool: ...

    def leave_if_kept(self) -> None: ...

    def gradient_came(self) -> None: ...


class Replaced(Exception):
    """``p.grad`` was replaced while its average was awaited."""


class Entry:
    """One parameter, its place in a bucket (once it has one) and what happened to it in this round."""

    def __init__(self, parameter: torch.Tensor, name: str, group: Optional[int], sparse_as_dense: bool) -> None:
        self.parameter = parameter
        self.name = name
        self.group = group  # entries of one group share a bucket
        self.sparse_as_dense = sparse_as_dense
        self.sparse = False  # some rank has had a sparse gradient: it has no place in a bucket any more
        self.was_sparse = False  # that was known from the beginning
        self.hook: Any = None  # the handle of ours
        self.bucket: Optional[EntryBucket] = None
        self.view: Optional[torch.Tensor] = None  # of the bucket: see _view_like
        self.expected = False  # the bucket waits for this one
        self.sparse_dimensions = 0  # of the gradient, which was made dense; 0: it was dense
        self._address = 0
        self._shared: Optional[torch.Tensor] = None  # what p.grad is, until the average is there
        self.came: Optional[torch.Tensor] = None  #: the gradient that was copied to its place, if nobody else has it
        self._waits: Optional[weakref.ref[torch.Tensor]] = None  # a gradient that was not adopted yet
        self._graph: Optional[torch.Tensor] = None  # the gradient that came, with its graph
        self._refusing: Optional[torch.Tensor] = None

    def place(self, bucket: EntryBucket, flat: torch.Tensor, offset: int) -> None:
        """Lie in ``flat``, the memory of ``bucket``, from element ``offset`` on."""
        self.bucket = bucket
        self.view = _view_like(self.parameter, flat, offset)
        self._address = self.view.data_ptr()
        self._shared = self._refusing = None

    def displace(self) -> None:
        """Have no place in a bucket."""
        self.bucket, self.view, self._address = None, None, 0
        self._shared = self._refusing = None

    def shares_memory(self) -> bool:
        """Return whether ``p.grad`` lies in the bucket, as ``adopt`` and ``hand_out`` leave it."""
        grad = self.parameter.grad
        return grad is not None and grad.layout == torch.strided and grad.data_ptr() == self._address

    def users_of_memory(self) -> int:
        """Return how many tensors share the bucket's memory that are this entry's: ``p.grad``, and what replaces it."""
        grad = self.parameter.grad if self.shares_memory() else None
        return len({id(tensor) for tensor in (grad, self._shared, self._refusing) if tensor is not None})

    def adopt_later(self) -> None:
        """Note that a gradient has come, which ``adopt`` is to find where it is."""
        assert self.parameter.grad is not None
        self._waits = weakref.ref(self.parameter.grad)

    def has_what_came(self) -> bool:
        """Return whether ``p.grad`` is a gradient that has come, whether it has been adopted or not."""
        return self.shares_memory() or (self._waits is not None and self._waits() is self.parameter.grad is not None)

    def adopt(self, *, keeps: bool = False) -> bool:
        """Copy the gradient to its place, if it is not there yet; return False if there is no dense gradient.

        ``keeps``: what was copied stays in ``came``, unless somebody else has it, too, who may change it.
        """
        grad = self.parameter.grad
        if grad is not None and grad is self._shared and grad.data_ptr() == self._address:
            return True
        if self._shared is not None:  # p.grad was another tensor in this round, which a script may have kept
            assert self.bucket is not None
            self._shared = None
            self.bucket.leave_if_kept()
        if grad is None:
            return False
        view = self.view
        assert view is not None
        self._check_type(grad, view)
        if grad.layout != torch.strided:
            return self._adopt_sparse(grad, view)
        if grad.requires_grad:
            self._graph = grad
            view.copy_(grad.detach())
            return True
        if grad.data_ptr() == self._address and grad.stride() == view.stride():
            self._shared = grad
            return True
        view.copy_(grad)
        if keeps and _references(grad) == _ALONE:
            self.came = grad
        # A new tensor each time: one that was kept here could not be told from one that a script keeps.
        self.parameter.grad = self._shared = view.detach()
        return True

    def _adopt_sparse(self, grad: torch.Tensor, view: torch.Tensor) -> bool:
        if grad.layout != torch.sparse_coo:
            raise ddl.InvalidArgument(
                f"parameter {self.name!r} has a gradient of layout {grad.layout}; dense and COO ones can be averaged"
            )
        if not self.sparse_as_dense:
            return False
        self.sparse_dimensions = grad.sparse_dim()
        view.copy_(grad.detach().to_dense())
        self.parameter.grad = self._shared = view.detach()
        return True

    def _check_type(self, grad: torch.Tensor, view: torch.Tensor) -> None:
        if grad.dtype != view.dtype or grad.shape != view.shape:
            raise ddl.InvalidState(
                f"the gradient of parameter {self.name!r} is {grad.dtype} of shape {tuple(grad.shape)}, but it was "
                f"{view.dtype} of shape {tuple(view.shape)} when the optimizer was wrapped; convert it before"
            )

    def is_final(self) -> bool:
        """Return whether no hook follows ours that could change the gradient; ours is the last one from then on."""
        hooks = self.parameter._post_accumulate_grad_hooks
        if len(hooks) == 1 or next(reversed(hooks)) == self.hook.id:
            return True
        hooks[self.hook.id] = hooks.pop(self.hook.id)  # autograd goes by the order in which they were put there
        return False

    def begin(self) -> None:
        """Start a round."""
        self.expected = self.parameter.requires_grad
        self.sparse_dimensions = 0
        self._shared = self._graph = self.came = self._waits = None

    def refuse(self) -> None:
        """Let ``p.grad`` raise an error if it is read, until ``hand_out``."""
        if self.view is not None and self._shared is not None and self.parameter.grad is self._shared:
            if self._refusing is None:
                # ``as_subclass`` keeps one tensor more, which the bucket would take for one that a script keeps.
                self._refusing = torch.Tensor._make_subclass(_Awaited, self.view)
            self.parameter.grad = self._refusing

    def hand_out(self, communicator: ddl.Communicator, op: ddl.ReduceOp) -> None:
        """Let ``p.grad`` be the average, which is in the bucket now.

        Raises ``Replaced`` if ``p.grad``, or its memory, is something else than it was when the bucket was sent.
        """
        grad, shared, self._shared = self.parameter.grad, self._shared, None
        if not (grad is None or grad is shared or grad is self._graph or grad is self._refusing):
            raise Replaced
        if grad is shared and grad is not None and grad.data_ptr() != self._address:
            raise Replaced
        if grad is shared and grad is not None and not self.sparse_dimensions:
            return
        assert self.view is not None
        if self.sparse_dimensions:
            self.parameter.grad = self.view.to_sparse(self.sparse_dimensions)
            return
        if self._graph is not None:
            with torch.enable_grad():
                average: torch.Tensor = _Average.apply(self._graph, self.view, communicator, op)  # type: ignore[no-untyped-call]
            self.parameter.grad, self._graph = average, None
            return
        self.parameter.grad = self.view.detach()


class _Average(torch.autograd.Function):
    """The average (or sum) of gradients that is known already, as a function of this rank's own."""

    @staticmethod
    def forward(
        ctx: Any, own: torch.Tensor, average: torch.Tensor, communicator: ddl.Communicator, op: ddl.ReduceOp
    ) -> torch.Tensor:
        ctx.communicator, ctx.op = communicator, op
        return average.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Tuple[Optional[torch.Tensor], ...]:
        gradient = gradients[0].contiguous().clone()
        ctx.communicator.allreduce_async_(gradient, op=ctx.op, name="gradient of an average").wait()
        return gradient, None, None, None


class _Awaited(torch.Tensor):
    """A gradient whose average is awaited by ``step()``: whatever reads or writes it is refused."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ddl.InvalidState(
            "with overlap_update=True, averages are awaited by optimizer.step(), so p.grad cannot be read or changed "
            "before. Call optimizer.synchronize() first, as GradScaler and clipping need, or leave overlap_update out"
        )


def _references(gradient: torch.Tensor) -> Tuple[int, int]:
    """Return how many refer to ``gradient``, and to its memory."""
    return sys.getrefcount(gradient), storage_users(gradient.untyped_storage())


def _references_of_gradient() -> Tuple[int, int]:
    """Return ``_references`` where ``p.grad`` and a variable refer to a gradient, and nobody else."""
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)  # not by a backward pass: that would start autograd's threads
    gradient = parameter.grad
    assert gradient is not None
    return _references(gradient)


_ALONE = _references_of_gradient()  # differs between versions of torch and of Python


def _view_like(parameter: torch.Tensor, flat: torch.Tensor, offset: int) -> torch.Tensor:
    """Return the part of ``flat`` from ``offset`` on with the parameter's shape and, where that is dense, its strides.

    Autograd adds into a gradient fastest when its strides are those of the parameter (channels_last, transposed).
    """
    strides = torch.empty_like(parameter, device="meta").stride()
    return flat.as_strided(parameter.shape, strides, offset)
