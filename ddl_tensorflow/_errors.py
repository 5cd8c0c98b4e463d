"""Errors that DDL raises inside a graph come out as DDL's errors, although TensorFlow passes on only a text and a code.

The op ends with the code of the class that Horovod's users know (``FailedPreconditionError`` where ranks do not match,
``InvalidArgumentError`` for wrong splits and process sets, else ``UnknownError``), and with a text that names DDL's
error. numpy_function, which replaces it where there is no compiler, ends with the same text and a code that it chooses.
TensorFlow then makes an error of its own. DDL lets it make an object that is DDL's error, too: ``except ddl.PeerLost``
finds it, and so does ``except tf.errors.OpError``; in eager mode, in functions, in ``fit`` and in sessions.

The code is never ABORTED: then a ``MonitoredTrainingSession`` would begin again and again.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Callable, List, Optional, Type

import tensorflow as tf

import ddl.errors

__all__ = ["both", "code_of", "install", "recognise", "text_of", "with_theirs"]

_END = re.compile(r"\n\t \[\[| \[Op:")  #: of our text: TensorFlow says which op it was
_NAMED = re.compile(r"ddl\.(?:errors\.)?([A-Z]\w+): ")

#: ``recognise(cls, text)``: the class to make in place of ``cls``, or None to keep it.
Recognise = Callable[[Any, str], Any]
_known: List[Recognise] = []


def text_of(error: BaseException) -> str:
    """Return the text by which an error is recognised."""
    kind = type(error)
    return f"ddl.{kind.__name__}: {error}" if isinstance(error, ddl.Error) else f"{kind.__name__}: {error}"


def kind_in(text: str) -> Optional[Type[ddl.Error]]:
    """Return the class of DDL's error that a text of TensorFlow's names; None: there is none."""
    match = _NAMED.search(text)
    kind = getattr(ddl.errors, match[1], None) if match else None
    return kind if isinstance(kind, type) and issubclass(kind, ddl.Error) else None


def _theirs(kind: Type[BaseException]) -> Any:
    """Return the class of TensorFlow's that an error of a class of DDL's is as well."""
    if issubclass(kind, ddl.errors.CollectiveMismatch):
        return tf.errors.FailedPreconditionError
    return tf.errors.InvalidArgumentError if issubclass(kind, ddl.InvalidArgument) else tf.errors.UnknownError


def code_of(error: BaseException) -> int:
    """Return the code with which the op ends."""
    return int(_theirs(type(error))(None, None, "").error_code)


def with_theirs(error: ddl.Error) -> ddl.Error:
    """Return the same error as it comes out of the op: one of TensorFlow's as well."""
    kind: Any = type(error)
    combined: ddl.Error = both(kind, _theirs(kind))(str(error))
    return combined.with_traceback(error.__traceback__)


def _ours_first(message: str) -> str:
    """Return a message of TensorFlow's, which begins with where in the graph it was, with what was wrong in front."""
    match = _NAMED.search(message)
    said = _END.split(message[match.end() :], maxsplit=1)[0] if match else ""
    return message if message.startswith(said) else f"{said}\n\n{message}"


def _text(error: Any) -> str:
    """Return the text of such an error; ``args`` are a text alone where somebody has changed it, as DDL's may be."""
    # To the message itself TensorFlow adds more in the end.
    return str(error.args[0]) if len(error.args) == 1 else _ours_first(error.message)


@functools.cache
def both(ours: Any, theirs: Any) -> Any:
    """Return a class of errors that are DDL's and TensorFlow's: of ``theirs``, and of what belongs to ``ours``.

    They can be made of a text alone, as DDL's; and sent to another process, where they are DDL's only.
    """

    def begin(self: Any, *args: Any) -> None:
        theirs.__init__(self, *(args if len(args) > 1 else (None, None, *args)))

    own = {
        "__module__": ours.__module__,
        "__doc__": ours.__doc__,
        "__init__": begin,
        "__str__": _text,
        "__reduce__": lambda self: (ours, (str(self),)),
    }
    more = _theirs(ours)  # numpy_function has its own codes
    return type(ours.__name__, (theirs, *(() if issubclass(theirs, more) else (more,)), ours), own)


def recognise(function: Recognise) -> None:
    """Ask ``function`` when TensorFlow makes an error: see ``Recognise``."""
    _known.append(function)


def install() -> None:
    """Let TensorFlow make such errors. Idempotent."""
    for theirs in (tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError, tf.errors.UnknownError):
        if "__new__" not in vars(theirs):
            theirs.__new__ = _new


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    text = str(args[2] if len(args) > 2 else kwargs.get("message", ""))
    kind = cls if issubclass(cls, ddl.Error) else _kind(cls, text)
    builtin: Any = kind
    while builtin.__module__ != "builtins":  # Exception, or what decides about its memory: OSError, say
        builtin = builtin.__base__
    return builtin.__new__(kind, text)


def _kind(cls: Any, text: str) -> Any:
    ours: Any = kind_in(text)
    if ours is not None:
        return both(ours, cls)
    return next(filter(None, (function(cls, text) for function in _known)), cls)
