"""Virtual shards: a step has the same bits on any number of ranks.

The batch of a step is cut into V *shards* of fixed size; V is at least the largest number of ranks that there may be.
Each rank computes the gradients of its shards one after another. They are added along the canonical tree over the V
shards (ddl/plan/canonical_tree.py), not over the ranks. So 1 rank, V ranks and all numbers between get the same bits,
the global batch stays the same, and so does the learning rate. If N ranks do not divide V, a step takes as long as
ceil(V / N) shards. What is random in a shard must depend on the shard and not on its rank: ``shard_seed``.
"""

from __future__ import annotations

import hashlib
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np

from ddl.adapter.arrays import as_array
from ddl.adapter.consistency import check_consistent
from ddl.adapter.rank_prefix import naming_rank
from ddl.communicator import Communicator
from ddl.errors import InvalidArgument
from ddl.memory import empty
from ddl.plan.canonical_tree import Order, order
from ddl.reduce_op import Sum

__all__ = ["VirtualSum", "owners_of", "shard_seed", "shards_of"]

_BLOCK = 16384  # elements that are added at a time, so that they stay in the cache
_TYPES = ("float16", "bfloat16", "float32", "float64")


def shards_of(rank: int, size: int, shards: int, *, adjacent: bool = False) -> Tuple[int, ...]:
    """Return the numbers of the shards that ``rank`` of ``size`` ranks computes, ascending.

    shards: V, at least ``size``. By default they are those v with v mod size = rank. With ``adjacent`` they are a run
    of numbers, which may save bytes: see ``VirtualSum``. Not collective. Raises ``InvalidArgument`` for numbers that
    cannot be.

    >>> shards_of(1, 4, 10), shards_of(1, 4, 10, adjacent=True)
    ((1, 5, 9), (2, 3, 4))
    """
    if not 0 <= rank < size:
        raise InvalidArgument(f"virtual shards: rank={rank} is not one of size={size} ranks")
    if shards < size:
        raise InvalidArgument(f"virtual shards: {shards} shards are too few for {size} ranks; each rank needs one")
    if adjacent:
        return tuple(range(rank * shards // size, (rank + 1) * shards // size))
    return tuple(range(rank, shards, size))


def owners_of(size: int, shards: int, *, adjacent: bool = False) -> Tuple[int, ...]:
    """Return the rank of each shard, as ``shards_of`` deals them. Not collective. Raises as that does.

    >>> owners_of(2, 5), owners_of(2, 5, adjacent=True)
    ((0, 1, 0, 1, 0), (0, 0, 1, 1, 1))
    """
    rank_of = {v: rank for rank in range(size) for v in shards_of(rank, size, shards, adjacent=adjacent)}
    return tuple(rank_of[v] for v in range(shards))


def shard_seed(seed: int, step: int, shard: int) -> int:
    """Return a seed below 2^64 for what is random in ``shard`` of ``step``: dropout, augmentation.

    It depends on these three numbers only (by BLAKE2b), so it moves with the shard to another rank. Set it before each
    shard's forward pass.

    >>> torch.manual_seed(shard_seed(seed, step, shard))
    """
    text = f"{int(seed)} {int(step)} {int(shard)}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


class _TreeOnRanks:
    """Which sums of the tree over V shards the ranks hold alone, and how the owner of a chunk adds them up.

    parts[r]: the largest parts of the tree whose shards are all of rank r; r sends a sum of each. additions: pairs of
    rows, where the parts of all ranks lie in rank order; the second row of a pair is added to the first.
    is_over_ranks: each rank has a single part, and what is above them is the canonical tree over the ranks.
    """

    def __init__(self, size: int, owners: Sequence[int]) -> None:
        """``owners[v]``: the rank that has shard v."""
        self.root = order(0, len(owners))
        self._rank_of = owners
        self.parts: List[List[Order]] = [[] for _ in range(size)]
        holder = self._collect(self.root)
        if holder is not None:
            self.parts[holder].append(self.root)
        rows = {part: row for row, part in enumerate(part for parts in self.parts for part in parts)}
        self.additions = list(_additions(self.root, rows))
        self.is_over_ranks = len(rows) == size and _renamed(self.root, rows) == order(0, size)

    def _collect(self, tree: Order) -> Optional[int]:
        """Return the rank that holds all of ``tree``; if there is none, note who holds which parts of it."""
        if isinstance(tree, int):
            return self._rank_of[tree]
        holders = [self._collect(child) for child in tree]
        if holders[0] is not None and holders[0] == holders[1]:
            return holders[0]
        for child, holder in zip(tree, holders):
            if holder is not None:
                self.parts[holder].append(child)
        return None


def _additions(tree: Order, rows: Dict[Order, int]) -> Iterator[Tuple[int, int]]:
    """Yield which row is to be added to which, in order, until the first row of ``tree`` has its sum."""
    if tree in rows or isinstance(tree, int):
        return
    for child in tree:
        yield from _additions(child, rows)
    yield _row(tree[0], rows), _row(tree[1], rows)


def _row(tree: Order, rows: Dict[Order, int]) -> int:
    """Return the row in which the sum of ``tree`` comes to be."""
    while tree not in rows:
        assert not isinstance(tree, int)  # each shard is in a part
        tree = tree[0]
    return rows[tree]


def _renamed(tree: Order, rows: Dict[Order, int]) -> Order:
    """Return ``tree`` with the number of its row for each part."""
    if tree in rows or isinstance(tree, int):
        return rows[tree]
    return tuple(_renamed(child, rows) for child in tree)


def _parents(tree: Order) -> Dict[Order, Tuple[Order, ...]]:
    """Return for each part of ``tree``, but for itself, the part that it is an operand of."""
    if isinstance(tree, int):
        return {}
    result: Dict[Order, Tuple[Order, ...]] = {}
    for child in tree:
        result[child] = tree
        result.update(_parents(child))
    return result


def _add(low: np.ndarray, high: np.ndarray, out: np.ndarray, divisor: int = 1) -> None:
    """Write (low + high) / divisor to ``out``, as the core does: 16-bit types in float32, rounded once at the end."""
    for start in range(0, low.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        if low.itemsize == 2:
            wide = low[block].astype(np.float32)
            wide += high[block].astype(np.float32)
            if divisor > 1:
                wide /= np.float32(divisor)
            out[block] = wide
        else:
            np.add(low[block], high[block], out=out[block])
            if divisor > 1:
                out[block] /= out.dtype.type(divisor)


def _new(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return an array in shared memory, also of bfloat16, which is no type of numpy's own."""
    array: np.ndarray = empty(shape, np.uint16 if dtype.itemsize == 2 else dtype).view(dtype)
    return array


def _bits(array: np.ndarray) -> np.ndarray:
    """Return what the core moves: the same memory, of a type that it can read."""
    return array.view(np.uint16) if array.dtype.itemsize == 2 else array


class _Buffers:
    """The memory of a ``VirtualSum`` for gradients of one length and type."""

    def __init__(self, count: int, dtype: np.dtype, parts: int, rows: int, size: int) -> None:
        self.count, self.dtype = count, dtype
        self.chunk = -(-count // size)  # of a gradient, which is sent with zeros behind it where it does not divide
        self.sent = _new((size, parts, self.chunk), dtype)
        self.sent.fill(0)
        self.received = _new((rows if size > 1 else 0, self.chunk), dtype)
        self.whole = _new((size * self.chunk,), dtype)
        self._free: List[np.ndarray] = []

    def pieces(self, part: int) -> Iterator[Tuple[slice, np.ndarray]]:
        """Yield the pieces of a gradient, and where those of part number ``part`` lie to be sent."""
        for owner in range(len(self.sent)):
            piece = slice(owner * self.chunk, min(self.count, (owner + 1) * self.chunk))
            if piece.start < piece.stop:
                yield piece, self.sent[owner, part, : piece.stop - piece.start]

    def borrow(self) -> np.ndarray:
        return self._free.pop() if self._free else np.empty(self.count, self.dtype)

    def give_back(self, array: np.ndarray) -> None:
        self._free.append(array)


class VirtualSum:
    """The average of the gradients of V virtual shards, with the same bits on any number of ranks from 1 to V.

    communicator: of the ranks that compute the shards. shards: V. adjacent: see ``shards_of``. owners: the rank of each
    shard, V numbers, where they are not dealt as ``shards_of`` does; each rank has one shard or more. These are the
    same on all ranks. Making it is not collective; it belongs to the communicator, so a new generation of ranks makes
    another. Used by one thread at a time.

    Gradients are float16, bfloat16 (of ml_dtypes), float32 or float64, of one length and type, on the CPU: numpy arrays
    or anything with DLPack. Sums round as in ``deterministic=True`` (docs/deterministic.md): after each addition to the
    type, and the average after its division. With V ranks it has the bits of such an all-reduce.

    **Bytes.** Sums of shards that lie together in the tree are added before anything is sent. A rank then sends chunk r
    of each of its k sums to rank r (all-to-all), which adds along the tree and sends the average of its chunk to all
    (all-gather). With N ranks and a gradient of S bytes, these are (k + 1) S (N - 1) / N bytes of each rank. A plain
    all-reduce sends 2 S (N - 1) / N. By default, k is V / N (and 1 on one rank, which sends nothing). With
    ``adjacent``, k is 1 if V / N is a power of two, so it sends as much as a plain all-reduce; otherwise k is at most
    2 log2(V / N) or so. For V = 12 and N = 4 it is 3 by default and 2 with ``adjacent``; for V = 16, 4 and 1. If k is 1
    on a communicator that is deterministic or has two ranks, the core's all-reduce does it, but for 16-bit types.

    **Memory**, of each rank: (k + 1) S for what is sent and the result, and V S / N for what comes in. Beside that,
    unfinished sums of its own: with ``adjacent`` or on one rank at most log2 V times S.

    >>> total = VirtualSum(ddl.world(), shards=12)
    >>> for shard in total.own:
    ...     total.add(shard, gradient_of(shard))
    >>> average = total.average()
    """

    def __init__(
        self,
        communicator: Communicator,
        shards: int,
        *,
        adjacent: bool = False,
        owners: Optional[Sequence[int]] = None,
    ) -> None:
        """Raises ``InvalidArgument`` if there are fewer shards than ranks, or a rank has none."""
        size = communicator.size
        if owners is None:
            owners = owners_of(size, shards, adjacent=adjacent)
        elif len(owners) != shards or set(owners) != set(range(size)):
            raise InvalidArgument(
                f"VirtualSum: owners={list(owners)} must name a rank for each of {shards} shards, and each of "
                f"{size} ranks"
            )
        self.shards = shards  #: V
        self.own = tuple(v for v, owner in enumerate(owners) if owner == communicator.rank)  #: this rank's shards
        self._communicator = communicator
        self._owners = tuple(owners)
        self._tree = _TreeOnRanks(size, owners)
        parts = self._tree.parts[communicator.rank]
        self._part_number = {part: number for number, part in enumerate(parts)}
        self._parent = {child: parent for part in parts for child, parent in _parents(part).items()}
        self._buffers: Optional[_Buffers] = None
        self._checked = False
        self._added: Set[int] = set()
        self._waiting: Dict[Order, np.ndarray] = {}  # sums of parts whose sibling in the tree is not there yet

    @naming_rank
    def add(self, shard: int, gradient: Any) -> None:
        """Add the gradient of one of this rank's shards; in any order, each once before each ``average``.

        gradient: an array, which is only read, and may be overwritten afterwards. Not collective. Raises
        ``InvalidArgument`` for a shard of another rank or one that was added, and for another length or type than the
        first gradient had.

        >>> total.add(shard, gradient)
        """
        if shard not in self.own or shard in self._added:
            why = "was added already" if shard in self._added else f"is not one of this rank's, {list(self.own)}"
            raise InvalidArgument(f"VirtualSum: shard {shard} {why}")
        values = as_array(gradient)
        if not isinstance(values, np.ndarray) or values.dtype.name not in _TYPES:
            raise InvalidArgument(f"VirtualSum: gradients are arrays of {', '.join(_TYPES)} on the CPU")
        values = values.reshape(-1)
        if self._buffers is None:
            parts, rows = len(self._part_number), sum(len(parts) for parts in self._tree.parts)
            self._buffers = _Buffers(values.size, values.dtype, parts, rows, self._communicator.size)
        buffers = self._buffers
        if (values.size, values.dtype) != (buffers.count, buffers.dtype):
            raise InvalidArgument(
                f"VirtualSum: the gradient of shard {shard} has {values.size} x {values.dtype}, that of the first one "
                f"{buffers.count} x {buffers.dtype}"
            )
        self._added.add(shard)
        with np.errstate(all="ignore"):  # what is not finite is there to see in the result
            self._climb(shard, values, buffers)

    def _climb(self, node: Order, values: np.ndarray, buffers: _Buffers) -> None:
        """Add ``values``, the sum of ``node``, to what is there, as far up the tree as this rank can by itself."""
        is_own = False  # whether `values` is memory of ours, so that it may be kept
        while node in self._parent:
            parent = self._parent[node]
            is_low = node == parent[0]
            other = self._waiting.pop(parent[1] if is_low else parent[0], None)
            if other is None:
                if not is_own:
                    kept = buffers.borrow()
                    kept[:] = values
                    values = kept
                self._waiting[node] = values
                return
            low, high = (values, other) if is_low else (other, values)
            divisor = self.shards if parent == self._tree.root else 1
            if parent in self._part_number:
                for piece, out in buffers.pieces(self._part_number[parent]):
                    _add(low[piece], high[piece], out, divisor)
                buffers.give_back(other)
            else:
                _add(low, high, other, divisor)
            if is_own:
                buffers.give_back(values)
            if parent in self._part_number:
                return
            node, values, is_own = parent, other, True
        for piece, out in buffers.pieces(self._part_number[node]):
            out[:] = values[piece]

    @naming_rank
    def average(self) -> np.ndarray:
        """Return the average over all shards: a new array, flat, of the gradients' type; the same bits on all ranks.

        Collective, blocking. All shards of this rank have been added; the next ones begin a new average. The first
        call compares the ranks. Raises ``InvalidArgument`` on all ranks, with the communicator unharmed, if they have
        gradients of other lengths or types, other ``shards`` or ``adjacent``, or if one has not added all of its
        shards; ``InvalidArgument`` on that rank alone in later calls, before it has sent anything. After an error all
        shards are to be added again. Raises also what ``ddl.allreduce`` does.

        >>> average = total.average()
        """
        try:
            buffers = self._complete()
            average: np.ndarray = self._exchange(buffers)[: buffers.count].copy()
            return average
        except InvalidArgument:
            if not self._checked:
                self._buffers = None
            raise
        finally:
            self._added.clear()
            self._waiting.clear()

    def _complete(self) -> _Buffers:
        """Return what is to be summed, which is the same on all ranks and has all shards."""
        buffers = self._buffers
        missing = [shard for shard in self.own if shard not in self._added]
        mistake = f"shards {missing} were not added; each of {list(self.own)} is needed" if missing else ""
        if not self._checked:
            size = f"a gradient of {buffers.count} x {buffers.dtype}" if buffers else "no gradient"
            lines = [f"a sum of {self.shards} shards, of ranks {list(self._owners)}", size]
            advice = "Make the sum alike on every rank, and give each shard the whole gradient"
            check_consistent(self._communicator, "VirtualSum", lines, advice, mistake)
            self._checked = True
        if mistake or buffers is None:
            raise InvalidArgument(f"VirtualSum: {mistake}")
        return buffers

    def _exchange(self, buffers: _Buffers) -> np.ndarray:
        """Send sums to the owners of chunks, add them along the tree, and return the average, with its padding."""
        communicator, sums = self._communicator, buffers.sent.reshape(-1)
        if communicator.size == 1 or buffers.count == 0:
            return sums
        adds_by_tree = self._tree.is_over_ranks and (communicator.deterministic or communicator.size == 2)
        if adds_by_tree and sums.itemsize > 2:  # 16-bit types must not be rounded before the division
            communicator.allreduce_(sums, op=Sum)
            with np.errstate(all="ignore"):
                sums /= sums.dtype.type(self.shards)
            return sums
        parts = len(self._part_number)
        sent = _bits(buffers.sent.reshape(-1, buffers.chunk))
        rows = buffers.received
        if all(len(theirs) == parts for theirs in self._tree.parts):
            communicator.alltoall(sent, out=_bits(rows))
        else:
            moved, _ = communicator.alltoall(sent, [parts] * communicator.size)
            rows = moved.view(buffers.dtype)
        part = rows[self._tree.additions[-1][0]]
        with np.errstate(all="ignore"):
            self._add_rows(rows)
        communicator.allgather(_bits(part), out=_bits(buffers.whole))
        return buffers.whole

    def _add_rows(self, rows: np.ndarray) -> None:
        """Add the rows along the tree, block by block; the average comes to be in the first row of the last pair."""
        last = len(self._tree.additions) - 1
        for start in range(0, rows.shape[1], _BLOCK):
            block = rows[:, start : start + _BLOCK]
            for number, (low, high) in enumerate(self._tree.additions):
                _add(block[low], block[high], block[low], self.shards if number == last else 1)
