"""Messages with tags, as MPI has them. DDL's messages have no tags, and arrive in the order of the calls.

A message is the length of its body, the body (tag, form, and an object, or types and shapes of arrays), and then the
arrays. A receiver knows nothing of it beforehand. If it waits for another tag, it keeps the messages before that.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np

import ddl
from ddl.adapter.arrays import as_array, decode, encode, row

__all__ = ["ANY_TAG", "Mailbox", "checked"]

ANY_TAG = -1  #: MPI's, in MPICH and in Open MPI


def checked(communicator: ddl.Communicator, verb: str, x: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Return ``x`` as an array that can be sent, and the row of sizes that tells others of it."""
    try:
        array = as_array(x)
        return array, row(array)
    except ddl.InvalidArgument as error:
        raise ddl.InvalidArgument(f"{communicator.who} {verb}: {error}") from None


class Mailbox:
    """The messages of one communicator, for all that use it, in one thread at a time. Objects may be pickles."""

    def __init__(self, communicator: ddl.Communicator) -> None:
        self._communicator = communicator
        self._kept: Dict[int, List[Tuple[int, str, Any]]] = {}  # by source: tag, form, content

    def send(self, form: str, content: Any, dest: int, tag: int) -> None:
        """Send an "object", or a list of arrays: as an "array" or as "arrays"."""
        if tag < 0:
            raise ddl.InvalidArgument(f"{self._communicator.who} send: tag={tag} must be 0 or more")
        arrays = [] if form == "object" else [checked(self._communicator, "send", array)[0] for array in content]
        told = content if form == "object" else [(array.dtype.str, array.shape) for array in arrays]
        body = encode([tag, form, told], allow_pickle=True)
        for part in (np.array([body.size]), body, *arrays):
            if part.size:
                self._communicator.send(part, dest)

    def recv(self, verb: str, source: int, tag: int) -> Any:
        """Return what came first with that tag; ``InvalidArgument`` if it needs another verb, which then gets it."""
        kept, place = self._kept.setdefault(source, []), 0
        while True:
            if place == len(kept):
                kept.append(self._receive(source))
            sent_tag, form, content = kept[place]
            if tag in (ANY_TAG, sent_tag):
                break
            place += 1
        if (form == "object") != (verb == "recv_obj"):
            other = "recv_obj" if form == "object" else "recv"
            raise ddl.InvalidArgument(
                f"{self._communicator.who} {verb}: rank {source} has sent an {form} with tag {sent_tag}; "
                f"{other} returns it"
            )
        del kept[place]
        return content

    def _receive(self, source: int) -> Tuple[int, str, Any]:
        length = self._communicator.recv(np.empty(1, np.int64), source)[0]
        body = self._communicator.recv(np.empty(length, np.uint8), source)
        tag, form, told = decode(body, allow_pickle=True)
        if form == "object":
            return tag, form, told
        arrays = tuple(np.empty(shape, dtype) for dtype, shape in told)
        for array in arrays:
            if array.size:
                self._communicator.recv(array, source)
        return tag, form, arrays if form == "arrays" else arrays[0]
