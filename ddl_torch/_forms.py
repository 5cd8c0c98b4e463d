"""The forms of a verb: blocking, in place, ``_async``. They come from one *description*, with its parameters.

A description is a function that returns a ``Submission``. A form has the parameters of its description, for people, for
``help`` and for type checkers.

Autograd can go back through some forms: their backward is a verb, too (``differentiable``).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Generic, List, Optional, Sequence, Tuple, TypeVar

import torch

from ddl.adapter.operations import Operation
from ddl.adapter.rank_prefix import name_rank
from ddl.errors import Error
from ddl_torch._process_set import Where
from ddl_torch._tensors import Work

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

__all__ = ["Submission", "asynchronous", "blocking", "differentiable", "in_place", "of_new_tensors"]

T = TypeVar("T")
Tensors = Sequence[torch.Tensor]


@dataclass
class Submission(Generic[T]):
    """An operation on tensors, the ranks that make it, and the name by which they agree on it.

    ``backward``: gradients of the results -> gradients of the tensors; None: it is not differentiable.
    """

    operation: Callable[[Tensors], Operation[T]]
    tensors: Tensors
    where: Where
    name: Optional[str] = None
    backward: Optional[Callable[[Tensors], List[torch.Tensor]]] = None


def blocking(description: Callable[P, Submission[T]], name: str, doc: str) -> Callable[P, T]:
    """Return the verb ``name`` that waits for the end of its operation. Gradients do not pass it."""

    def verb(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            submission = description(*args, **kwargs)
            return submission.where.run(submission.operation(submission.tensors), submission.name)
        except Error as error:
            name_rank(error)
            raise

    return _form(verb, description, name, doc, "{}")


def of_new_tensors(
    description: Callable[P, Submission[Any]], name: str, doc: str, result: Callable[[Any], T]
) -> Callable[P, T]:
    """Return the verb ``name`` that waits for the end of its operation, and that autograd can go back through.

    ``result``: makes the results of the verb of the list of its new tensors.
    """

    def verb(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            submission = description(*args, **kwargs)
            assert submission.backward is not None

            def run(tensors: Tensors) -> List[torch.Tensor]:
                results = submission.where.run(submission.operation(tensors), submission.name)
                return results if isinstance(results, list) else [results]

            return result(differentiable(run, submission.backward, submission.tensors))
        except Error as error:
            name_rank(error)
            raise

    return _form(verb, description, name, doc, "{}")


def asynchronous(description: Callable[P, Submission[T]], name: str, doc: str = "") -> Callable[P, Work[T]]:
    """Return the verb ``name`` that returns a ``Work`` at once. ``doc``: what is to be said beside that."""

    def verb(*args: P.args, **kwargs: P.kwargs) -> Work[T]:
        try:
            submission = description(*args, **kwargs)
            return submission.where.start(submission.operation(submission.tensors), submission.name)
        except Error as error:
            name_rank(error)
            raise

    blocks, returned = name.replace("_async", ""), "results" if name.startswith("grouped_") else "result"
    text = f"As ``{blocks}``, without blocking: ``wait`` of the ``Work`` returns the {returned}, or raises."
    return _form(verb, description, name, f"{text}\n\n{doc}" if doc else text, "Work[{}]")


def in_place(description: Callable[Concatenate[bool, P], Submission[T]], value: bool) -> Callable[P, Submission[T]]:
    """Return a description whose first parameter, whether it overwrites its tensors, is ``value``."""

    described = partial(description, value)
    described.__module__ = description.__module__
    return described


def _form(verb: Callable[P, T], description: Callable[..., Any], name: str, doc: str, returns: str) -> Callable[P, T]:
    signature = inspect.signature(description)
    of = str(signature.return_annotation)[len("Submission[") : -1]
    verb.__signature__ = signature.replace(return_annotation=returns.format(of))  # type: ignore[attr-defined]
    verb.__name__ = verb.__qualname__ = name
    verb.__module__, verb.__doc__ = description.__module__, doc
    verb.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    verb.__annotations__["return"] = returns.format(of)
    return verb


class _Verb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, run: Callable[[Tensors], Tensors], back: Callable[[Tensors], Tensors], *tensors: torch.Tensor
    ) -> Tuple[torch.Tensor, ...]:
        ctx.back = back
        return tuple(run(tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (None, None, *ctx.back(gradients))


def differentiable(run: Callable[[Tensors], Tensors], back: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors:
    """Return ``run(tensors)``; their gradients are ``back`` of the results' gradients, where autograd wants any."""
    # What is no tensor is refused by ``run``.
    if not torch.is_grad_enabled() or not any(getattr(tensor, "requires_grad", False) for tensor in tensors):
        return run(tensors)
    results: Tuple[torch.Tensor, ...] = _Verb.apply(run, back, *tensors)  # type: ignore[no-untyped-call]
    return results
