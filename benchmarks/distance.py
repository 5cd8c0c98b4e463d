"""How far apart the cores of ranks 0 and 1 are at this moment, through the little library of native/probe.cc."""

from __future__ import annotations

import ctypes

__all__ = ["Distance"]


class Distance:
    """``library``: path of the compiled probe.cc; empty: nothing is probed. ``board``: a file that the ranks share."""

    def __init__(self, library: str, board: str, rank: int) -> None:
        self._measure = None
        if library and rank < 2:
            loaded = ctypes.CDLL(library)
            loaded.ddl_bench_probe_open.argtypes = [ctypes.c_char_p, ctypes.c_int]
            loaded.ddl_bench_probe_open.restype = ctypes.c_void_p
            self._measure = loaded.ddl_bench_probe_round_trip
            self._measure.argtypes = [ctypes.c_void_p]
            self._measure.restype = ctypes.c_double
            self._probe = loaded.ddl_bench_probe_open(board.encode(), rank)

    def round_trip(self) -> float:
        """Return nanoseconds; 0 where nothing is probed. Ranks 0 and 1 call it together."""
        return 0.0 if self._measure is None else float(self._measure(self._probe))
