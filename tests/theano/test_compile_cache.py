"""Ranks of a host have a folder of compiled code each; in one that they share, what one writes is whole for others."""

from __future__ import annotations

import os
import pickle

import pytest
import ranks

pytest.importorskip("theano", reason="needs Theano: make test-theano")

from theano.gof import cmodule

import ddl_theano  # noqa: F401
from ddl.launch.agent import rank_environ


def keys_in(path):
    with open(path, "rb") as file:
        return pickle.load(file).keys


class KeyThatLooks(tuple):
    """A key that notes, as it is pickled, what another process would read at that moment."""

    def __reduce__(self):
        KeyThatLooks.read = keys_in(KeyThatLooks.path)
        return tuple, (tuple(self),)


def test_a_file_of_keys_is_never_seen_half_written(tmp_path):
    KeyThatLooks.path = str(tmp_path / "key.pkl")
    data = cmodule.KeyData({(1, "first")}, "hash", KeyThatLooks.path, str(tmp_path / "mod.so"))
    data.save_pkl()
    data.add_key(KeyThatLooks((1, "second")))
    assert KeyThatLooks.read == {(1, "first")}
    assert keys_in(KeyThatLooks.path) == {(1, "first"), (1, "second")}
    assert [file.name for file in tmp_path.iterdir()] == ["key.pkl"]


def test_keys_that_cannot_be_written_leave_no_file(tmp_path):
    """So does Theano: what is compiled then serves this process only."""
    path = tmp_path / "key.pkl"
    data = cmodule.KeyData({(1, "first")}, "hash", str(path), str(tmp_path / "mod.so"))
    data.save_pkl()
    local = type("Local", (tuple,), {"__module__": __name__})  # pickle does not find it by its name
    with pytest.raises(pickle.PicklingError):
        data.add_key(local((1, "second")))
    assert not list(tmp_path.iterdir())


def where_it_compiles():
    import theano

    return theano.config.compiledir, theano.function([], theano.tensor.ones(3))().sum()


@pytest.mark.processes
def test_each_rank_has_its_own_folder():
    (first, _), (second, total) = ranks.run(2, where_it_compiles)
    assert first.endswith("-rank0") and second.endswith("-rank1") and os.path.dirname(first) == os.path.dirname(second)
    assert total == 3


def test_ddlrun_knows_how_theano_names_its_folder():
    from theano import config

    assert vars(type(config))["compiledir_format"].default == rank_environ._FOLDER_OF_THEANO
