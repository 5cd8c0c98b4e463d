"""What the arguments of ``DistributedOptimizer`` say: about parameters, their names and groups, and about averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

import torch

import ddl
from ddl.adapter import buckets
from ddl.adapter.operator_checks import check_gradient_op, check_predivide
from ddl_torch.compression import Compression, PowerSGD, UserCompressor, Wire

__all__ = ["Groups", "NamedParameters", "OptimizerOptions", "group_numbers", "named"]

NamedParameters = Iterable[Tuple[str, torch.Tensor]]
Groups = Union[int, Sequence[Sequence[torch.Tensor]]]


@dataclass(frozen=True)
class OptimizerOptions:
    """How ``DistributedOptimizer`` averages. Every rank must be told alike; what each means is documented there.

    Raises ``InvalidArgument`` for values that make no sense, alone or together.
    """

    op: ddl.ReduceOp
    compression: Union[Wire, PowerSGD, UserCompressor]
    bucket_bytes: int
    overlap: Optional[bool]
    overlap_update: bool
    check: int
    gradient_predivide_factor: float
    sparse_as_dense: bool
    deterministic: bool

    def __post_init__(self) -> None:
        check_gradient_op(self.op)
        check_predivide(self.gradient_predivide_factor, self.op)
        if self.check < 0:
            raise ddl.InvalidArgument(f"check={self.check} must be 0 (never) or a number of steps")
        if self.deterministic and self.op == ddl.Adasum:
            raise ddl.InvalidArgument("deterministic=True orders sums; Adasum's scalar products are none of them")
        if self.check and self.op == ddl.Adasum:
            raise ddl.InvalidArgument(f"check={self.check} works out averages again; with op=ddl.Adasum there are none")
        if self.overlap_update and (self.check or self.op == ddl.Adasum):
            raise ddl.InvalidArgument(
                "overlap_update=True updates a part of the parameters before all averages are there, which check= "
                "and op=ddl.Adasum have to see first; leave one away"
            )

    @property
    def wire(self) -> Optional[str]:
        """How float32 is written between hosts, if that is decided now; None: as the communicator has it."""
        chosen = self.compression
        return chosen.name if isinstance(chosen, Wire) and chosen not in (Compression.none, Compression.auto) else None

    @property
    def powersgd(self) -> Optional[PowerSGD]:
        """The compression, if it is PowerSGD."""
        return self.compression if isinstance(self.compression, PowerSGD) else None

    @property
    def own_compressor(self) -> Optional[UserCompressor]:
        """The compression, if it is the user's own."""
        return self.compression if isinstance(self.compression, UserCompressor) else None

    def check_compression(self, ranks: ddl.Communicator) -> None:
        """Raise ``InvalidArgument`` if the compression does not go with the rest, or with ``ranks``."""
        if self.compression == Compression.none:
            return
        name = "powersgd" if isinstance(self.compression, PowerSGD) else self.compression.name
        if self.op == ddl.Adasum:
            raise ddl.InvalidArgument(f"compression={name!r} is for gradients; with op=ddl.Adasum steps are combined")
        if self.deterministic or ranks.deterministic:
            raise ddl.InvalidArgument(
                f"compression={name!r} rounds by layout, which deterministic=True excludes; leave one"
            )
        factor = self.gradient_predivide_factor
        if factor != 1 and self.powersgd is not None:
            raise ddl.InvalidArgument(
                f"gradient_predivide_factor={factor} has no use with PowerSGD, which adds float32"
            )
        if self.check and self.compression not in (Compression.fp16, Compression.bf16):
            raise ddl.InvalidArgument(
                f"check={self.check} finds averages that rounding does not explain, and compression={name!r} changes "
                "them by more; leave one of them away"
            )

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
