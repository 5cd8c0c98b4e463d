"""``DistributedOptimizer``: a torch optimizer whose ``step`` uses the average of all ranks' gradients.

The optimizer that is passed *becomes* distributed: it keeps its identity, state, groups and hooks and gets another
class, so learning-rate schedulers made before or after, checkpoints and ``isinstance`` go on working. The averaging
itself hangs on PyTorch's hooks (of parameters and of ``step``) and lives in gradients/reducer.py; Adasum in
gradients/delta.py.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any, Callable, ContextManager, Dict, List, NoReturn, Optional, Tuple, Union

import torch

import ddl
from ddl.adapter.buckets import BUCKET_BYTES
from ddl.adapter.compression import on_wire
from ddl.adapter.malloc_settings import tune_allocator as _tune_allocator
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl.reduce_op import OpLike, parse_op
from ddl.text.tracebacks import briefly
from ddl_torch._process_set import communicator_of
from ddl_torch.compression import Compression, CompressionLike, parse
from ddl_torch.gradients.delta import DeltaReducer
from ddl_torch.gradients.options import Groups, NamedParameters, OptimizerOptions, group_numbers, named
from ddl_torch.gradients.reducer import GradientReducer
from ddl_torch.gradients.same_model import check_same_on_all_ranks
from ddl_torch.gradients.update import check_optimizer
from ddl_torch.joining import optimizers

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer(torch.optim.Optimizer):
    """Make ``optimizer`` distributed and return it. Collective: every rank wraps the same model.

    Gradients live in flat buckets in shared memory. A bucket is averaged over the ranks as soon as its last gradient is
    there, while the backward pass goes on, or at its end (see overlap). ``backward()`` returns when every ``p.grad`` is
    the average. Every rank has the same then, and after ``step()`` the same weights, to the bit.

    optimizer: any ``torch.optim.Optimizer``, over parameters on the CPU or on CUDA GPUs. It is changed in place.
    named_parameters: ``model.named_parameters()``; names serve errors, their order is that of the buckets. Must name
        every parameter of the optimizer; may name others.
    compression: how gradients are made smaller on their way between hosts (docs/compression.md): None or "none": as
        DDL_WIRE says; "bf16", "fp16", "int8": float32 is written so, sums stay float32, and what int8 drops is added to
        the next gradient; "powersgd", or ``PowerSGD(rank=…)``: as products of thin matrices; "auto": bf16 or int8 if
        one is measured, now, to be faster for these gradients. Other types than float32 are sent as they are. Or a
        ``Compressor`` of your own, for gradients of all types, each compressed by itself (docs/compression.md).
    backward_passes_per_step: gradients of so many backward passes are added up here before they are sent, in the last
        of them. They are not divided by that number (as in Horovod): divide the loss.
    op: ``ddl.Average``, ``ddl.Sum``, or ``ddl.Adasum``: see below.
    gradient_predivide_factor: f: gradients are divided by f before they are added up, and by size / f afterwards. For
        gradients whose sum would overflow float16. Only with ``ddl.Average``. Sparse gradients are divided first.
    num_groups, groups: lists of parameters; those of a list are sent together, in a bucket of their own (one for each
        type), whatever its size. Or a number of such lists to make. ``num_groups`` is an older name for that number.
    sparse_as_dense: make sparse gradients (``Embedding(sparse=True)``) dense, average them as such, and make the
        average sparse again. Else the ranks exchange what entries they have, when the backward pass ends. Before the
        first one has come, a parameter takes the room of a dense gradient, unless the optimizer is ``SparseAdam``.
    process_set: average over its ranks; other ranks keep their gradients to themselves. None: all ranks.
    bucket_bytes: upper bound of a bucket; the first one holds at most 1 MiB.
    overlap: average while the backward pass goes on. Default: if the ranks are on several hosts, or leave a core idle
        for each of them; else it would only take the cores from the backward pass.
    overlap_update: let ``step`` wait for averages, and update the parameters of a bucket as soon as theirs are there,
        while others are on their way; for slow networks and costly optimizers. ``p.grad`` refuses to be read between
        ``backward()`` and ``step()``; with a hook before the step, which is to see all averages, nothing is updated
        early. If ``step`` fails, some parameters may be updated and others not. Only for what is known to treat each
        parameter for itself: torch.optim but LBFGS, LARS and LAMB.
    check: in the first step and every ``check``-th from there, work out all averages again in another way, and look for
        NaN and infinity in the gradients of each rank (docs/check.md); not in sparse ones. 0: never, and at no cost.
    deterministic: averages have the same bits for any hosts, layout and bucket_bytes, given the number of ranks
        (docs/deterministic.md). Default: as the communicator is.
    communicator: whose ranks to average over, as process_set; default ``ddl.world()``.
    tune_allocator: let glibc keep freed memory, for the whole process, which saves a page fault per page of gradient
        in every step. Default: the environment's DDL_TUNE_ALLOCATOR, else True.

    A parameter that this rank did not use counts as zero. One that no rank used keeps ``p.grad`` None. A parameter with
    ``requires_grad=False`` is not averaged; one that is unfrozen or added later is, from its first step on.

    Clipping, AMP scalers and hooks work as without DDL; ``synchronize()`` and ``skip_synchronize()`` are not needed.
    What a loop may do, with whole programs: docs/training_loop.md.

    With a closure, ``step(closure)`` averages the gradients of each call of it, and also the loss that it returns if
    that is one number, so that optimizers that decide by the loss (LBFGS) decide alike on all ranks.

    ``zero_grad()`` before ``step()`` drops gradients; all ranks do so, or none. A parameter that is given to another
    DistributedOptimizer later belongs to that one from then on: ``step()`` of the older one is refused.

    With ``op=ddl.Adasum``, each rank takes a step by its own gradients, and the ranks' steps are combined (arXiv
    2006.02924): parameter by parameter, added where they are orthogonal and averaged where they are parallel. Weights
    stay the same on all ranks, the optimizer's state does not. Scale the learning rate for one rank, not for all.
    A step that raises leaves the weights as they were. ``synchronize()`` does nothing then, and what is said of
    buckets, groups, sparse gradients and overlap is void.

    Raises ``InvalidArgument`` for parameters without or with duplicate names, on another device, of another type, or if
    ranks differ. ``backward()`` (or what takes its place) raises ``InvalidState``, on all ranks, if an exception has
    ended that of one rank, if ranks have taken different numbers of steps, or if gradients are dense on one rank and
    sparse on another; on the rank itself if it changed gradients while they were averaged, or if a pass brings
    gradients on top of a sum (``op=ddl.Sum``). With ``check``, all ranks raise the same error before weights are
    changed: ``InvalidState`` for a gradient or a sum that is not finite, ``InternalError`` for a wrong average.

    >>> optimizer = ddl_torch.DistributedOptimizer(optimizer, model.named_parameters())
    """

    _ddl: Union[GradientReducer, DeltaReducer]

    @naming_rank
    def __new__(
        cls,
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[NamedParameters] = None,
        compression: CompressionLike = None,
        backward_passes_per_step: int = 1,
        op: OpLike = ddl.Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Optional[Groups] = None,
        sparse_as_dense: bool = False,
        process_set: Optional[ProcessSet] = None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        overlap: Optional[bool] = None,
        overlap_update: bool = False,
        check: int = 0,
        deterministic: bool = False,
        communicator: Optional[ddl.Communicator] = None,
        tune_allocator: Optional[bool] = None,
    ) -> DistributedOptimizer:
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, DistributedOptimizer):
            raise ddl.InvalidArgument(
                f"DistributedOptimizer needs a torch.optim.Optimizer that is not distributed yet, not a "
                f"{type(optimizer).__name__}"
            )
        options = OptimizerOptions(
            op=parse_op(op, "DistributedOptimizer"),
            compression=parse(compression),
            bucket_bytes=bucket_bytes,
            overlap=overlap,
            overlap_update=overlap_update,
            check=check,
            gradient_predivide_factor=gradient_predivide_factor,
            sparse_as_dense=sparse_as_dense,
            deterministic=deterministic,
        )
        _check_passes(backward_passes_per_step)
        if overlap_update:
            check_optimizer(optimizer)
        parameters = named(optimizer, named_parameters)
        numbers = group_numbers([p for _, p in parameters], num_groups if groups is None else groups)
        own: List[ddl.Communicator] = []
        weakref.finalize(optimizer, _close, own).atexit = False
        ranks, everybody = _ranks_of(process_set, communicator, own)
        options.check_compression(ranks)
        check_same_on_all_ranks(ranks, [f"op={options.op.name}", f"compression={options.compression}"], [])
        reducer: Union[GradientReducer, DeltaReducer]
        if options.op == ddl.Adasum:
            reducer = DeltaReducer(ranks)
            reducer.add(parameters)
        else:
            reducer = GradientReducer(_on_wire(ranks, options.wire, own), options, backward_passes_per_step, own)
            sparse_only = isinstance(optimizer, torch.optim.SparseAdam) and not sparse_as_dense
            reducer.add(parameters, numbers, sparse=sparse_only)
        _tune_allocator(tune_allocator)
        reducer.lay_out()
        if options.compression == Compression.auto:
            assert isinstance(reducer, GradientReducer)
            reducer.choose_wire()
        optimizers.add(reducer, everybody, functools.partial(_all_ranks, own, options.wire))
        return _given_to(optimizer, reducer)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Everything is done in ``__new__``: the object exists already."""

    def synchronize(self) -> None:
        """Wait until every ``p.grad`` is the average over the ranks. Collective, blocking.

        Not needed after ``backward()``, which ends with averages, but for ``overlap_update`` and for gradients that did
        not come from a backward pass. Gradients may be changed afterwards; the next ``step()`` uses them as they are,
        unless new ones have come. Called a second time without new ones, it warns and averages what is there now.
        """
        _check_in_charge(self)
        if self._ddl.asked:
            warnings.warn(
                "optimizer.synchronize() was called again without a backward pass or step() in between: what was "
                "averaged already is averaged once more. Call it once per step; step() does not call it again",
                stacklevel=2,
            )
        if self._ddl.asked or not self._ddl.synchronized:
            self._ddl.synchronize()
        self._ddl.asked = True

    def skip_synchronize(self) -> ContextManager[None]:
        """Return a context in which ``step()`` averages nothing. Not needed after ``backward()``.

        Raises ``InvalidState`` with ``op=ddl.Adasum``.
        """
        return self._ddl.skipping()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change ``backward_passes_per_step`` from the next step on; every rank does the same between two steps."""
        _check_passes(passes)
        self._ddl.backward_passes_per_step = passes

    @property
    def _parameter_names(self) -> Dict[torch.Tensor, str]:
        """The name of each parameter, where Horovod's scripts look for it."""
        return self._ddl.names

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's. Gradients that are being averaged are waited for, then dropped."""
        self._ddl.discard()
        super().zero_grad(set_to_none)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As the wrapped optimizer's. Every rank loads the same state, and has the same weights then."""
        super().load_state_dict(state_dict)
        self._ddl.restart()

    @naming_rank
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


