"""What ddlrun says at the end of an elastic job that has failed: the course of the job, without a process."""

from __future__ import annotations

import contextlib
from typing import Iterator, List, Optional

import pytest

from ddl.launch.agent.failures import Exit
from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.ask.hosts import Host
from ddl.launch.job.elastic_course import ElasticCourse
from ddl.launch.job.elastic_events import RanksFormed, StartProcess

ADVICE = "does the program use ddl.elastic"


class NotedRanks:
    """Notes what is ordered, and does nothing."""

    def __init__(self) -> None:
        self.started: List[int] = []
        self.texts: List[str] = []
        self.given_up = False

    def start_process(self, order: StartProcess) -> None:
        self.started.append(order.incarnation)

    def let_go(self, incarnation: int) -> None:
        raise AssertionError("nobody is to leave")

    def signal_process(self, incarnation: int, number: int) -> None:
        raise AssertionError("nobody is to be ended")

    def give_up(self) -> None:
        self.given_up = True

    def tell(self, text: str) -> None:
        self.texts.append(text)


@contextlib.contextmanager
def course_of(
    *hosts: str, ranks: Optional[NotedRanks] = None, reset_limit: Optional[int] = None
) -> Iterator[ElasticCourse]:
    """Yield the course of a job with a rank on each host, which has begun."""
    ranks = ranks or NotedRanks()
    places = tuple(Host(host, 1) for host in hosts)
    options = ElasticOptions(min_np=1, max_np=None, hosts=places, reset_limit=reset_limit)
    course = ElasticCourse(options, len(hosts), ranks)
    try:
        course.begin(lambda: pytest.fail("there is no script to guard"))
        assert ranks.started == list(range(len(hosts)))
        yield course
    finally:
        course.close()


def test_ranks_that_all_fail_without_a_change_may_not_be_elastic() -> None:
    with course_of("a", "b") as course:
        for rank in range(2):
            course.process_ended(Exit(rank, 100 + rank, 1, rank))
        assert ADVICE in course.problem


def test_ranks_that_have_gone_on_once_are_elastic() -> None:
    with course_of("a", "b", "c") as course:
        course.process_ended(Exit(0, 100, 1, 0))
        course.post(RanksFormed(1, (1, 2)))
        for rank in (1, 2):
            course.process_ended(Exit(rank, 100 + rank, 1, rank))
        assert course.problem and ADVICE not in course.problem


def test_ranks_that_are_cut_off_from_the_others_may_well_be_elastic() -> None:
    with course_of("a", "b", "c", "d") as course:
        for host in ("c", "d"):
            course.host_failed(host, "it does not answer any more")
        for rank in range(2):
            course.process_ended(Exit(rank, 100 + rank, 1, rank))
        assert course.problem and ADVICE not in course.problem


@pytest.mark.parametrize("formed_first", [False, True])
def test_a_lost_rank_is_counted_once_whether_its_end_or_the_others_are_seen_first(formed_first: bool) -> None:
    ranks = NotedRanks()
    with course_of("a", "b", "c", ranks=ranks) as course:
        if formed_first:
            course.post(RanksFormed(1, (1, 2)))
        course.process_ended(Exit(0, 100, -9, 0))
        assert "rank 0 (pid 100) was killed by signal 9 (SIGKILL); 2 ranks are left" in ranks.texts


@pytest.mark.parametrize("formed_before", [0, 1, 2])
def test_a_job_does_not_fail_of_a_rank_that_it_has_gone_on_without(formed_before: int) -> None:
    """Also where the end of that rank is seen only when the others have formed anew, so many times."""
    with course_of("a", "b", "c", reset_limit=1) as course:
        course.post(RanksFormed(0, (0, 1, 2)))
        first, second = Exit(1, 101, -9, 1), Exit(2, 102, -9, 2)
        if formed_before == 0:
            course.process_ended(first)
        course.post(RanksFormed(1, (0, 2)))
        if formed_before == 1:
            course.process_ended(first)
        assert not course.problem
        if formed_before < 2:
            course.process_ended(second)
        course.post(RanksFormed(2, (0,)))
        if formed_before == 2:
            course.process_ended(first)
            course.process_ended(second)
        course.look()
        assert "--reset-limit 1 allows no more" in course.problem and course.failure() is second


def test_the_summary_has_the_generations_and_how_long_their_changes_took() -> None:
    ranks = NotedRanks()
    with course_of("a", "b", "c", ranks=ranks) as course:
        course.post(RanksFormed(0, (0, 1, 2)))
        assert course.summary() == ""
        course.process_ended(Exit(1, 101, -9, 1))
        assert course.summary().endswith("in place of lost ones")
        course.post(RanksFormed(1, (0, 2), 0.25))
        course.process_ended(Exit(2, 102, -9, 2))
        course.post(RanksFormed(2, (0,), 2.0))
        course.look()
        assert [text for text in ranks.texts if text.startswith("generation")] == [
            "generation 0 has 3 ranks",
            "generation 1 has 2 ranks, after a change of 250 ms",
            "generation 2 has 1 rank, after a change of 2.0 s",
        ]
        assert course.summary().endswith("; new generations: 2, whose changes took 2.2 s, the longest 2.0 s")
