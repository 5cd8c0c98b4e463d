"""Training that can go back to its last commit, with the names that Horovod's elastic scripts use.

A ``State`` is saved (commit), set back (restore) and made the same on all ranks (sync). ``run`` runs a training
function with it. This knows no framework: a ``Handler`` saves, restores and synchronises a kind of value, and an
adapter has more of them (ddl_torch/elastic/).

Where ranks may come and go (``ddlrun --min-np``), ``run`` goes on with those that are left, or with more. In any other
job it restores the last commit and raises; the job has to be started again (docs/elastic.md).
"""

from __future__ import annotations

import copy
import functools
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence

import numpy as np

import ddl
from ddl.adapter import generation
from ddl.adapter.consistency import check_consistent
from ddl.errors import CollectiveMismatch, CommunicatorError, InvalidArgument, InvalidState

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

_AFTER_A_LOSS = (
    ", and the ranks of this job are not replaced: save it where it matters, and start the job again, by "
    "ddlrun --min-np if it is to go on with fewer ranks"
)


class HostsUpdatedInterrupt(RuntimeError):
    """Ends the training function, which ``run`` calls again. ``State.commit`` raises it where ranks join or leave.

    A script that raises it itself does so on all ranks together. ``skip_sync``: the state is the same on all ranks, and
    need not be synchronised before, unless a rank is new. What has recorded only its own rank's part, such as an
    ``ElasticSampler``, is made the same anyway.
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
        self._checks = 0  # of the hosts, as many on all ranks

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Call these whenever the training function is about to be called again."""
        self._reset_callbacks += callbacks

    def on_reset(self) -> None:
        """Do what is to be done before the training function is called again. ``run`` calls it, on all ranks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """For a class of your own: work out anew what depends on the ranks. Not collective, as new ranks do not."""

    def agree(self) -> None:
        """For a class of your own: do what is left to do of ``sync`` where the values are the same on all ranks.

        Collective, blocking.
        """

    def commit(self) -> None:
        """Save; then look whether the hosts have changed. Call it between batches: a failure loses what came after."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise ``HostsUpdatedInterrupt``, on all ranks in the same call of this, if ranks are to join or leave.

        Cheap: it blocks only then, until all ranks know in which call that is. All ranks call it equally often.
        """
        self._checks += 1
        if generation.begin_step(self._checks):
            raise HostsUpdatedInterrupt(skip_sync=True)  # what is committed is the same on all ranks

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
    """Return ``func(state, ...)`` as one that synchronises the state first, and goes on when ranks are lost or join.

    Collective, after ``ddl.init()``. When a rank is lost, the state is set back to its last commit, the ranks that are
    left become the next generation (``ddl.rank()`` and ``ddl.size()`` change), reset callbacks are called, the state is
    synchronised, and ``func`` is called again. Where ranks join or leave (``HostsUpdatedInterrupt``), nothing is set
    back. In a job whose ranks do not come and go, the error of a lost rank comes out, saying so. So does
    ``CollectiveMismatch``, which is a mistake of the script. ``LeftOut`` comes out where the same ranks fail again and
    again without a commit. Other errors pass through.

    >>> @run
    ... def train(state):
    ...     for state.epoch in range(state.epoch, 10):
    ...         ...
    ...         state.commit()
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        preparation: Callable[[], None] = partial(_begin, state)
        while True:
            try:
                preparation()  # here, too, ranks may be lost
                return func(state, *args, **kwargs)
            except CommunicatorError as error:
                state.restore()
                if isinstance(error, CollectiveMismatch) or not generation.ranks_may_change():
                    advice = "" if isinstance(error, CollectiveMismatch) else _AFTER_A_LOSS
                    error.args = (f"{error}; the state is that of the last commit{advice}",)
                    raise
                preparation = partial(_change, state, skip_sync=False, lost=error)
            except HostsUpdatedInterrupt as interrupt:
                preparation = partial(_change, state, skip_sync=interrupt.skip_sync)

    return wrapper


def _begin(state: State) -> None:
    """Come to the job's next generation if this process was started later, and have the state of the others."""
    if not generation.is_member():
        _come(state, None, skip_sync=False, has_state=False)
    state.sync()


def _change(state: State, *, skip_sync: bool, lost: Optional[CommunicatorError] = None) -> None:
    """Do what is due before the training function is called again."""
    if generation.ranks_may_change():
        skip_sync = _come(state, lost, skip_sync=skip_sync, has_state=True)
    state.on_reset()
    if skip_sync:
        state.agree()
    else:
        state.sync()


def _come(state: State, lost: Optional[CommunicatorError], *, skip_sync: bool, has_state: bool) -> bool:
    """Come to the next generation; return whether the state is the same on all of its ranks."""
    change = generation.next_generation(state._checks, lost, skip_sync=skip_sync, has_state=has_state)
    state._checks = max(said["finished"] for said in change.said.values())
    if not change.said[0]["has_state"]:
        raise InvalidState(
            f"{ddl.world().who} all ranks are lost that had the state of the training; those that are left have just "
            "joined. Start the job again, from what it has saved"
        )
    return all(said["skip_sync"] for said in change.said.values()) and not change.newcomers
