"""Short tracebacks: they show where the user's script called DDL, without the frames inside DDL.

The messages of DDL's errors say what is wrong; its own frames do not help a user to correct a mistake. They stay in the
traceback with DDL_LOG=debug, and for bugs of DDL (``InternalError``).
"""

from __future__ import annotations

import functools
import logging
import types
from itertools import zip_longest
from typing import TYPE_CHECKING, Callable, Iterator, Optional, TypeVar

from ddl.errors import Error, InternalError

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["brief", "briefly"]

_OWN = ("ddl", "ddl_torch", "ddl_tensorflow", "ddl_chainer", "ddl_theano", "ddl_caffe", "ddl_lightgbm", "ddl_xgboost")
_log = logging.getLogger("ddl")


def brief(error: Error) -> None:
    """Remove DDL's own frames from the traceback of ``error``, except that of the function which has caught it.

    Call it in ``except``, before ``raise``. Frames of others stay, for example of a function that DDL has called. The
    cause is removed, too, if it was raised inside DDL and the error's message contains its message.
    """
    here = error.__traceback__
    if here is None or isinstance(error, InternalError) or _log.isEnabledFor(logging.DEBUG):
        return
    kept = [here, *(step for step in _steps(here.tb_next) if not _is_own(step))]
    for above, below in zip_longest(kept, kept[1:]):
        above.tb_next = below
    cause = error.__cause__
    if cause is not None and str(cause) in str(error) and all(map(_is_own, _steps(cause.__traceback__))):
        error.__cause__, error.__suppress_context__ = None, True  # the error's message contains it


def _steps(first: Optional[types.TracebackType]) -> Iterator[types.TracebackType]:
    step = first
    while step is not None:
        yield step
        step = step.tb_next


def _is_own(step: types.TracebackType) -> bool:
    name: str = step.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in _OWN


def briefly(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function`` with short tracebacks of the ``ddl.Error`` that it raises."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Error as error:
            brief(error)
            raise

    return call
