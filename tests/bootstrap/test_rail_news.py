"""What is said of rails: once when the first stream gives one up, once when the last one uses it again."""

from __future__ import annotations

import logging
from typing import List

import pytest

from ddl.bootstrap.rail_news import RailEnds, RailNews

SILENT = "rank 2: the rail from a{rail} to b{rail} (rank 5) is silent, and the job goes on over the others"
AGAIN = "rank 2: the rail from a{rail} to b{rail} works again"


@pytest.fixture
def news() -> RailNews:
    return RailNews(2, lambda peer, rail: RailEnds(f"rank {peer}", f"a{rail}", f"b{rail}"))


def told(caplog: pytest.LogCaptureFixture) -> List[str]:
    lines = [record.getMessage().partition(";")[0] for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return lines


def test_each_rail_is_told_once(news: RailNews, caplog: pytest.LogCaptureFixture) -> None:
    news.take(1, 5, 0, False)
    assert told(caplog) == [SILENT.format(rail=0)]
    news.take(1, 5, 0, False)  # another stream of the same communicator
    news.take(7, 5, 0, False)
    assert told(caplog) == []
    news.take(1, 5, 1, False)
    assert told(caplog) == [SILENT.format(rail=1)]
    news.take(7, 5, 0, True)
    news.take(1, 5, 0, True)
    assert told(caplog) == []
    news.take(1, 5, 0, True)
    assert told(caplog) == [AGAIN.format(rail=0)]
    news.take(1, 5, 0, False)
    assert told(caplog) == [SILENT.format(rail=0)]


def test_why_a_rail_is_closed_is_told(news: RailNews, caplog: pytest.LogCaptureFixture) -> None:
    news.take(1, 5, 0, False, "Connection reset by peer while receiving")
    news.take(7, 5, 0, False)
    assert told(caplog) == [SILENT.format(rail=0).replace("silent", "closed: Connection reset by peer while receiving")]


def test_what_a_communicator_knew_ends_with_it(news: RailNews, caplog: pytest.LogCaptureFixture) -> None:
    news.take(1, 5, 0, False)
    news.take(7, 5, 0, False)
    news.forget(1)
    told(caplog)
    news.take(7, 5, 0, True)
    assert told(caplog) == [AGAIN.format(rail=0)]
    news.forget(7)
    news.take(8, 5, 0, False)
    assert told(caplog) == [SILENT.format(rail=0)]


def test_a_rail_of_ranks_that_are_no_more_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    news = RailNews(2, lambda peer, rail: None)
    news.take(1, 5, 0, False)
    news.take(1, 5, 0, True)
    news.forget(1)
    assert told(caplog) == []
