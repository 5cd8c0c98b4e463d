"""What a user sees of an error: where the script called, not how DDL came upon it.

The messages of DDL say all that there is to say, and its own frames between the call and the error say nothing to who
made a mistake. They stay where DDL logs for debugging (DDL_LOG=debug), and for what is a bug of its own.
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

_OWN = ("ddl", "ddl_torch", "ddl_tensorflow", "ddl_chainer", "ddl_theano", "ddl_caffe")
_log = logging.getLogger("ddl")


def brief(error: Error) -> None:
    """Take DDL's own frames out of the traceback of ``error``, below that of the function which has caught it.

    To be called in ``except``, before ``raise``. Frames of others, such as a function that DDL has called, stay. A
    cause goes, too, if it came up in DDL and the error has its words.
    """
    here = error.__traceback__
    if here is None or isinstance(error, InternalError) or _log.isEnabledFor(logging.DEBUG):
        return
    kept = [here, *(step for step in _steps(here.tb_next) if not _is_own(step))]
    for above, below in zip_longest(kept, kept[1:]):
        above.tb_next = below
    cause = error.__cause__
    if cause is not None and str(cause) in str(error) and all(map(_is_own, _steps(cause.__traceback__))):
        error.__cause__, error.__suppress_context__ = None, True  # what it says, this says, too


def _steps(first: Optional[types.TracebackType]) -> Iterator[types.TracebackType]:
    step = first
    while step is not None:
        yield step
        step = step.tb_next


def _is_own(step: types.TracebackType) -> bool:
    name: str = step.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in _OWN


def briefly(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function``, whose ``ddl.Error`` have short tracebacks."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Error as error:
            brief(error)
            raise

    return call
