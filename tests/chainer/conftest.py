"""Chainer for its tests. Where it is not installed, as it wants a numpy before 2, they are skipped with that reason."""

from __future__ import annotations

import importlib.util
import warnings

if importlib.util.find_spec("chainermn") is not None:  # not "chainer", for which this folder would pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of distutils, which Chainer imports
        import chainermn  # noqa: F401
