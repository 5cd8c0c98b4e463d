"""``naming_rank``: an error that one of many ranks raises begins with that rank, as the errors of the core do."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Callable, TypeVar

from ddl import api
from ddl.errors import Error, InvalidArgument
from ddl.text.tracebacks import brief

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["name_rank", "naming_rank"]


def naming_rank(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function`` whose ``InvalidArgument`` begin with ``[rank r/n host h]``, of the job, once there is one.

    All of its errors have short tracebacks: see ``brief``.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Error as error:
            name_rank(error)
            raise

    return call


def name_rank(error: Error) -> None:
    """Do what ``naming_rank`` does with an error. Call it in ``except``, before ``raise``."""
    refused = isinstance(error, InvalidArgument)
    if refused and api.is_initialized() and not str(error).startswith("[rank "):
        error.who = api.world().who
    brief(error)
