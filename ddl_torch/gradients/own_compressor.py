"""What ``DistributedOptimizer`` does with a ``Compressor`` of the user's own.

When a bucket is full, ``compress`` gets each of its gradients. What it returns is all-reduced in its own type, together
with all others of that type in the bucket. ``decompress`` gets its part of the result, and what it returns goes to the
gradient's place. So a bucket costs two calls of Python for each parameter, a copy of what is sent, and an operation for
each type besides one for the bucket's flags.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import torch

import ddl
from ddl_torch import _operations
from ddl_torch._operations import Operation
from ddl_torch._tensors import plain
from ddl_torch.gradients.bucket import GradientBucket

__all__ = ["send_compressed"]


def send_compressed(
    bucket: GradientBucket,
    compressor: Any,
    communicator: ddl.Communicator,
    op: ddl.ReduceOp,
    predivide: float,
    overlap: bool,
) -> None:
    """Stand in for ``bucket.send``; ``compressor``: what has ``compress`` and ``decompress``.

    Raises ``InvalidArgument`` if ``compress`` does not return a tensor that can be reduced, or ``decompress`` another
    shape than the gradient's.
    """
    names = [entry.name for entry in bucket.entries]
    pairs = [_pair(compressor.compress(gradient), name) for gradient, name in zip(_gradients(bucket), names)]
    by_type: Dict[torch.dtype, List[int]] = {}  # which of them are reduced together
    for i, (small, _) in enumerate(pairs):
        by_type.setdefault(small.dtype, []).append(i)
    flags = bucket.send_flags(communicator, op, overlap)
    operations = []
    for numbers in by_type.values():
        together = torch.cat([pairs[i][0].reshape(-1) for i in numbers])
        operations.append(_operations.allreduce(together, op, 1.0 / predivide, predivide, True))
    waits = [_begun(operation, communicator, overlap) for operation in operations]

    def finish() -> None:
        flags()
        reduced = [operation.finish(wait()) for operation, wait in zip(operations, waits)]
        gradients = _gradients(bucket)
        for numbers, together in zip(by_type.values(), reduced):
            parts = torch.split(together, [pairs[i][0].numel() for i in numbers])
            for i, part in zip(numbers, parts):
                small, context = pairs[i]
                result = compressor.decompress(part.view(small.shape), context)
                if not isinstance(result, torch.Tensor) or result.shape != gradients[i].shape:
                    raise ddl.InvalidArgument(
                        f"bucket.{bucket.number}: decompress returned {_described(result)} for parameter {names[i]!r}, "
                        f"whose gradient has the shape {tuple(gradients[i].shape)}"
                    )
                gradients[i].copy_(result)

    bucket.sending(finish)


def _gradients(bucket: GradientBucket) -> List[torch.Tensor]:
    """Return the gradients of the bucket's entries, in its present memory."""
    memory = bucket.values()  # not its own tensor: it counts who else writes to that, and who else keeps it
    views = [entry.view for entry in bucket.entries]
    return [memory.as_strided(view.shape, view.stride(), view.storage_offset()) for view in views if view is not None]


def _pair(answer: Any, name: str) -> Tuple[torch.Tensor, Any]:
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], torch.Tensor)):
        raise ddl.InvalidArgument(
            f"compress returned {_described(answer)} for parameter {name!r}; it must return a pair: the tensor that is "
            "to be reduced, and what decompress needs to know"
        )
    return plain(answer[0], f"compress of parameter {name!r}"), answer[1]


def _begun(operation: Operation[torch.Tensor], communicator: ddl.Communicator, overlap: bool) -> Callable[[], Any]:
    """Start it in the background, or return what does all of it."""
    if overlap:
        return operation.start(communicator).wait
    call = operation.call
    return operation.start(communicator).wait if call is None else lambda: call(communicator)


def _described(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
    return f"a {type(value).__name__}{shape}"
