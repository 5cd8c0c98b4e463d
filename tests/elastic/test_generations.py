"""Ranks are lost and join, the store is lost: those that are left make the next generation, and its sums are right."""

from __future__ import annotations

import dataclasses
import mmap
import os
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import psutil
import pytest
import ranks
from elastic import elastic_job
from elastic.elastic_job import LIMITS, ElasticJob
from ipv6 import needs_ipv6

import ddl
from ddl import _core
from ddl.adapter import elastic, generation
from ddl.adapter.fence import fenced
from ddl.store.membership.limits import Phase


def nothing(step: int) -> None:
    """Do nothing after a step."""


def train(after: Callable[[int], None] = nothing) -> Dict[str, Any]:
    """Add up what ranks give, step by step, until the test has seen enough; go on whatever happens to others."""
    finished, errors = 0, []
    sizes: List[int] = []
    x = np.ones(1000, np.float32)
    if not generation.is_member():
        finished = generation.next_generation(finished=0).said[0]["finished"]
    while True:
        try:
            ended = ddl.allreduce(np.array([elastic_job.may_end(), 1.0]), op="sum")
            assert (ddl.allreduce(x, op="sum") == ddl.size()).all()
            assert ended[1] == ddl.size()
            finished += 1
            if sizes[-1:] != [ddl.size()]:
                sizes.append(ddl.size())
            elastic_job.reached(finished)
            after(finished)
            if ended[0]:
                break
            if generation.begin_step(finished):
                said = generation.next_generation(finished=finished).said
                assert {rank["finished"] for rank in said.values() if not rank["newcomer"]} == {finished}
        except ddl.CommunicatorError as error:
            errors.append(str(error))
            while True:
                try:
                    said = generation.next_generation(finished=finished).said
                    break
                except ddl.CommunicatorError:
                    assert ddl.is_initialized()
            steps = [rank["finished"] for rank in said.values() if not rank["newcomer"]]
            assert max(steps) - min(steps) <= 1
            finished = max(steps)
    metrics = ddl.metrics()
    assert (metrics.generation > 0) == (metrics.paused_seconds > 0) == (ddl.world().job.generation > 0)
    return {"rank": ddl.rank(), "size": ddl.size(), "finished": finished, "sizes": sizes, "errors": errors}


def ended(job: ElasticJob) -> List[Dict[str, Any]]:
    """Let it end; return the answers in the order of the ranks, which all have made the same steps."""
    answers = sorted(job.finish().values(), key=lambda answer: answer["rank"])
    assert [answer["rank"] for answer in answers] == list(range(len(answers)))
    assert {answer["size"] for answer in answers} == {len(answers)}
    assert len({answer["finished"] for answer in answers}) == 1
    return answers


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_rank_is_killed(victim: int) -> None:
    with ElasticJob(4, train) as job:
        job.wait_until(5)
        job.kill(victim)
        job.wait_for_generation(1)
        job.wait_until(max(job.steps().values()) + 5)
        answers = ended(job)
        assert job.news[0]["members"] == [i for i in range(4) if i != victim]
    assert len(answers) == 3
    for answer in answers:
        assert answer["sizes"] == [4, 3]
        assert [f"lost rank {victim} " in error for error in answer["errors"]] == [True]


def test_one_after_the_other_down_to_one() -> None:
    with ElasticJob(4, train) as job:
        for number, victim in enumerate((1, 0, 3), 1):
            job.wait_until(max(job.steps().values(), default=0) + 5)
            job.kill(victim)
            job.wait_for_generation(number)
        job.wait_until(max(job.steps().values()) + 5)
        (answer,) = ended(job)
    assert answer["sizes"] == [4, 3, 2, 1]
    # Ranks are called by their numbers of that moment.
    for error, lost in zip(answer["errors"], ("rank 1 ", "rank 0 ", "rank 1 ")):
        assert f"lost {lost}" in error


