"""Ranks that an engine has started: ``ddl.init(rendezvous=...)``, processes that are used again, a driver's store."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, List, Optional, Tuple

import numpy as np
import pytest
import ranks

import ddl
from ddl.bootstrap.environ import Identity
from ddl.bootstrap.meeting import JobInvitation

_SIZE = 3


def as_an_engine_starts_it() -> Tuple[int, int]:
    """Forget what ddlrun would have said; return the rank and the size, which an engine would know."""
    names = list(Identity().to_environ())
    told = {name: os.environ.pop(name) for name in names}
    return int(told["DDL_RANK"]), int(told["DDL_SIZE"])


class Broadcast:
    """An engine's broadcast of a text, by a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def __call__(self, text: Optional[str]) -> str:
        if text is not None:
            draft = self._path.with_suffix(".draft")
            draft.write_text(text)
            draft.rename(self._path)
        while not self._path.exists():  # the test's own limit ends it
            time.sleep(0.005)
        return self._path.read_text()


def test_an_invitation_alone_is_no_rendezvous() -> None:
    """Its text, which has the secret, is not shown."""
    with pytest.raises(
        ddl.InvalidArgument, match=r"is a str, not a ddl.Rendezvous; .* ddl.Rendezvous\(rank, "
    ) as caught:
        ddl.init(rendezvous="the secret")  # type: ignore[arg-type]
    assert "the secret" not in str(caught.value)


def total(value: int) -> int:
    return int(ddl.allreduce(np.array([value]), op=ddl.Sum).item())


def place() -> Tuple[int, ...]:
    return (ddl.rank(), ddl.size(), ddl.local_rank(), ddl.local_size(), ddl.cross_rank(), ddl.cross_size())


def one_job_after_the_other(folder: str, invitation: str) -> List[Any]:
    """Three jobs in these processes: the numbers of the second go the other way, the third has a driver's store."""
    rank, size = as_an_engine_starts_it()
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    seen: List[Any] = []

    def work() -> None:
        for number, own in (("first", rank), ("second", size - 1 - rank), ("third", rank)):
            share = invitation if number == "third" else Broadcast(f"{folder}/{number}")
            ddl.init(rendezvous=ddl.Rendezvous(own, size, share))
            ddl.init()  # does nothing
            seen.append((number, place(), total(own + 1)))
            ddl.shutdown()
            assert not ddl.is_initialized()

    thread = threading.Thread(target=work)  # engines run what is theirs in any thread
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(number) for number in signal.valid_signals()]
    return seen


