"""Messages between a rank and the store over its watch connection (JSON objects with a ``type``), and their checks.

The sender has been authenticated, but the contents are unchecked: a field of the wrong kind is a breach of the
protocol, and must be found before the receiver acts on the message.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple, TypeVar

from ddl.errors import ProtocolError

__all__ = ["Message", "Outgoing", "integer", "numbers", "rows", "said_by", "seconds", "text"]

_T = TypeVar("_T")

_TEXT_LIMIT = 4096  #: characters kept of a text of a rank, unless it is data

Message = Dict[str, Any]
Outgoing = List[Tuple[int, Message]]  #: (to which rank, what)


def integer(
    rank: int, message: Message, key: str, *, low: int, high: int = 2**63 - 1, default: Optional[int] = None
) -> int:
    """Return a field of what ``rank`` sent; ProtocolError if it is no integer from ``low`` to ``high``."""
    value = message.get(key, default)
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(f"rank {rank}: {key!r} of a {message.get('type')!r:.100} message is {value!r:.100}")
    return value


def text(rank: int, message: Message, key: str, default: Optional[str] = None, *, limit: int = _TEXT_LIMIT) -> str:
    """Return a field of what ``rank`` sent, cut after ``limit`` characters; ProtocolError if it is no string."""
    value = message.get(key, default)
    if not isinstance(value, str):
        raise ProtocolError(f"rank {rank}: {key!r} of a {message.get('type')!r:.100} message is {value!r:.100}")
    return value[:limit]


def seconds(rank: int, message: Message, key: str, *, default: float) -> float:
    """Return a field of what ``rank`` sent; ProtocolError if it is no finite number from 0 up."""
    value = message.get(key, default)
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise ProtocolError(f"rank {rank}: {key!r} of a {message.get('type')!r:.100} message is {value!r:.100}")
    return float(value)


def numbers(rank: int, message: Message, key: str) -> FrozenSet[int]:
    """Return a field of what ``rank`` sent, by default empty; ProtocolError if it is no list of integers."""
    value = message.get(key, [])
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise ProtocolError(f"rank {rank}: {key!r} of a {message.get('type')!r:.100} message is {value!r:.100}")
    return frozenset(value)


def rows(rank: int, message: Message, key: str, *, width: int, most: int) -> List[Tuple[int, ...]]:
    """Return a field of what ``rank`` sent, by default empty; ProtocolError if it is no list of lists of integers.

    ``width``: integers of each; ``most``: of the list.
    """
    value = message.get(key, [])
    good = isinstance(value, list) and len(value) <= most
    if not good or not all(isinstance(row, list) and [type(n) for n in row] == [int] * width for row in value):
        raise ProtocolError(f"rank {rank}: {key!r} of a {message.get('type')!r:.100} message is {value!r:.100}")
    return [tuple(row) for row in value]


def said_by(rank: int, value: str, parse: Callable[[Any], _T]) -> _T:
    """Return ``parse`` of the JSON that ``rank`` has put into the store; ProtocolError if either cannot be parsed."""
    try:
        return parse(json.loads(value))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ProtocolError(
            f"rank {rank} told the others {value!r:.200}, which makes no sense here ({type(error).__name__}: {error}); "
            "do all ranks run the same version of DDL?"
        ) from error
