"""Training scripts that run plainly and distributed by the same lines, and what must be equal afterwards."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

F64 = {"rtol": 1e-12, "atol": 1e-14}
Script = Callable[[Optional[int], Callable[..., Any], torch.nn.Module], Any]


def linear(*sizes: int, dtype: Optional[torch.dtype] = None) -> torch.nn.Sequential:
    """Return the same network every time: linear layers of these sizes, a tanh after each; float64 if not told."""
    torch.manual_seed(3)
    layers = []
    for n, m in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(n, m), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers).to(dtype or torch.float64)


class Fails(torch.autograd.Function):
    """``Fails.apply(x, fails)`` returns ``x``; its backward pass raises ``ArithmeticError`` if ``fails``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fails: bool) -> torch.Tensor:
        """Pass ``x`` on."""
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Fail, or pass the gradient on."""
        if ctx.fails:
            raise ArithmeticError("a bad batch")
        return gradient, None


def data(step: int, rows: int = 8, columns: int = 6) -> torch.Tensor:
    """Return the whole batch of a step."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def half(x: torch.Tensor, rank: Optional[int]) -> torch.Tensor:
    """Return the rows of ``x`` that belong to ``rank`` of two; rank None: all."""
    return x if rank is None else x[rank * len(x) // 2 : (rank + 1) * len(x) // 2]


#: Up to torch 2.2 there are no scalers for CPUs.
SCALERS = hasattr(torch.amp, "GradScaler")


def sgd(model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    """Return the optimizer of these scripts."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)


def loss_of(model: torch.nn.Module, step: int, rank: Optional[int]) -> torch.Tensor:
    """Return the loss of the rows of a step that belong to ``rank``; None: of all."""
    loss: torch.Tensor = model(half(data(step), rank)).pow(2).mean()
    return loss


def scaler_of(scale: float = 2.0**10) -> Any:
    """Return an AMP scaler."""
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)


def check(model: torch.nn.Module, alone: torch.nn.Module) -> None:
    """The distributed model equals the plain one, and is the same on both ranks to the bit."""
    import ddl_torch as ddl

    own = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(own, torch.cat([p.detach().reshape(-1) for p in alone.parameters()]), **F64)
    assert torch.equal(*ddl.allgather(own.unsqueeze(0)))


def both(script: Script, **always: Any) -> None:
    """Run ``script(rank, wrap, model)`` plainly and distributed, on equal models, and compare the models.

    ``always``: options of ``DistributedOptimizer``, besides those that the script passes to ``wrap``.
    """
    import ddl_torch as ddl

    def wrap(optimizer: torch.optim.Optimizer, **options: Any) -> Any:
        return ddl.DistributedOptimizer(
            optimizer, **{"tune_allocator": False, "bucket_bytes": 512, **always, **options}
        )

    alone, model = linear(6, 10, 3), linear(6, 10, 3)
    script(None, lambda optimizer, **_: optimizer, alone)
    script(ddl.rank(), wrap, model)
    check(model, alone)
