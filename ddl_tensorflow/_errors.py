"""What DDL raises inside a graph comes out as DDL's error: TensorFlow itself hands on a text and a code.

The op ends with the code ABORTED and a text that names DDL's error; numpy_function, which takes its place where there
is no compiler, with UNKNOWN and a traceback. TensorFlow then makes a ``tf.errors.AbortedError`` or ``UnknownError`` of
the text. We let these two make an object that is DDL's error as well: ``except ddl.PeerLost`` finds it, and so does
``except tf.errors.OpError``; in eager mode, in functions, in ``fit`` and in sessions.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Optional, Type

import tensorflow as tf

import ddl.errors

__all__ = ["install", "text_of"]

_END = re.compile(r"\n\t \[\[| \[Op:")  #: of our text: TensorFlow says which op it was
_NAMED = re.compile(r"ddl\.(?:errors\.)?([A-Z]\w+): ")


def text_of(error: BaseException) -> str:
    """Return the text by which it is recognised."""
    kind = type(error)
    return f"ddl.{kind.__name__}: {error}" if isinstance(error, ddl.Error) else f"{kind.__name__}: {error}"


def kind_in(text: str) -> Optional[Type[ddl.Error]]:
    """Return the class of DDL's error that a text of TensorFlow's names; None: there is none."""
    found = _NAMED.search(text)
    kind = getattr(ddl.errors, found[1], None) if found else None
    return kind if isinstance(kind, type) and issubclass(kind, ddl.Error) else None


def _ours_first(message: str) -> str:
    """Return a message of TensorFlow's, which begins with where in the graph it was, with what was wrong in front."""
    found = _NAMED.search(message)
    said = _END.split(message[found.end() :], maxsplit=1)[0] if found else ""
    return message if message.startswith(said) else f"{said}\n\n{message}"


@functools.cache
def both(ours: Any, theirs: Any) -> Any:
    """Return a class of errors that are DDL's and TensorFlow's.

    They can be made of a text alone, as DDL's; and sent to another process, where they are DDL's only.
    """

    def begin(self: Any, *args: Any) -> None:
        theirs.__init__(self, *(args if len(args) > 1 else (None, None, *args)))

    own = {
        "__module__": ours.__module__,
        "__doc__": ours.__doc__,
        "__init__": begin,
        "__str__": lambda self: _ours_first(self.message),  # to the message itself TensorFlow adds more in the end
        "__reduce__": lambda self: (ours, (str(self),)),
    }
    return type(ours.__name__, (theirs, ours), own)


def install() -> None:
    """Let TensorFlow make such errors. Idempotent."""
    for theirs in (tf.errors.AbortedError, tf.errors.UnknownError):
        if "__new__" not in vars(theirs):
            theirs.__new__ = _new


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    text = args[2] if len(args) > 2 else kwargs.get("message", "")
    ours: Any = None if issubclass(cls, ddl.Error) else kind_in(str(text))
    kind = cls if ours is None else both(ours, cls)
    builtin: Any = kind
    while builtin.__module__ != "builtins":  # Exception, or what decides about its memory: OSError, say
        builtin = builtin.__base__
    return builtin.__new__(kind, str(text))
