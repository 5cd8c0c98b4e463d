"""Small helpers that ``horovod.tensorflow`` has among its public names, so that scripts find them here, too."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, TypeVar

from ddl import ReduceOp
from ddl.adapter.horovod import check_extension, gpu_available
from ddl.adapter.operations import choose_op

__all__ = ["check_extension", "check_num_rank_power_of_2", "gpu_available", "handle_average_backwards_compatibility"]
__all__ += ["refs_to_vars", "split_list", "vars_to_refs"]

T = TypeVar("T")


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Return whether it is a power of two. Here ``op=Adasum`` works with any number of ranks."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def handle_average_backwards_compatibility(op: Optional[ReduceOp], average: Optional[bool]) -> ReduceOp:
    """Return the operator of the two arguments of a verb. Raises ``InvalidArgument`` if both are given."""
    return choose_op(average, op, stacklevel=3)


def split_list(l: Sequence[T], n: int) -> List[Sequence[T]]:  # noqa: E741 (Horovod's name)
    """Return ``l`` cut into ``n`` parts of almost the same length, the longer ones first."""
    each, more = divmod(len(l), n)
    ends = [(i + 1) * each + min(i + 1, more) for i in range(n)]
    return [l[start:end] for start, end in zip([0, *ends[:-1]], ends)]


def vars_to_refs(vars: Any) -> Any:
    """Return what can be put into sets and dictionaries for variables: references; of a list, nested, a tuple."""
    return tuple(vars_to_refs(variable) for variable in vars) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Undo ``vars_to_refs``."""
    return [refs_to_vars(ref) for ref in refs] if isinstance(refs, tuple) else refs.deref()
