"""Training that can go back to its last commit, with the names that Horovod's elastic scripts use.

A ``State`` is saved (commit), set back (restore) and made the same on all ranks (sync). ``run`` runs a training
function with it. This knows no framework: a ``Handler`` saves, restores and synchronises a kind of value, and an
adapter has more of them (ddl_torch/elastic/).

A job of this release has one generation: its ranks stay until it ends. When one is lost, ``run`` restores the last
commit and raises; the job has to be started again (docs/from_horovod.md).
"""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence

import numpy as np

import ddl
from ddl.adapter.consistency import check_consistent
from ddl.errors import CollectiveMismatch, CommunicatorError, InvalidArgument

__all__ = [
    "Arrays",
    "Handler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "broadcast_values",
    "run",
]

#: What a script for Horovod catches when a rank is lost: every error that breaks a communicator.
HorovodInternalError = CommunicatorError

_AFTER_A_LOSS = ", and the ranks of a job are not replaced: save it where it matters, and start the job again"


class HostsUpdatedInterrupt(RuntimeError):
    """Ends the training function, which ``run`` calls again. Nothing in DDL raises it; all ranks must do so together.

    ``skip_sync``: the state is the same on all ranks, and need not be synchronised before. What has recorded only its
    own rank's part, such as an ``ElasticSampler``, is made the same anyway.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class State:
    """What is saved and restored. A class of your own implements ``save``, ``restore`` and ``sync``.

    ``bcast_object``, of one object, is for ``sync`` to use (``_bcast_object``); without, plain data can be sent, as by
    ``ddl.broadcast_object``. ``get_rank`` is accepted as Horovod's; DDL knows.
    """

    def __init__(
        self,
        bcast_object: Optional[Callable[[Any], Any]] = None,
        get_rank: Optional[Callable[[], int]] = None,
    ) -> None:
        self._bcast_object = bcast_object or broadcast_values
        self._reset_callbacks: List[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Call these whenever the training function is about to be called again."""
        self._reset_callbacks += callbacks

    def on_reset(self) -> None:
        """Do what is to be done before the training function is called again. ``run`` calls it, on all ranks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """For a class of your own: work out anew what depends on the ranks. May be collective."""

    def commit(self) -> None:
        """Save; then look whether the hosts have changed. Call it between batches: a failure loses what came after."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise ``HostsUpdatedInterrupt`` if the job's hosts have changed: never yet, as a job keeps its ranks."""

    def save(self) -> None:
        """Keep the values of now in memory. Not collective."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what was saved last. Not collective."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the values of rank 0, and save. Collective, blocking."""
        raise NotImplementedError


class Handler(Protocol):
    """How a kind of value, such as a model, is kept. Has no state of its own."""

    def save(self, value: Any) -> Any:
        """Return a copy of what ``value`` holds."""

    def restore(self, value: Any, saved: Any) -> None:
        """Set ``value`` back to what ``save`` returned, which stays as it is."""

    def sync(self, value: Any) -> None:
        """Make ``value`` the same on all ranks. Collective, blocking."""


class Arrays:
    """The handler of a kind of value that can be read as new, contiguous arrays of numpy, and written as such.

    Raises ``InvalidArgument`` from ``sync``, on all ranks, unless all have arrays of the same types and shapes.
    """

    def __init__(self, read: Callable[[Any], List[np.ndarray]], write: Callable[[Any, List[np.ndarray]], None]) -> None:
        self._read, self._write = read, write

    def save(self, value: Any) -> Any:
        return self._read(value)

    def restore(self, value: Any, saved: Any) -> None:
        self._write(value, saved)

    def sync(self, value: Any) -> None:
        arrays = self._read(value)
        lines = [f"number {i} {array.dtype} of shape {array.shape}" for i, array in enumerate(arrays)]
        check_consistent(
            ddl.world(), "sync: ranks have different variables", lines, "Build the same model on every rank"
        )
        for array in arrays:
            ddl.world().broadcast_(array.reshape(-1).view(np.uint8))
        self._write(value, arrays)


class ObjectState(State):
    """A state whose values are attributes: those that the constructor is given, by any names.

    Values are plain data, as for ``ddl.broadcast_object``, unless ``bcast_object`` can send others. Raises what
    ``save`` does, and ``InvalidArgument`` for a name that is taken.

    >>> state = ObjectState(epoch=0, batch=0)
    >>> state.epoch += 1
    """

    def __init__(
        self,
        bcast_object: Optional[Callable[[Any], Any]] = None,
        get_rank: Optional[Callable[[], int]] = None,
        **values: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = tuple(values)
        for name, value in values.items():
            if hasattr(type(self), name) or name in vars(self):
                raise InvalidArgument(f"{type(self).__name__}: {name!r} is the name of one of its own; choose another")
            setattr(self, name, value)
        self.save()

    def handler(self, value: Any) -> Optional[Handler]:
        """Return how ``value`` is kept; None for plain data, which is copied."""
        return None

    def save(self) -> None:
        """Keep copies of the values of now in memory. Not collective.

        Raises ``InvalidArgument`` for a value that cannot be copied; what was saved before stays.
        """
        saved = {}
        for name in self._names:
            value = getattr(self, name)
            handler = self.handler(value)
            try:
                saved[name] = copy.deepcopy(value) if handler is None else handler.save(value)
            except Exception as error:  # whatever an object's own copying raises
                raise InvalidArgument(
                    f"{type(self).__name__}: {name!r} cannot be copied, so keep it outside of the state: {error}"
                ) from None
        self._saved = saved

    def restore(self) -> None:
        """Go back to what was saved last, by ``save``, ``commit``, ``sync`` or the constructor. Not collective."""
        for name in self._names:
            value = getattr(self, name)
            handler = self.handler(value)
            if handler is None:
                setattr(self, name, copy.deepcopy(self._saved[name]))
            else:
                handler.restore(value, self._saved[name])

    def sync(self) -> None:
        """Give all ranks the values of rank 0, and save. Collective, blocking.

        Raises ``InvalidArgument``, on all ranks, for a value that cannot be sent.
        """
        plain: Dict[str, Any] = {}
        for name in self._names:
            value = getattr(self, name)
            handler = self.handler(value)
            if handler is None:
                plain[name] = value
            else:
                handler.sync(value)
        if plain:
            for name, value in self._bcast_object(plain).items():
                setattr(self, name, value)
        self.save()


def broadcast_values(values: Dict[str, Any]) -> Dict[str, Any]:
    """Return rank 0's ``values``. Collective, blocking. ``InvalidArgument``, on all ranks, if they cannot be sent."""
    received: Dict[str, Any] = ddl.world().broadcast_object(values)
    return received


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``func(state, ...)`` as one that synchronises the state first, and restores it when a rank is lost.

    Collective, after ``ddl.init()``. When the communicator breaks (a rank died, say), the state is set back to its last
    commit, and the same error comes out, saying so; likewise for ``CollectiveMismatch``. Other errors pass through.

    >>> @run
    ... def train(state):
    ...     for state.epoch in range(state.epoch, 10):
    ...         ...
    ...         state.commit()
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        preparations = [state.sync]
        while True:
            try:
                for prepare in preparations:
                    prepare()
                return func(state, *args, **kwargs)
            except CommunicatorError as error:
                state.restore()
                advice = "" if isinstance(error, CollectiveMismatch) else _AFTER_A_LOSS  # that is the script's fault
                error.args = (f"{error}; the state is that of the last commit{advice}",)
                raise
            except HostsUpdatedInterrupt as interrupt:
                preparations = [state.on_reset] if interrupt.skip_sync else [state.on_reset, state.sync]

    return wrapper
