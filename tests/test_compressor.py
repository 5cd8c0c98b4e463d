"""``Compressor``: one base class for users of every framework, and its error in a class that does not fill it in."""

from __future__ import annotations

import importlib

import pytest

from ddl.adapter import compressor


class Unfinished(compressor.Compressor):
    """Only one way is there."""

    @staticmethod
    def compress(tensor):
        return tensor, None


def test_what_a_user_has_not_defined_is_named():
    assert Unfinished.compress(3) == (3, None)
    with pytest.raises(NotImplementedError, match=r"defines compress\(tensor\) and decompress\(tensor, ctx\)"):
        Unfinished.decompress(3, None)
    with pytest.raises(NotImplementedError, match="defines compress"):
        compressor.Compressor.compress(3)


def test_none_leaves_tensors_as_they_are():
    tensor = object()
    assert compressor.NoneCompressor.decompress(*compressor.NoneCompressor.compress(tensor)) is tensor


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_adapters_have_no_class_of_their_own(framework):
    pytest.importorskip(framework)
    theirs = importlib.import_module(f"ddl_{framework}.compression")
    assert theirs.Compressor is compressor.Compressor and theirs.NoneCompressor is compressor.NoneCompressor
    assert issubclass(theirs.FP16Compressor, compressor.Compressor)
