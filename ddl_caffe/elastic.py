"""Elastic training in Caffe: a state that has a solver. ``run`` and ``fenced`` are in ddl/adapter/.

Python can read and write a net's blobs, but not what a solver keeps: its history, such as momenta, and its iteration.
Ranks that differ in these would take other steps. Both are in a snapshot, though. So a commit is a snapshot, which is
read into memory and removed. Caffe aborts the process of a rank other than 0 that writes one, so each rank says that it
is rank 0 meanwhile. And a layer that reads ahead knows from the start which rank it reads for. So after a change the
solver is made anew.

States in general are in ddl/adapter/elastic.py, which knows no framework.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, Optional

import caffe
from caffe.proto import caffe_pb2
from google.protobuf import text_format

import ddl
from ddl.adapter.buckets import BUCKET_BYTES
from ddl.adapter.elastic import Handler, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from ddl.adapter.fence import fenced
from ddl.adapter.rank_prefix import naming_rank
from ddl_caffe.averaging import attach
from ddl_caffe.data import init
from ddl_caffe.state import parameters_of, solver_of

__all__ = ["CaffeState", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "fenced", "run"]


class CaffeState(ObjectState):
    """The state of a training: ``state.solver``, and plain data by any names, ``state.epoch += 1``.

    path: the solver's prototxt. The solver is made here, as after ``init``, and attached. When ranks have come or gone,
    it is made anew: it has what the old one had, and its layers read this rank's share from their first row. So do not
    keep it, its net or an array of its blobs elsewhere, and give a MemoryData layer its rows in the function that
    ``run`` calls. ``overlap`` and ``bucket_bytes`` are as for ``attach``. ``sync`` gives all ranks the solver of rank
    0: weights, statistics, history and iteration.

    A commit writes weights and history to the folder of temporary files, and reads them. The solver writes no other
    snapshots: instead of ``ddl_caffe.snapshot`` and of ``snapshot`` in the prototxt, call ``write_snapshot``. Raises
    ``ConfigError`` where the prototxt cannot be read.

    >>> state = ddl_caffe.elastic.CaffeState("solver.prototxt", epoch=0)
    """

    def __init__(self, path: str, *, overlap: bool = True, bucket_bytes: int = BUCKET_BYTES, **values: Any) -> None:
        try:
            self._param = parameters_of(path)
        except (OSError, ValueError, text_format.ParseError) as error:
            raise ddl.ConfigError(f"CaffeState: {path}: {error}") from error
        self._prefix = self._param.snapshot_prefix
        self._snapshots = _SnapshotHandler()
        self._param.snapshot_prefix, self._param.snapshot = str(self._snapshots.stem), 0
        self._param.snapshot_format = caffe_pb2.SolverParameter.BINARYPROTO
        self._attach = partial(attach, overlap=overlap, bucket_bytes=bucket_bytes)
        self._world: Optional[ddl.Communicator] = None
        self.solver: Any = None
        self._make_solver()
        super().__init__(**values)
        self._names = ("solver", *self._names)
        self.save()

    def handler(self, value: Any) -> Optional[Handler]:
        """Return how ``value`` is kept; None for plain data."""
        return self._snapshots if value is self.solver else None

    def reset(self) -> None:
        """Make the solver anew for the present ranks, with what it has. Not collective."""
        kept = self._snapshots.save(self.solver)
        self._make_solver()
        self._snapshots.restore(self.solver, kept)

    def sync(self) -> None:
        """Give all ranks the values of rank 0, and save. Collective, blocking."""
        if self._world is not ddl.world():  # this process has just joined
            self._make_solver()
        super().sync()

    @naming_rank
    def write_snapshot(self) -> None:
        """Write what was saved last as Caffe's snapshot, where the prototxt wants it. Not collective; for rank 0.

        The files are as Caffe's own: their names end with ``_iter_N.caffemodel`` and ``_iter_N.solverstate``. Raises
        ``LeftOut`` if the job goes on without this process, and ``OSError``.

        >>> if ddl.rank() == 0:
        ...     state.write_snapshot()
        """
        for path, content in _files(self._saved["solver"], self._prefix).items():
            with fenced(path) as draft:
                draft.write_bytes(content)

    def _make_solver(self) -> None:
        self.solver = None  # before another one opens the same data
        init()
        self.solver = solver_of(self._param)
        self._attach(self.solver)
        self._world = ddl.world()


def _files(saved: Dict[str, bytes], prefix: str) -> Dict[str, bytes]:
    """Return the two files of a snapshot, by their paths; the second one names the first."""
    state = caffe_pb2.SolverState.FromString(saved["solverstate"])
    stem = f"{prefix}_iter_{state.iter}"
    state.learned_net = f"{stem}.caffemodel"
    return {state.learned_net: saved["caffemodel"], f"{stem}.solverstate": state.SerializeToString()}


class _SnapshotHandler:
    """Saves a solver by a snapshot. Its files are in a folder of this process while it is written or read."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir(), f"ddl_caffe.{secrets.token_hex(8)}")
        self.stem = self._folder / "solver"

    def save(self, value: Any) -> Any:
        with self._existing():
            caffe.set_solver_rank(0)
            try:
                value.snapshot()
            finally:
                caffe.set_solver_rank(ddl.rank())
            return {path.suffix[1:]: path.read_bytes() for path in self._folder.iterdir()}

    def restore(self, value: Any, saved: Any) -> None:
        files = _files(saved, str(self.stem))
        with self._existing():
            for path, content in files.items():
                Path(path).write_bytes(content)
            value.restore(list(files)[-1])

    def sync(self, value: Any) -> None:
        self.restore(value, ddl.world().broadcast_object(self.save(value) if ddl.rank() == 0 else None))

    @contextlib.contextmanager
    def _existing(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700)
        try:
            yield
        finally:
            shutil.rmtree(self._folder)
