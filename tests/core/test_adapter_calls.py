"""What adapters use besides verbs: calls (the example of docs/adapters.md, and a call to fail), and small things."""

from __future__ import annotations

import ctypes
from typing import Any, List

import numpy as np
import pytest
import ranks
from documents import names_after, python_blocks

import ddl
from ddl.adapter.addresses import own_address
from ddl.adapter.calls import calls_of
from ddl.adapter.throwing import throwing_collectives

pytestmark = pytest.mark.processes


def test_the_documents_example_runs(tmp_path: object) -> None:
    (code,) = (block for block in python_blocks("docs/adapters.md") if "calls_of" in block)
    for names in ranks.run(3, names_of_result, code, str(tmp_path), initialise=False):
        assert names == [[0] * 4, [1] * 4, [2] * 4]


def names_of_result(code: str, folder: str) -> object:
    return names_after(code, folder)["everybody"].tolist()


def failing() -> str:
    calls = calls_of(ddl.world())
    assert not calls.failed
    calls.check()
    with pytest.raises(ddl.CollectiveTimeout) as caught:
        if ddl.rank() == 1:
            for rank in (0, 2):
                ddl.recv(np.empty(1), rank)  # it has looked
            calls.fail(ddl.CollectiveTimeout, 2, "rank 2 has not said a word")
        ddl.send(np.zeros(1), 1)
        ddl.barrier()
    assert calls.failed
    with pytest.raises(ddl.CollectiveTimeout):
        calls.check()
    return str(caught.value)


def test_all_ranks_fail_alike() -> None:
    texts = ranks.run(3, failing)
    assert all("rank 2 has not said a word" in text for text in texts)


def addresses() -> List[str]:
    return [own_address(), *ddl.allgather_object(own_address())]


def test_ranks_of_one_host_are_reached_at_one_address() -> None:
    first, second = ranks.run(2, addresses)
    assert first == second and set(first) == {first[0]} and first[0].count(".") == 3


def test_nobody_is_reached_before_init() -> None:
    with pytest.raises(ddl.InvalidState, match="init"):
        own_address()


#: (input, bytes, bytes of an element, starts, lengths, ranks, output, bytes, the reducer) and the same without two.
_SCATTER = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_SCATTER += (ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
_GATHER = (*_SCATTER[:2], *_SCATTER[3:8])


@pytest.mark.parametrize("status", [0, 1])
def test_who_takes_collectives_as_functions_is_told_of_a_failure(status: int) -> None:
    """Here a function that notes its reason is in the place of one that throws (as in tests/lightgbm_ranks)."""
    given: List[Any] = []
    reasons: List[bytes] = []

    def collective(*arguments: Any) -> int:
        given.append(arguments)
        return status

    functions = [ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(collective) for kinds in (_SCATTER, _GATHER)]
    functions.append(ctypes.CFUNCTYPE(None, ctypes.c_char_p)(reasons.append))
    scatter, gather = throwing_collectives(*(ctypes.cast(each, ctypes.c_void_p).value or 0 for each in functions))
    ctypes.CFUNCTYPE(None, *_SCATTER)(scatter)(1, 2, 3, 4, 5, 6, 7, 8, 9)
    ctypes.CFUNCTYPE(None, *_GATHER)(gather)(1, 2, 3, 4, 5, 6, 7)
    assert given == [(1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 4, 5, 6, 7)]
    assert reasons == [b"a collective of DDL has failed; DDL's own error says why"] * 2 * status
