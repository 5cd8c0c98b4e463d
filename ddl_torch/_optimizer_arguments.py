"""What the arguments of ``DistributedOptimizer`` say: about parameters, their names and groups, and about averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

import torch

import ddl
from ddl.adapter import buckets
from ddl_torch.compression import PowerSGD, UserCompressor

__all__ = ["Groups", "NamedParameters", "OptimizerSettings", "group_numbers", "named"]

NamedParameters = Iterable[Tuple[str, torch.Tensor]]
Groups = Union[int, Sequence[Sequence[torch.Tensor]]]


@dataclass(frozen=True)
class OptimizerSettings:
    """What ``DistributedOptimizer`` was told, and every rank must be told alike; its documentation is there."""

    op: ddl.ReduceOp
    bucket_bytes: int
    overlap: Optional[bool]
    check: int
    gradient_predivide_factor: float
    sparse_as_dense: bool
    deterministic: bool
    powersgd: Optional[PowerSGD]
    overlap_update: bool
    own_compressor: Optional[UserCompressor]

    def lines(self) -> List[str]:
        """Return them one by one, for people."""
        return [f"{name}={getattr(value, 'name', value)}" for name, value in vars(self).items()]


def named(optimizer: torch.optim.Optimizer, given: Optional[NamedParameters]) -> List[Tuple[str, torch.Tensor]]:
    """Return the optimizer's parameters with their names, in the order of the names that were given."""
    own = {
        id(parameter): (f"group {g} parameter {i}", parameter)
        for g, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    }
    if given is None:
        return list(own.values())
    unique: Dict[int, Tuple[str, torch.Tensor]] = {}
    names = set()
    for pair in given:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise ddl.InvalidArgument("named_parameters must be pairs (name, parameter): pass model.named_parameters()")
        name, parameter = pair
        if name in names:
            raise ddl.InvalidArgument(f"named_parameters has the name {name!r} twice; names must be unique")
        names.add(name)
        if id(parameter) in own:
            unique.setdefault(id(parameter), (name, parameter))
    missing = [f"{where} of shape {tuple(p.shape)}" for key, (where, p) in own.items() if key not in unique]
    if missing:
        raise ddl.InvalidArgument(
            f"named_parameters lacks {len(missing)} of the optimizer's parameters: {', '.join(missing[:5])}"
        )
    return list(unique.values())


def group_numbers(parameters: Sequence[torch.Tensor], groups: Optional[Groups]) -> Dict[torch.Tensor, int]:
    """Return the number of the group of each of ``parameters`` that is in one.

    ``groups``: lists of parameters, or a number: those that require gradients then go, in order, into so many groups
    of about the same number of parameters. None or 0: no groups.
    """
    for number, group in enumerate(() if isinstance(groups, int) else groups or ()):
        for p in group:
            if not isinstance(p, torch.Tensor):
                raise ddl.InvalidArgument(f"groups must be lists of parameters; number {number} has a {type(p)}")
    return dict(buckets.group_numbers([p for p in parameters if p.requires_grad], groups))