def test_all_but_one_at_once() -> None:
    """Their votes are in their cells: one rank decides for all of them, since their ends are certain."""
    with ElasticJob(4, train) as job:
        job.wait_until(5)
        job.kill(0, 1, 3)
        job.wait_for_generation(1)
        job.wait_until(max(job.steps().values()) + 5)
        (answer,) = ended(job)
    assert answer["sizes"][0] == 4 and answer["sizes"][-1] == 1


@pytest.mark.parametrize("victims", [(), (2,), (0,)])
def test_the_store_is_lost_and_then_a_rank(victims: List[int]) -> None:
    with ElasticJob(3, train) as job:
        job.wait_until(5)
        job.end_store()
        job.wait_until(max(job.steps().values()) + 30)  # nobody stops because of that
        job.kill(*victims)
        job.wait_until(max(job.steps().values()) + 30)
        answers = ended(job)
    for answer in answers:
        assert answer["sizes"] == [3, 3 - len(victims)][: 1 + len(victims)]
        assert len(answer["errors"]) == len(victims)


@pytest.mark.parametrize("size", [2, 3])
def test_the_store_and_the_first_rank_are_lost_at_once(size: int) -> None:
    with ElasticJob(size, train) as job:
        job.wait_until(5)
        job.kill(0)
        job.end_store()
        job.wait_until(max(job.steps().values()) + 10)
        answers = ended(job)
    for answer in answers:
        assert answer["sizes"] == [size, size - 1]
        assert "lost rank 0 " in answer["errors"][0]


def test_two_join_and_no_step_is_made_twice() -> None:
    with ElasticJob(2, train) as job:
        job.wait_until(5)
        for number in (1, 2):
            newcomer = job.join()
            news = job.wait_for_generation(number)
            assert news["members"] == list(range(newcomer + 1)) and news["lost"] == {}
            job.wait_until(max(job.steps().values()) + 5)
        answers = ended(job)
    assert [answer["sizes"] for answer in answers] == [[2, 3, 4], [2, 3, 4], [3, 4], [4]]
    assert [answer["errors"] for answer in answers] == [[]] * 4


MANNERS = {
    "plain": {},
    "encrypted": {"DDL_ENCRYPT": "1"},
    "checked": {"DDL_CHECKSUM": "1"},
    "rails": {"DDL_INTERFACE": "127.0.0.1,127.0.0.2"},
}


@pytest.mark.parametrize("manner", MANNERS)
def test_a_rank_joins_in_place_of_one_that_was_killed(manner: str) -> None:
    with ElasticJob(3, train, env={**MANNERS[manner], "DDL_SHM": "0"}) as job:
        job.wait_until(5)
        job.lose(1)
        job.gain(steps=5)
        answers = ended(job)
    assert [answer["sizes"] for answer in answers] == [[3, 2, 3], [3, 2, 3], [3]]


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"DDL_CHECKSUM": "1"}, "rank 2 (host {host}) asked for checksums, rank 0 (host {host}) did not"),
        ({"DDL_DETERMINISTIC": "1"}, "rank 2 (host {host}) asked for deterministic sums, rank 0"),
        pytest.param(
            {"DDL_INTERFACE": "::1"},
            "rank 0 (host {host}) can be reached over IPv4 only, rank 2 (host {host}) over IPv6",
            marks=needs_ipv6,
        ),
    ],
    ids=["checksum", "deterministic", "IPv6"],
)
def test_a_process_that_does_not_fit_is_not_let_in(environ: Dict[str, str], words: str) -> None:
    """It says why. The others could not work with it, and would begin again and again."""
    with ElasticJob(2, train, env={"DDL_SHM": "0"}) as job:
        job.wait_until(5)
        said = job.refused(**environ)
        job.wait_until(max(job.steps().values()) + 5)
        answers = ended(job)
    assert "ConfigError" in said and words.format(host=socket.gethostname()) in said, said
    assert [answer["sizes"] for answer in answers] == [[2], [2]] and [answer["errors"] for answer in answers] == [
        [],
        [],
    ]