@pytest.mark.processes
@pytest.mark.parametrize("hosts", [1, 2])
def test_processes_that_an_engine_uses_again(hosts: int, tmp_path: Path) -> None:
    with ddl.JobStore(_SIZE) as store:
        answers = ranks.run(
            _SIZE,
            one_job_after_the_other,
            str(tmp_path),
            store.invitation,
            initialise=False,
            env_of=lambda rank: {} if hosts == 1 else {"DDL_HOST_ID": "ab"[rank // 2]},
        )
        assert store.failure is None
    here = [(0, 3, 0, 1), (1, 3, 0, 1), (2, 3, 0, 1)] if hosts == 1 else [(0, 2, 0, 2), (1, 2, 0, 2), (0, 1, 1, 2)]
    back = here if hosts == 1 else [(0, 1, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)]  # by rank; rank 0 is process 2
    for process in range(_SIZE):
        assert answers[process] == [
            ("first", (process, 3, *here[process]), 6),
            ("second", (2 - process, 3, *back[2 - process]), 6),
            ("third", (process, 3, *here[process]), 6),
        ]


def does_as_the_driver_does(invitation: str) -> Tuple[bool, int]:
    rank, size = as_an_engine_starts_it()
    ddl.init(rendezvous=ddl.Rendezvous(rank, size, invitation))
    return ddl.world().job.settings.encrypt, total(rank)


@pytest.mark.processes
@pytest.mark.parametrize("word", ["0", "1"])
def test_a_job_is_encrypted_if_its_driver_is_told_to(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may have started its processes long before, without that variable."""
    monkeypatch.setenv("DDL_ENCRYPT", word)
    with ddl.JobStore(_SIZE) as store:
        monkeypatch.delenv("DDL_ENCRYPT")
        plain = {"DDL_ENCRYPT": "0", "DDL_SHM": "0"}
        answers = ranks.run(
            _SIZE, does_as_the_driver_does, store.invitation, initialise=False, env_of=lambda rank: plain
        )
    assert answers == [(word == "1", 3)] * _SIZE


def hosts_that_are_known(folder: str) -> Tuple[int, ...]:
    rank, size = as_an_engine_starts_it()
    ddl.init(rendezvous=ddl.Rendezvous(rank, size, Broadcast(f"{folder}/job"), ["b", "a", "b"], "a test"))
    return place()


@pytest.mark.processes
def test_an_engine_may_name_the_hosts(tmp_path: Path) -> None:
    answers = ranks.run(_SIZE, hosts_that_are_known, str(tmp_path), initialise=False)
    assert answers == [(0, 3, 0, 2, 0, 2), (1, 3, 0, 1, 1, 2), (2, 3, 1, 2, 0, 2)]


def is_killed(invitation: str) -> str:
    rank, size = as_an_engine_starts_it()
    ddl.init(rendezvous=ddl.Rendezvous(rank, size, invitation))
    ranks_there = total(1)
    assert ranks_there == size
    ranks.meet(rank, size)  # the others have the sum, too
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ddl.PeerLost) as caught:
        total(1)
    return str(caught.value)


class WorkerDied(Exception):
    """What an engine says."""


@pytest.mark.processes
@pytest.mark.faults
def test_the_driver_knows_who_was_killed() -> None:
    """Rank 0, with which a store of its own would have gone."""
    host = re.escape(socket.gethostname())
    with pytest.raises(ddl.RankFailed, match=rf"^rank 0 of 3 \(host {host}\) failed: PeerLost: .*ended") as caught:
        with ddl.JobStore(_SIZE) as store:
            answers = ranks.run(_SIZE, is_killed, store.invitation, initialise=False, may_die=[0])
            raise WorkerDied("1 of 3 workers died")
    assert caught.value.rank == 0 and isinstance(caught.value.__cause__, WorkerDied)
    assert all("rank 0" in answer for answer in answers[1:])


def raises_on_one(invitation: str) -> List[str]:
    from ddl.adapter.joining import call_as_rank

    rank, size = as_an_engine_starts_it()

    def train(ending: str) -> str:
        if rank == 1:
            raise ValueError(f"no such file{ending}")
        return f"{total(1)}"

    with pytest.raises(ValueError if rank == 1 else ddl.Aborted) as caught:
        call_as_rank(ddl.Rendezvous(rank, size, invitation), train, ending=": data")
    assert not ddl.is_initialized()
    return [str(caught.value)]


@pytest.mark.processes
def test_what_a_function_raises_is_known_to_all_though_its_process_lives() -> None:
    with ddl.JobStore(_SIZE) as store:
        answers = ranks.run(_SIZE, raises_on_one, store.invitation, initialise=False)
        assert all("ValueError: no such file: data" in text for rank in (0, 2) for text in answers[rank])
        failure = store.failure
    assert failure is not None and failure.rank == 1
    who = f"rank 1 of 3 (host {socket.gethostname()})"
    assert f"{who} failed: Aborted: abort() was called: ValueError: no such file: data" in str(failure)


def comes_or_not(folder: str) -> str:
    rank, size = as_an_engine_starts_it()
    if rank == 1:
        return ""
    with pytest.raises(ddl.RendezvousError) as caught:
        ddl.init(rendezvous=ddl.Rendezvous(rank, size, Broadcast(f"{folder}/job")))
    return str(caught.value)


@pytest.mark.processes
@pytest.mark.faults
def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    answers = ranks.run(_SIZE, comes_or_not, str(tmp_path), initialise=False, env={"DDL_START_TIMEOUT": "1"})
    assert "rank 1 did not come within 1 s" in answers[0] and "rank 1" in answers[2]


def alone() -> Tuple[int, ...]:
    as_an_engine_starts_it()
    ddl.init(rendezvous=ddl.Rendezvous(0, 1, "not looked at"))
    return place()


@pytest.mark.processes
def test_one_rank_needs_nobody() -> None:
    assert ranks.run(1, alone, initialise=False) == [(0, 1, 0, 1, 0, 1)]


def in_jobs_of_an_engine_and_of_a_launcher(folder: str) -> List[bool]:
    """Return, for each store here that waits at exit until all ranks have left, whether this rank was there still."""
    from ddl import at_exit
    from ddl.store.server import StoreServer

    seen: List[bool] = []
    exiting = threading.Event()
    close = StoreServer.close_when_alone

    def note(server: StoreServer, patience: float) -> None:
        if exiting.is_set():
            seen.append(ddl.is_initialized())
        close(server, 0.0 if ddl.is_initialized() and exiting.is_set() else patience)

    StoreServer.close_when_alone = note  # type: ignore[method-assign]
    rank, size = as_an_engine_starts_it()
    ddl.init(rendezvous=ddl.Rendezvous(rank, size, Broadcast(f"{folder}/first")))
    ddl.shutdown()
    told = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "a"}
    os.environ.update({name: str(value) for name, value in told.items()})
    os.environ.update(MASTER_PORT="1", DDL_RENDEZVOUS_DIR=folder)  # as torchrun
    ddl.init()
    assert total(1) == size
    exiting.set()
    at_exit._run()
    return seen


@pytest.mark.processes
def test_a_store_does_not_wait_at_exit_for_its_own_process(tmp_path: Path) -> None:
    answers = ranks.run(2, in_jobs_of_an_engine_and_of_a_launcher, str(tmp_path), initialise=False)
    assert True not in answers[0] and answers[0].count(False) >= 1 and answers[1] == []


def contradicts_ddlrun() -> None:
    with pytest.raises(ddl.ConfigError, match="ddlrun made this rank 0 of 1, but the rendezvous .* rank 1 of 2"):
        ddl.init(rendezvous=ddl.Rendezvous(1, 2, "x"))
    ddl.init(rendezvous=ddl.Rendezvous(0, 1, "x"))  # the same: what ddlrun says holds


@pytest.mark.processes
def test_what_ddlrun_says_is_not_contradicted() -> None:
    ranks.run(1, contradicts_ddlrun, initialise=False)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((2, 2, "x"), "the engine says that this is rank 2 of 2"),
        ((-1, 2, "x"), "rank -1 of 2"),
        ((0.0, 2, "x"), "rank 0.0 of 2"),
        ((0, 2, None), "share=None; it is a function"),
        ((0, 2, "x", ["a"]), "1 names of hosts for 2 ranks"),
    ],
)
def test_what_makes_no_sense(arguments: Tuple[Any, ...], match: str) -> None:
    with pytest.raises(ddl.InvalidArgument, match=match):
        ddl.Rendezvous(*arguments)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"addresses": ["nowhere"], "secret": ""}', None])
def test_a_text_that_is_no_invitation_is_not_shown(text: Any) -> None:
    with pytest.raises(ddl.InvalidArgument, match="rank 1 of 2: what was shared .* is no invitation to a job"):
        JobInvitation.parse(text, "rank 1 of 2")


def test_a_store_needs_a_size() -> None:
    with pytest.raises(ddl.InvalidArgument, match="size=0; a job has at least one rank"):
        ddl.JobStore(0)


def test_an_error_of_another_cause_passes() -> None:
    with pytest.raises(KeyboardInterrupt):  # no Exception: passes at once
        with ddl.JobStore(2):
            raise KeyboardInterrupt


def test_two_ways_to_say_who_one_is() -> None:
    class Communicator:
        Get_rank = Get_size = bcast = None

    with pytest.raises(ddl.InvalidArgument, match="comm and rendezvous were given"):
        ddl.init(Communicator(), rendezvous=ddl.Rendezvous(0, 1, "x"))
