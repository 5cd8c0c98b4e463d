"""The script that names hosts: what it may print, and everything that it may do wrong. Real scripts, no job."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Callable, List, Optional, Union

import pytest
from launch.launcher import eventually

from ddl.errors import ConfigError
from ddl.launch.agent.loop import catch_signals, drain, wait_once
from ddl.launch.ask.hosts import Host
from ddl.launch.job import discovery
from ddl.launch.job.discovery import PERIOD, Discovery, hosts_of
from ddl.launch.job.elastic_events import DiscoveryFailed, HostsSeen

News = Union[HostsSeen, DiscoveryFailed]
Write = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path) -> Write:
    def write(text: str) -> str:
        path = tmp_path / "hosts.sh"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No script is taken for one that hangs because the machine is slow."""
    monkeypatch.setattr(discovery, "PATIENCE", 100.0)


def ask(script: str, times: int = 1, slots_per_host: int = 0) -> List[News]:
    """Run the script in a loop as ddlrun's; return what came of it."""
    pids: List[int] = []
    asked = Discovery(script, slots_per_host or None, pids.append, pids.remove)
    woken, restore = catch_signals()
    news: List[News] = []
    try:
        while len(news) < times:
            answer = asked.look(time.monotonic())
            if answer is not None:
                news.append(answer)
                continue
            wait_once({woken.fileno(): (1, lambda: None), **asked.handlers()}, asked.deadline())
            drain(woken)
    finally:
        asked.close()
        restore()
    assert not pids
    return news


def test_the_lines_of_a_script() -> None:
    assert hosts_of("a:2\n\n  b:1  \n", None) == (Host("a", 2), Host("b", 1))
    assert hosts_of("a\nb:1", 4) == (Host("a", 4), Host("b", 1))
    assert hosts_of("a:1\na:2", None) == (Host("a", 3),)
    assert hosts_of("", None) == ()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a:2\nb", "line 2 of its output, 'b', has no slots; print HOST:SLOTS, or say --slots-per-host"),
        ("a:2\n:3", "line 2 of its output, ':3': '' is not the name of a host"),
        ("a:many", "line 1 of its output, 'a:many': 'many' is not a number of slots"),
        ("a:0", "'0' is not a number of slots"),
        ("Traceback (most recent call last):", "is not the name of a host"),
        ("-oProxyCommand=x:1", "is not the name of a host"),
        ("x" * 500, "x' is not the name of a host|has no slots"),
    ],
)
def test_rubbish_is_said_with_its_line(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        hosts_of(text, None)


def test_it_is_asked_again_each_second(script: Write, tmp_path: Path) -> None:
    program = script(f"echo x >> {tmp_path}/log; echo a:$(wc -l < {tmp_path}/log)")
    begin = time.monotonic()
    assert ask(program, 3) == [HostsSeen((Host("a", slots),)) for slots in (1, 2, 3)]
    assert time.monotonic() - begin >= 2 * PERIOD


def test_it_may_have_arguments_and_names_without_slots(script: Write) -> None:
    assert ask(script("echo $1") + " b", slots_per_host=3) == [HostsSeen((Host("b", 3),))]


def test_what_it_leaves_behind_is_ended_and_not_waited_for(script: Write, tmp_path: Path) -> None:
    """It has the script's output open: who waited for its end would say that the script hangs."""
    assert ask(script(f"sleep 600 & echo $! >{tmp_path}/pid; echo a:1")) == [HostsSeen((Host("a", 1),))]
    line = Path("/proc", (tmp_path / "pid").read_text().strip(), "cmdline")
    assert eventually(lambda: not line.exists() or not line.read_text())  # it has none when it has ended


FAILURES = {
    "echo no network >&2; exit 3": ("status", "hosts.sh ended with status 3: no network"),
    "kill -9 $$": ("status", "hosts.sh ended with status 137"),
    "echo 'a b c'": ("rubbish", "hosts.sh printed what names no hosts: line 1 of its output"),
    "head -c 2000000 /dev/zero": ("flood", "prints more than 1 MiB; it was ended"),
    "yes": ("flood", "prints more than 1 MiB"),
    "yes >&2": ("flood", "prints more than 1 MiB"),
}


@pytest.mark.parametrize("text", FAILURES)
def test_what_it_does_wrong(text: str, script: Write) -> None:
    (failed,) = ask(script(text))
    kind, words = FAILURES[text]
    assert isinstance(failed, DiscoveryFailed) and failed.kind == kind and words in failed.text


def test_it_hangs(script: Write) -> None:
    """By a clock of the test's own."""
    program = script("sleep 600")
    asked = Discovery(program, None)
    assert asked.look(7.0) is None and asked.look(106.9) is None
    assert asked.look(107.0) == DiscoveryFailed("hang", f"{program} has not ended within 100 s, and was killed")
    script("echo a:1")
    seen: List[Optional[News]] = []
    assert eventually(lambda: seen.append(asked.look(108.0)) or seen[-1])  # type: ignore[func-returns-value]
    assert seen[-1] == HostsSeen((Host("a", 1),))


def test_there_is_none(tmp_path: Path) -> None:
    (failed,) = ask(f"{tmp_path}/none")
    assert isinstance(failed, DiscoveryFailed) and "ended with status 127: " in failed.text


def test_descriptors_do_not_pile_up(script: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "PERIOD", 0.0)
    before = len(os.listdir("/proc/self/fd"))
    ask(script("echo a:1"), 30)
    assert len(os.listdir("/proc/self/fd")) <= before