def _given_to(optimizer: torch.optim.Optimizer, reducer: Union[GradientReducer, DeltaReducer]) -> DistributedOptimizer:
    """Make ``optimizer`` a distributed one, whose gradients or steps are ``reducer``'s from now on."""
    kind = type(optimizer)
    methods: Dict[str, Any] = {}
    if isinstance(reducer, DeltaReducer):
        methods["step"] = _taking_back(kind.step, weakref.ref(reducer))
        if "step" in vars(optimizer):  # of a learning-rate scheduler that was made before
            vars(optimizer)["step"] = _taking_back(optimizer.step, weakref.ref(reducer))
    optimizer.__class__ = type("Distributed" + kind.__name__, (DistributedOptimizer, kind), methods)
    optimizer.__dict__["_ddl"] = reducer
    before = optimizer.register_step_pre_hook(_before_step)
    after = optimizer.register_step_post_hook(_after_step)
    # The hooks of users see averages, and a step that is complete. torch's annotations do not say OrderedDict.
    optimizer._optimizer_step_pre_hooks.move_to_end(before.id, last=False)  # type: ignore[attr-defined]
    optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)  # type: ignore[attr-defined]
    assert isinstance(optimizer, DistributedOptimizer)
    return optimizer


def _ranks_of(
    process_set: Optional[ProcessSet], communicator: Optional[ddl.Communicator], own: List[ddl.Communicator]
) -> Tuple[ddl.Communicator, bool]:
    """Return whose ranks to average over, and whether these are all, so that ``join`` has to know. Collective.

    Appends to ``own`` what is made for that.
    """
    chosen = communicator_of(process_set, communicator)
    if communicator is not None or (chosen is not None and chosen is not ddl.world()):
        assert chosen is not None
        return chosen, False
    # A rank that is not in the process set averages with nobody.
    ranks = ddl.world().subset([ddl.rank()]) if chosen is None else optimizers.communicator()
    if ranks is not ddl.world():
        own.append(ranks)
    return ranks, chosen is not None


