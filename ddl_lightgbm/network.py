"""``network``: LightGBM's two collectives, made of DDL's, by the function of its C interface that asks for them.

LightGBM reduces what only it knows: histograms, and the best splits found so far. It hands us the function that
combines two of them. So the bytes go to the rank that needs them, and that rank combines them, in the order in which
LightGBM's own sockets would have: the sums, and with them the model, have the same bits.

LightGBM keeps its network for each thread. A collective that fails makes it throw, as a lost socket of its own does,
and what it has begun is undone; ``network`` then raises DDL's error in place of LightGBM's.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
from lightgbm.basic import _LIB, _safe_call

import ddl
from ddl.adapter.calls import Call, Collective, calls_of
from ddl.adapter.throwing import throwing_collectives

__all__ = ["network"]

_INTS = ctypes.POINTER(ctypes.c_int32)
#: reduce(from, into, bytes of one element, bytes)
_REDUCER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int32)
#: (input, its bytes, where each rank's block begins, bytes of each, ranks, output, its bytes) -> 0, or it has failed
_ALLGATHER = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32, _INTS, _INTS),
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32),
)
_REDUCE_SCATTER = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int, _INTS, _INTS),
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(_REDUCER)),
)
#: From so many bytes on, LightGBM's sockets reduce in a ring, unless the number of ranks is a power of two.
_RING_BYTES = 10 * 1024 * 1024


_of_thread = threading.local()


def has_network() -> bool:
    """Return whether this thread is in the body of ``network``."""
    return getattr(_of_thread, "collectives", None) is not None


@contextmanager
def network(communicator: Optional[ddl.Communicator] = None) -> Iterator[Dict[str, Any]]:
    """Let LightGBM use DDL in the body of a ``with``, on this thread; give the parameters that it needs for that.

    Make ``lightgbm.Dataset``, train, and use estimators of ``lightgbm.sklearn`` in it, in the same order on all ranks
    of ``communicator`` (None: all ranks), with the same parameters, each with its own rows. Do not pass ``machines``. A
    body within another one uses the network of that.

    Raises ``PeerLost`` and the other errors of collectives instead of LightGBM's, and ``InvalidState`` before ``init``.

    >>> with ddl_lightgbm.network() as parameters:
    ...     model = lightgbm.LGBMClassifier(**parameters).fit(x, y)
    """
    communicator = ddl.world() if communicator is None else communicator
    if communicator.size == 1:
        yield {}
        return
    parameters = {"num_machines": communicator.size, "tree_learner": "data", "pre_partition": True}
    if has_network():
        yield parameters
        return
    collectives = _Collectives(communicator)
    _safe_call(_LIB.LGBM_NetworkInitWithFunctions(communicator.size, communicator.rank, *collectives.addresses()))
    _of_thread.collectives = collectives
    try:
        yield parameters
    finally:
        _of_thread.collectives = None
        _safe_call(_LIB.LGBM_NetworkFree())
        if collectives.error is not None:  # in place of what LightGBM has raised
            raise collectives.error from None


class _Collectives:
    """LightGBM's collectives on a communicator. ``error``: the first with which one has failed."""

    def __init__(self, communicator: ddl.Communicator) -> None:
        self.error: Optional[BaseException] = None
        self._calls = calls_of(communicator)
        self._rank, self._size = communicator.rank, communicator.size
        # They live as long as this object; LightGBM has their addresses.
        self._functions = _REDUCE_SCATTER(self._kept(self._reduce_scatter)), _ALLGATHER(self._kept(self._allgather))

    def addresses(self) -> Tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Return those for LightGBM. They throw by a function of LightGBM's own C++ library."""
        raising = getattr(_LIB, "_ZSt21__throw_runtime_errorPKc", None)
        if raising is None:
            raise ddl.InvalidState(
                "ddl_lightgbm: this build of LightGBM hides its C++ library, by which a failure would reach it; "
                "install LightGBM's wheel: pip install lightgbm"
            )
        functions = (*self._functions, raising)
        scatter, gather = throwing_collectives(*(ctypes.cast(each, ctypes.c_void_p).value or 0 for each in functions))
        return ctypes.c_void_p(scatter), ctypes.c_void_p(gather)

    def _kept(self, collective: Callable[..., None]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            try:
                if self.error is None:
                    collective(*arguments)
            except BaseException as error:  # no exception of Python's can pass through LightGBM
                self.error = error
            return int(self.error is not None)

        return call

    def _allgather(self, given: int, length: int, _: Any, lengths: Any, ranks: int, out: int, out_bytes: int) -> None:
        parts = lengths[:ranks]
        own = _memory(given, length).copy()  # LightGBM may pass the same memory for both
        self._run(Collective.ALLGATHER, own, _memory(out, sum(parts)), parts, sum(parts))

    def _reduce_scatter(self, given: int, total: int, element: int, _: Any, lengths: Any, *rest: Any) -> None:
        ranks, out, _, reducer = rest
        parts = lengths[:ranks]  # they lie one behind the other, as LightGBM's own sockets send several as one
        own = parts[self._rank]
        rows = np.empty((ranks, own), np.uint8)
        self._run(Collective.ALLTOALL, _memory(given, sum(parts)), rows, parts * ranks, sum(parts))
        if not own:
            return
        order = _ring(self._rank, ranks) if total >= _RING_BYTES and ranks & (ranks - 1) else _halving(ranks)
        for source, into in order:
            reducer[0](rows[source].ctypes.data, rows[into].ctypes.data, element, own)
        _memory(out, own)[:] = rows[order[-1][1]]

    def _run(self, collective: Collective, given: Any, result: Any, parts: List[int], size: int) -> None:
        call = Call(collective, given, result, None, part_lengths=parts, bytes=size, count_differs=True)
        self._calls.run(call, "LightGBM")


def _memory(address: Optional[int], length: int) -> np.ndarray:
    """Return the bytes there, not a copy of them."""
    if not length:
        return np.empty(0, np.uint8)
    place: Any = (ctypes.c_char * length).from_address(address or 0)
    return np.frombuffer(place, np.uint8)


def _ring(rank: int, ranks: int) -> List[Tuple[int, int]]:
    """Return which rank's numbers are added into which other one's, for the block of ``rank``."""
    return [((rank + i) % ranks, (rank + i + 1) % ranks) for i in range(1, ranks)]


def _halving(ranks: int) -> List[Tuple[int, int]]:
    """Return the same for recursive halving; so many of the last ranks come in pairs that a power of two is left."""
    power = 1 << ranks.bit_length() - 1
    pairs = [(ranks - 1 - 2 * i, ranks - 2 - 2 * i) for i in range(ranks - power)]
    left = sorted(set(range(ranks)) - {source for source, _ in pairs})
    while len(left) > 1:
        half = len(left) // 2
        pairs += zip(left[half:], left[:half])
        left = left[:half]
    return pairs
