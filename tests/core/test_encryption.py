"""Jobs whose ranks encrypt what they send one another, or send checksums: the same bits, no lie, nothing to be read."""

from __future__ import annotations

import hashlib
import logging
import time
from typing import Callable, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.between import Between
from core.jobs import connected

import ddl
from ddl._comm import connector
from ddl.errors import ConfigError, PeerLost

pytestmark = pytest.mark.processes

SIZES = (1, 1000, 70_001, 3_000_000)
MARK = np.frombuffer(b"what nobody may read on the way!" * 64, np.float32)


def bits() -> str:
    """Return a digest of what all verbs bring."""
    draw, digest = np.random.default_rng(ddl.rank()), hashlib.sha256()
    for size in SIZES:
        x = draw.standard_normal(size).astype(np.float32)
        for result in (ddl.allreduce(x, op=ddl.Sum), ddl.allgather(x), ddl.broadcast(x, root=1), ddl.reducescatter(x)):
            digest.update(result.tobytes())
    ddl.send(np.arange(10), (ddl.rank() + 1) % ddl.size())
    received = np.empty(10, np.int64)
    ddl.recv(received, (ddl.rank() - 1) % ddl.size())
    digest.update(received.tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("transport", ["tcp", "rails", "hybrid"])
def test_the_results_have_the_same_bits(transport: str) -> None:
    manners: List[Dict[str, str]] = [{}, {"DDL_ENCRYPT": "1"}, {"DDL_CHECKSUM": "1"}]
    plain, encrypted, checked = (ranks.run(4, bits, **connected(transport, **manner)) for manner in manners)
    assert plain == encrypted == checked


def between(size: int) -> bytes:
    with Between(connector) as wire:
        ddl.init()
        for _ in range(3):
            ddl.allgather(np.tile(MARK, size // MARK.size))
        ddl.broadcast_object({"a secret": "of the program"}, root=0)
    return bytes(wire.seen)


@pytest.mark.parametrize("encrypt", ["0", "1"])
def test_what_passes_by_cannot_be_read(encrypt: str) -> None:
    options = connected("tcp", DDL_ENCRYPT=encrypt)
    seen = ranks.run(2, between, 1 << 16, initialise=False, **options)[1]  # the higher rank connects
    assert len(seen) > 6 * (1 << 18)
    readable = [text in seen for text in (MARK.tobytes()[:32], b"of the program")]
    assert readable == [encrypt == "0"] * 2


def flip_late(seen: List[int]) -> Callable[[bytes], bytes]:
    """Flip a bit in what passes when a MiB has passed."""

    def change(data: bytes) -> bytes:
        seen[0] += len(data)
        if seen[0] < 1 << 20 or not data:
            return data
        return data[:-1] + bytes([data[-1] ^ 4])

    return change


def reduce_while_somebody_changes(_: None) -> Tuple[int, str]:
    """Return how many results were right before the error, and the error. None may be wrong."""
    with Between(connector, flip_late([0])):
        ddl.init()
        x = np.empty(1 << 16, np.float32)
        for number in range(1000):
            x[:] = ddl.rank() + number
            try:
                ddl.allreduce_(x, op=ddl.Sum)
            except PeerLost as error:
                return number, str(error)
            assert (x == 2 * number + 1).all(), "a wrong sum"
    raise AssertionError("nobody has noticed")


#: By the setting: what is said of a connection on which somebody changes a bit.
NOTICED = {
    "DDL_ENCRYPT": "the encrypted connection is broken, or somebody on the way has changed it",
    "DDL_CHECKSUM": "what came is not what was sent, as a checksum tells",
}


@pytest.mark.parametrize("setting", NOTICED)
def test_who_changes_a_bit_ends_the_job_and_no_sum_is_wrong(setting: str) -> None:
    options = connected("tcp", **{setting: "1"})
    answers = ranks.run(2, reduce_while_somebody_changes, None, initialise=False, **options)
    assert all(right > 0 for right, _ in answers)
    words = [error for _, error in answers]
    assert any(NOTICED[setting] in text for text in words), words
    assert all("allreduce #" in text and "rank " in text for text in words), words


def warnings() -> List[str]:
    """Return a list to which all warnings of this process are added."""
    said: List[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ddl").addHandler(handler)
    return said


def reduce_over_two_good_rails(_: None) -> Tuple[int, List[str]]:
    """Reduce until both ranks have said that a rail is lost. Return what passed there, in bytes, and what they said."""
    passed, said = [0], warnings()
    with Between(connector, flip_late(passed), rail=1):
        ddl.init()
        x = np.empty(1 << 20, np.float32)
        end = time.monotonic() + 60
        while not ddl.allreduce(float("the rail from" in " ".join(said) or time.monotonic() > end), op=ddl.Min):
            for number in range(20):
                x[:] = ddl.rank() + number
                ddl.allreduce_(x, op=ddl.Sum)
                assert (x == 2 * number + 1).all(), "a wrong sum"
    return passed[0], said


@pytest.mark.parametrize("setting", NOTICED)
def test_a_rail_on_which_somebody_changes_a_bit_is_given_up_and_they_say_why(setting: str) -> None:
    options = connected("rails", **{setting: "1"})
    answers = ranks.run(2, reduce_over_two_good_rails, None, initialise=False, **options)
    assert answers[1][0] > 1 << 20  # the higher rank connects
    lost = [" ".join(said) for _, said in answers]
    assert all("the rail from " in said and "and the job goes on over the others" in said for said in lost), lost
    assert any(f"is closed: {NOTICED[setting]}" in said for said in lost), lost


def init() -> str:
    try:
        ddl.init()
    except ConfigError as error:
        return str(error)
    return "in"


def all_but_one_encrypt(rank: int) -> Dict[str, str]:
    return {"DDL_ENCRYPT": "0" if rank == 1 else "1"}


def all_but_one_check(rank: int) -> Dict[str, str]:
    return {"DDL_CHECKSUM": "0" if rank == 1 else "1"}


@pytest.mark.parametrize(
    ("settings", "asked", "option"),
    [(all_but_one_encrypt, "encrypted connections", "encrypt"), (all_but_one_check, "asked for checksums", "checksum")],
    ids=["encrypt", "checksum"],
)
def test_all_ranks_do_it_or_none(settings: Callable[[int], Dict[str, str]], asked: str, option: str) -> None:
    for rank, said in enumerate(ranks.run(3, init, initialise=False, env_of=settings)):
        assert said.startswith(f"rank {rank}: ")
        assert "rank 0 " in said and "rank 2 " in said and f"{asked}, rank 1 " in said
        assert f"ddlrun --{option}" in said and f"DDL_{option.upper()}" in said
