"""``LowRankBucket``: averages the gradients of one bucket as products of thin matrices (PowerSGD).

A gradient M (n x m) is approximated by P Q, P (n x r) and Q (r x m) for a small rank r, found by one step of power
iteration from the Q of the step before: P = average of M Q^T, made orthonormal; Q = average of P^T M. So instead of M
two thin matrices are averaged, of all parameters of the bucket together: two flat all-reduces, the second when the
first is there. What P Q lacks of M is kept and added to the next gradient (error feedback). Vectors, the bucket's
flags, and matrices that would not shrink go along uncompressed with the first.

All ranks get the same bits on any mix of processors: what follows from the two averages is computed element by element,
in an order that no library chooses. A gradient that is not finite makes the result so, and leaves the state as it was.

Source: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019 (arXiv 1905.13727), algorithms 1 and 2.
"""

from __future__ import annotations

from typing import Callable, List, Optional

import numpy as np
import torch

import ddl
from ddl_torch.gradients.bucket import GradientBucket
from ddl_torch.gradients.flat_memory import FlatMemory

__all__ = ["LowRankBucket", "orthonormal"]

_BLOCK = 1 << 15  # elements that are worked on at a time, in the second-level cache


class _Matrix:
    """One compressed gradient: views of the bucket, of the error, and of the flat buffers of factors."""

    def __init__(self, number: int, parameter: torch.Tensor, rank: int, seed: int) -> None:
        shape = parameter.shape
        self.number = number  # of the entry of the bucket
        self.gradient = torch.empty(0)  # of any number of dimensions; bound before it is used
        self.rows, self.columns = shape[0], shape.numel() // shape[0]
        self.rank = rank
        self.error = torch.zeros(self.rows, self.columns, device=parameter.device)
        self.start = _uniform(rank, self.columns, seed).to(parameter.device)  # the next power iteration begins with it
        self.seed = seed

    def bind(self, p: torch.Tensor, q: torch.Tensor) -> None:
        self.p, self.q = p.view(self.rows, self.rank), q.view(self.rank, self.columns)

    def add_error(self) -> torch.Tensor:
        """Add what was left over to the gradient, and return that as a matrix."""
        self.gradient.add_(self.error.view(self.gradient.shape))
        return self.gradient.reshape(self.rows, self.columns)

    def finish(self, divisor: int, keep: bool) -> None:
        """Make the gradient P Q, and keep what it lacks of this rank's own, if ``keep``."""
        step = max(1, _BLOCK // self.columns)
        matrix = self.gradient.reshape(self.rows, self.columns)
        for row in range(0, self.rows, step):
            rows = slice(row, row + step)
            # Sums of products, in this order: a matrix product may use another one on another processor.
            product = self.p[rows, :1] * self.q[0]
            for r in range(1, self.rank):
                product += self.p[rows, r : r + 1] * self.q[r]
            if keep:
                torch.sub(matrix[rows], product, alpha=1 / divisor, out=self.error[rows])
            matrix[rows] = product
        if matrix.data_ptr() != self.gradient.data_ptr():
            self.gradient.copy_(matrix.view(self.gradient.shape))
        if keep:
            # A direction in which there was no gradient is tried anew.
            lost = (self.q == 0).all(1, keepdim=True)
            self.start = torch.where(lost, _uniform(self.rank, self.columns, self.seed).to(self.q.device), self.q)


class LowRankBucket:
    """Stands in for the all-reduce of a bucket of float32. ``rank``: of the products."""

    def __init__(self, bucket: GradientBucket, communicator: ddl.Communicator, op: ddl.ReduceOp, rank: int) -> None:
        self._bucket = bucket
        self._communicator = communicator
        self._op = op
        self._matrices: List[_Matrix] = []
        self._uncompressed: List[int] = []  # numbers of entries
        for number, entry in enumerate(bucket.entries):
            shape = entry.parameter.shape
            thin = min(rank, *shape) if len(shape) > 1 and shape.numel() else 0
            if thin and thin * (shape[0] + shape.numel() // shape[0]) < shape.numel():
                self._matrices.append(_Matrix(number, entry.parameter, thin, bucket.number << 20 | number))
            else:
                self._uncompressed.append(number)
        self._bind()
        sizes_p = [m.rows * m.rank for m in self._matrices]
        sizes_q = [m.columns * m.rank for m in self._matrices]
        plain = [tensor.numel() for tensor in self._plain]
        device = bucket.flat.device
        self._first = FlatMemory(sum(plain) + sum(sizes_p), torch.float32, device)
        self._second = FlatMemory(sum(sizes_q), torch.float32, device)
        *self._copies, factors = torch.split(self._first.tensor, [*plain, sum(sizes_p)])
        both = zip(torch.split(factors, sizes_p), torch.split(self._second.tensor, sizes_q))
        for matrix, (p, q) in zip(self._matrices, both):
            matrix.bind(p, q)
        self._name = f"bucket.{bucket.number}"
        self._kept = False  # the last gradient has left an error

    def _bind(self) -> None:
        """Work on the memory that the bucket has now."""
        self._memory = self._bucket.flat
        # Not the bucket's own tensor: it counts who else writes to that.
        values = self._bucket.values()

        def gradient(number: int) -> torch.Tensor:
            view = self._bucket.entries[number].view
            assert view is not None
            return values.as_strided(view.shape, view.stride(), view.storage_offset())

        self._plain = [values[self._bucket.flags_offset :], *map(gradient, self._uncompressed)]
        for matrix in self._matrices:
            matrix.gradient = gradient(matrix.number)

    def send(self, overlap: bool) -> None:
        """As ``GradientBucket.send``: the first all-reduce runs in the background if ``overlap``, the rest later."""
        if self._memory is not self._bucket.flat:
            self._bind()
        for copy, tensor in zip(self._copies, self._plain):
            copy.view(tensor.shape).copy_(tensor)
        for matrix in self._matrices:
            torch.mm(matrix.add_error(), matrix.start.t(), out=matrix.p)
        first = self._first.reduction(self._communicator, self._op, f"{self._name}.p", start=overlap)
        flags = self._bucket.send_flags(self._communicator, self._op, overlap) if self._bucket.on_gpu else None
        self._bucket.sending(lambda: self._finish(first, flags))

    def forget(self) -> None:
        """As ``GradientBucket.forget``."""
        if self._kept:
            for matrix in self._matrices:
                matrix.error.zero_()

    def _finish(self, first: Callable[[], object], flags: Optional[Callable[[], None]]) -> None:
        first()
        if flags is not None:
            flags()
        for copy, tensor in zip(self._copies, self._plain):
            tensor.copy_(copy.view(tensor.shape))
        if not self._matrices:
            return
        for matrix in self._matrices:
            matrix.p.copy_(orthonormal(matrix.p))
            torch.mm(matrix.p.t(), matrix.gradient.reshape(matrix.rows, matrix.columns), out=matrix.q)
        self._second.reduction(self._communicator, self._op, f"{self._name}.q", start=False)()
        self._kept = bool(torch.isfinite(self._second.tensor).all())  # a P that is not finite makes a Q that is not
        divisor = self._communicator.size if self._op == ddl.Sum else 1
        for matrix in self._matrices:
            # What no rank uses is used nowhere: what was left over is sent again.
            matrix.finish(divisor, self._kept and self._bucket.is_used(matrix.number))


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """Return the columns of a matrix (n x r, float32) made orthonormal, the same bits on every processor.

    Modified Gram-Schmidt in float64. A column that depends on those before it becomes zeros.
    """
    rows = columns.t().double().contiguous()
    before = _sums(rows * rows)
    for r, row in enumerate(rows):
        square = _sums((row * row).unsqueeze(0))
        # What is left of a dependent column is rounding of float32 alone. Written so that a NaN stays.
        row *= torch.where(square <= before[r] * 1e-12, 0.0, 1 / square.sqrt())
        rest = rows[r + 1 :]
        rest -= _sums(rest * row).unsqueeze(1) * row
    return rows.t().float()


def _sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row, halving: only additions of elements, whose order is fixed."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        folded = rows[:, :half] + rows[:, half : 2 * half]
        rows = torch.cat([folded, rows[:, 2 * half :]], 1) if rows.shape[1] % 2 else folded
    return rows[:, 0]


def _uniform(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Return numbers between -1 and 1, the same on all ranks."""
    return torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, (rows, columns)).astype(np.float32))