def test_a_rank_is_asked_to_leave() -> None:
    with ElasticJob(3, leave_when_asked) as job:
        job.wait_until(5)
        job.leaving.append(1)
        job.store.remove(1)
        assert job.wait_for_generation(1)["lost"] == {1: "it was asked to leave"}
        job.wait_until(max(job.steps().values()) + 5, ranks_there=2)
        answers = job.finish()
    assert answers[1] == "0"  # it ended as if all were done
    assert [answers[i]["errors"] for i in (0, 2)] == [[], []]  # nothing was interrupted


def train_and_tell(path: str) -> Dict[str, Any]:
    """Train; rank 0 writes after each step which process it is, and which step that was."""

    def write(step: int) -> None:
        if ddl.rank() == 0:
            with fenced(path) as draft:
                draft.write_text(f"{os.environ['DDL_RANK']} {step}")

    return train(write)


def test_the_next_rank_0_writes_the_files(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def writer_and_step() -> Tuple[int, int]:
        writer, step = path.read_text().split()
        return int(writer), int(step)

    with ElasticJob(3, train_and_tell, str(path)) as job:
        job.wait_until(5)
        job.lose(0)
        before, step = writer_and_step()  # the last of process 0, or one of its successor
        job.wait_until(max(*job.steps().values(), step) + 5)
        ended(job)
        assert before in (0, 1) and writer_and_step()[0] == 1 and writer_and_step()[1] > step
    assert [each for each in os.listdir(tmp_path) if each != "file"] in ([], [f".file.{job._processes[0].pid}"])


THREE_OR_NONE = dataclasses.replace(LIMITS, min_size=3)


def wait_until_paused(job: ElasticJob) -> Dict[int, int]:
    """Return how far the ranks are that wait for others."""
    membership = job.store._membership
    assert membership is not None
    while membership.phase is not Phase.PAUSED:  # the test's timeout is on
        time.sleep(0.001)
    return job.steps()


def test_ranks_that_are_too_few_wait_for_others() -> None:
    with ElasticJob(3, train, limits=THREE_OR_NONE) as job:
        job.wait_until(5)
        job.kill(1)
        steps = wait_until_paused(job)
        time.sleep(0.1)  # in which they would make a hundred steps
        assert job.steps() == steps
        job.join()
        news = job.wait_for_generation(2)
        assert news["members"] == [0, 2, 3]
        job.wait_until(max(steps.values()) + 20)
        answers = ended(job)
    # The step that the death has broken off was their last one as two.
    assert [answer["sizes"] for answer in answers] == [[3, 2, 3], [3, 2, 3], [3]]


def commit_each_step() -> Any:
    state = elastic.ObjectState(batch=0, total=0.0)

    def step(state: Any) -> None:
        state.total += float(ddl.allreduce(np.ones(1), op="sum")[0])

    try:
        return elastic_job.go_on(state, step, lambda state: [state.total])
    except (ddl.LeftOut, SystemExit) as error:
        return str(error)


def test_ranks_leave_until_too_few_are_left_and_then_others_join() -> None:
    """Horovod #3494: old ranks skipped the sync then, in which the new ones waited for them."""
    with ElasticJob(3, commit_each_step, limits=THREE_OR_NONE) as job:
        job.wait_until(5)
        job.leaving.append(1)
        job.store.remove(1)
        steps = wait_until_paused(job)
        job.join()
        assert job.wait_for_generation(2)["members"] == [0, 2, 3]
        job.wait_until(max(steps.values()) + 20, ranks_there=3)
        answers = job.finish()
    assert answers.pop(1) == "0"
    first, *others = (answers[i] for i in (0, 2, 3))
    assert all((other["bits"], other["batch"]) == (first["bits"], first["batch"]) for other in others)
    assert first["sizes"][0] == first["sizes"][-1] == answers[3]["sizes"][-1] == 3


def leave_when_asked() -> Any:
    try:
        return train()
    except (ddl.LeftOut, SystemExit) as error:
        return str(error)


def stop_rank_1(step: int) -> None:
    """Stop rank 1 after the fifth step. The others come to their deadline soon, which begins when it is stopped."""
    if step == 5 and ddl.size() == 3:
        ranks.meet()
        if ddl.rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            ddl.world().set_timeout(3.0)  # also for the rank that is not stopped


#: A rank that is stopped is left out after so many seconds. Those that are not must answer by then.
LEFT_OUT_SOON = dataclasses.replace(LIMITS, answer_patience=5.0)


def wait_until_stopped(job: ElasticJob) -> None:
    process = psutil.Process(job._processes[1].pid)
    while process.status() != psutil.STATUS_STOPPED:  # the test's timeout is on
        time.sleep(0.01)


def write_when_woken(path: str) -> str:
    """Train; after having been stopped, write a file before anything else is done."""
    for step in range(1, 6):
        ddl.allreduce(np.ones(1))
        stop_rank_1(step)
    if ddl.rank() != 1:
        with pytest.raises(ddl.CollectiveTimeout):
            ddl.allreduce(np.ones(1))
    try:
        with fenced(path) as draft:
            draft.write_text(f"of rank {os.environ['DDL_RANK']}")
    except ddl.LeftOut as error:
        return str(error)
    return "written"


def test_a_stopped_rank_writes_no_file_when_it_wakes(tmp_path: Path) -> None:
    with ElasticJob(3, write_when_woken, str(tmp_path / "file"), limits=LEFT_OUT_SOON) as job:
        wait_until_stopped(job)
        while not (tmp_path / "file").exists():  # the others have gone on
            time.sleep(0.01)
        os.kill(job._processes[1].pid, signal.SIGCONT)
        answers = job.finish()
    assert "in the job no more" in answers[1] and answers[0] == "written"
    assert (tmp_path / "file").read_text() in ("of rank 0", "of rank 2")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def leave_when_left_out() -> Any:
    try:
        return train(stop_rank_1)
    except ddl.LeftOut as error:
        return str(error)


def test_a_stopped_rank_is_left_out_and_learns_it() -> None:
    with ElasticJob(3, leave_when_left_out, limits=LEFT_OUT_SOON) as job:
        wait_until_stopped(job)
        news = job.wait_for_generation(1)
        assert news["members"] == [0, 2]
        job.leaving.append(1)
        os.kill(job._processes[1].pid, signal.SIGCONT)
        job.wait_until(max(job.steps().values()) + 5, ranks_there=2)
        answers = job.finish()
    assert "in the job no more" in answers[1]
    assert answers[0]["sizes"] == [3, 2]


def stop_rank_1_amid_a_store(step: int) -> None:
    """Stop it as if one of its lanes were writing to the others' arrays."""
    if step == 5 and ddl.size() == 3 and ddl.rank() == 1:
        arena = mmap.mmap(_core.arena_fd(), 0)
        place = ddl.world()._core.board_offset + _core.BOARD_STORING + 4 * _core.LANE_POINT_TO_POINT
        struct.pack_into("I", arena, place, 1)
    stop_rank_1(step)


def test_a_rank_that_was_stopped_amid_a_store_is_ended_when_the_others_go_on() -> None:
    """It would end its copy into their arrays, if it was ever continued."""
    with ElasticJob(3, train, stop_rank_1_amid_a_store, limits=LEFT_OUT_SOON) as job:
        wait_until_stopped(job)
        assert job.wait_for_generation(1)["members"] == [0, 2]
        job._processes[1].join(elastic_job.PATIENCE)
        assert job._processes[1].exitcode == -signal.SIGKILL
        job._killed += (1,)
        job.wait_until(max(job.steps().values()) + 5)
        answers = job.finish()
    assert [answer["sizes"] for answer in answers.values()] == [[3, 2]] * 2
