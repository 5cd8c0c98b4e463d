"""``DistributedOptimizer``: a torch optimizer whose ``step`` uses the average of all ranks' gradients.

The optimizer that is passed *becomes* distributed: it keeps its identity, state, groups and hooks and gets another
class, so learning-rate schedulers made before or after, checkpoints and ``isinstance`` go on working. The averaging
itself hangs on PyTorch's hooks (of parameters and of ``step``) and lives in ``_reducer.py``.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, NoReturn, Optional, Tuple, Union

import torch

import ddl
from ddl.buckets import BUCKET_BYTES
from ddl.compression import agree, on_wire
from ddl_torch._allocator import tune_allocator as _tune_allocator
from ddl_torch._reducer import GradientReducer
from ddl_torch._tensors import alias
from ddl_torch.compression import Compression, CompressionLike, PowerSGD, Wire, parse

__all__ = ["DistributedOptimizer"]

NamedParameters = Iterable[Tuple[str, torch.Tensor]]


class DistributedOptimizer(torch.optim.Optimizer):
    """Make ``optimizer`` distributed and return it. Collective: every rank wraps the same model.

    Gradients live in flat buckets in shared memory. A bucket is averaged over the ranks as soon as its last gradient is
    there, while the backward pass goes on, or in ``step()``, which waits for what is left (see overlap). Then every
    rank has the same gradients, and after ``step()`` the same weights, to the bit.

    optimizer: any ``torch.optim.Optimizer`` but ``SparseAdam``, over parameters on the CPU. It is changed in place.
    named_parameters: ``model.named_parameters()``; names serve errors, their order is that of the buckets. Must name
        every parameter of the optimizer; may name others.
    op: ``ddl.Average``, or ``ddl.Sum``.
    bucket_bytes: upper bound of a bucket; the first one holds at most 1 MiB.
    backward_passes_per_step: gradients of so many backward passes are added up here before they are sent, in the last
        of them. They are not divided by that number (as in Horovod): divide the loss.
    overlap: average while the backward pass goes on. Default: if the ranks are on several hosts, or leave a core idle
        for each of them; else it would only take the cores from the backward pass.
    compression: how gradients are made smaller on their way between hosts (docs/compression.md): None or "none": as
        DDL_WIRE says; "bf16", "fp16", "int8": float32 is written so, sums stay float32, and what int8 drops is added to
        the next gradient; "powersgd", or ``PowerSGD(rank=…)``: as products of thin matrices; "auto": bf16 or int8 if
        one is measured, now, to be faster for these gradients. Other types than float32 are sent as they are.
    communicator: whose ranks to average over; default ``ddl.world()``.
    check: in the first step and every ``check``-th from there, work out all averages again in another way, and look for
        NaN and infinity in the gradients of each rank (docs/check.md). 0: never, and at no cost.
    tune_allocator: let glibc keep freed memory, for the whole process, which saves a page fault per page of gradient
        in every step. Default: the environment's DDL_TORCH_TUNE_ALLOCATOR, else True.

    A parameter that this rank did not use counts as zero. One that no rank used keeps ``p.grad`` None. A parameter with
    ``requires_grad=False`` is not averaged; one that is unfrozen or added later is, from its first step on.

    To clip gradients, call ``synchronize()`` first; ``step()`` then does not wait again::

        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    With a closure, ``step(closure)`` averages the gradients after each call of it, and also the loss that it returns,
    so that optimizers that decide by the loss (LBFGS) decide alike on all ranks.

    Raises ``InvalidArgument`` for parameters without or with duplicate names, on another device, of another type, or if
    ranks differ; ``InvalidState`` in ``backward()`` if a gradient arrives after its bucket was sent, and in ``step()``
    if gradients were changed while they were averaged. With ``check``, all ranks raise the same error before weights
    are changed: ``InvalidState`` for a gradient that is not finite, ``InternalError`` for an average that is wrong.

    >>> optimizer = ddl_torch.DistributedOptimizer(optimizer, model.named_parameters())
    """

    _ddl: GradientReducer

    def __new__(
        cls,
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[NamedParameters] = None,
        *,
        op: ddl.ReduceOp = ddl.Average,
        bucket_bytes: int = BUCKET_BYTES,
        backward_passes_per_step: int = 1,
        overlap: Optional[bool] = None,
        check: int = 0,
        compression: CompressionLike = None,
        communicator: Optional[ddl.Communicator] = None,
        tune_allocator: Optional[bool] = None,
    ) -> DistributedOptimizer:
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, DistributedOptimizer):
            raise ddl.InvalidArgument(
                f"DistributedOptimizer needs a torch.optim.Optimizer that is not distributed yet, not a "
                f"{type(optimizer).__name__}"
            )
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise ddl.InvalidArgument(
                "DistributedOptimizer: SparseAdam takes sparse gradients only, which cannot be all-reduced in a "
                "bucket; make them dense (sparse=False for an Embedding) and use torch.optim.Adam"
            )
        if op not in (ddl.Average, ddl.Sum):
            raise ddl.InvalidArgument(f"DistributedOptimizer: op={op!r}; gradients need ddl.Average or ddl.Sum")
        if backward_passes_per_step < 1:
            raise ddl.InvalidArgument(f"backward_passes_per_step={backward_passes_per_step} must be 1 or more")
        if check < 0:
            raise ddl.InvalidArgument(f"check={check} must be 0 (never) or a number of steps")
        chosen = parse(compression)
        if check and chosen not in (Compression.none, Compression.fp16, Compression.bf16):
            raise ddl.InvalidArgument(
                f"check={check} finds averages that rounding does not explain, and compression={compression!r} keeps "
                "more back than that; leave one of them away"
            )
        named = _named(optimizer, named_parameters)
        group = communicator or ddl.world()
        agree(group, str(chosen))
        powersgd = chosen if isinstance(chosen, PowerSGD) else None
        if isinstance(chosen, Wire) and chosen not in (Compression.none, Compression.auto):
            group = on_wire(group, chosen.name)
        reducer = GradientReducer(group, op, bucket_bytes, backward_passes_per_step, overlap, check, powersgd)
        reducer.add(named)
        _tune_allocator(tune_allocator)
        reducer.lay_out()
        if chosen == Compression.auto:
            reducer.choose_wire()
        kind = type(optimizer)
        optimizer.__class__ = type("Distributed" + kind.__name__, (DistributedOptimizer, kind), {})
        optimizer.__dict__["_ddl"] = reducer
        optimizer.register_step_pre_hook(_before_step)
        optimizer.register_step_post_hook(_after_step)
        optimizer.__dict__["_ddl_skip"] = False
        assert isinstance(optimizer, DistributedOptimizer)
        return optimizer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Everything is done in ``__new__``: the object exists already."""

    def synchronize(self) -> None:
        """Wait until every ``p.grad`` is the average over the ranks. Collective, blocking.

        Gradients may be changed afterwards; the next ``step()`` uses them as they are, unless new ones have come.
        """
        self._ddl.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """``step()`` inside this context averages nothing. Not needed after ``synchronize()``."""
        self.__dict__["_ddl_skip"] = True
        try:
            yield
        finally:
            self.__dict__["_ddl_skip"] = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's. Gradients that are being averaged are waited for, then dropped."""
        self._ddl.discard()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As the wrapped optimizer's; every rank adds the same. The first ``step()`` after it lays out new buckets."""
        super().add_param_group(param_group)
        number = len(self.param_groups) - 1
        added = self.param_groups[number]["params"]
        try:
            self._ddl.add([(f"group {number} parameter {i}", parameter) for i, parameter in enumerate(added)])
        except ddl.InvalidArgument:
            self.param_groups.pop()
            raise

    @property
    def compression(self) -> str:
        """How float32 gradients cross between hosts: "float32", "bf16", "fp16", "int8" or "powersgd"."""
        return self._ddl.compression

    def statistics(self) -> Dict[str, Union[int, float]]:
        """Return ``steps``, ``bytes`` (averaged) and ``seconds_waiting`` (for averages, in all)."""
        return self._ddl.statistics()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ddl.InvalidState("a distributed optimizer cannot be copied or pickled; save optimizer.state_dict()")


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> Optional[Tuple[Any, Any]]:
    """Average the gradients before ``step``; those that a closure is yet to compute, after each call of it."""
    if optimizer._ddl_skip:
        return None
    reducer: GradientReducer = optimizer._ddl
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        if not reducer.synchronized:
            reducer.synchronize()
        return None
    if isinstance(closure, _AveragingClosure):
        return None  # a step that calls its base class's step comes here twice
    averaging = _AveragingClosure(reducer, closure)
    if "closure" in kwargs:
        return args, {**kwargs, "closure": averaging}
    return (args[0], averaging, *args[2:]), kwargs


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    optimizer._ddl.synchronized = False