def _all_ranks(own: List[ddl.Communicator], wire: Optional[str]) -> ddl.Communicator:
    """Return a communicator of all present ranks, for an optimizer whose ``own`` ones were closed. Collective."""
    own.clear()
    communicator = optimizers.communicator()
    if communicator is not ddl.world():
        own.append(communicator)
    return _on_wire(communicator, wire, own)


def _on_wire(communicator: ddl.Communicator, wire: Optional[str], own: List[ddl.Communicator]) -> ddl.Communicator:
    """Return ``communicator``, or one of its ranks that writes as ``wire``, and that is appended to ``own``."""
    if wire is None:
        return communicator
    own.append(on_wire(communicator, wire))
    return own[-1]


def _close(communicators: List[ddl.Communicator]) -> None:
    for communicator in communicators:
        communicator.close()


def _check_passes(passes: int) -> None:
    if passes < 1:
        raise ddl.InvalidArgument(f"backward_passes_per_step={passes} must be 1 or more")


def _check_in_charge(optimizer: DistributedOptimizer) -> None:
    name = optimizers.lost(optimizer._ddl)
    if name is not None:
        communicator = optimizer._ddl.communicator
        raise ddl.InvalidState(
            f"{communicator.who} parameter {name!r} has been given to another DistributedOptimizer "
            "since, and only the last one averages its gradients: go on with that one, or give a parameter to one only"
        )


def _taking_back(step: Callable[..., Any], reducer: weakref.ref[DeltaReducer]) -> Callable[..., Any]:
    """Return ``step``, after an error of which ``reducer`` takes the weights back: PyTorch has no hook for that."""

    @functools.wraps(step)
    def taking_back(*args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        except BaseException:
            alive = reducer()
            if alive is not None:
                alive.step_failed()
            raise

    return taking_back


@briefly
def _before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
    _check_in_charge(optimizer)
    return optimizer._ddl.before_step(args, kwargs)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    optimizer._ddl.after_step(kwargs)