class _AveragingClosure:
    """A closure of ``step`` that averages the gradients it has computed, and its loss."""

    def __init__(self, reducer: GradientReducer, closure: Callable[[], Any]) -> None:
        self._reducer = reducer
        self._closure = closure

    def __call__(self) -> Any:
        loss = self._closure()
        if not self._reducer.synchronized:
            self._reducer.synchronize()
        if not isinstance(loss, (torch.Tensor, float)):
            return loss
        mean = torch.as_tensor(loss, dtype=None if isinstance(loss, torch.Tensor) else torch.float64).detach().clone()
        self._reducer.communicator.allreduce_(alias(mean, "step(closure)"), op=self._reducer.op)
        return mean if isinstance(loss, torch.Tensor) else mean.item()


def _named(optimizer: torch.optim.Optimizer, given: Optional[NamedParameters]) -> List[Tuple[str, torch.Tensor]]:
    """Return the optimizer's parameters with their names, in the order of the names that were given."""
    own = {
        id(parameter): (f"group {g} parameter {i}", parameter)
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    }
    if given is None:
        return list(own.values())
    named: Dict[int, Tuple[str, torch.Tensor]] = {}
    names = set()
    for pair in given:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise ddl.InvalidArgument("named_parameters must be pairs (name, parameter): pass model.named_parameters()")
        name, parameter = pair
        if name in names:
            raise ddl.InvalidArgument(f"named_parameters has the name {name!r} twice; names must be unique")
        names.add(name)
        if id(parameter) in own:
            named.setdefault(id(parameter), (name, parameter))
    missing = [f"{where} of shape {tuple(p.shape)}" for key, (where, p) in own.items() if key not in named]
    if missing:
        raise ddl.InvalidArgument(
            f"named_parameters lacks {len(missing)} of the optimizer's parameters: {', '.join(missing[:5])}"
        )
    return list(named.values())
