"""What an agent looks at before its ranks start: directory, program and network of its host, and the other hosts."""

from __future__ import annotations

import dataclasses
import json
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Dict, List

import pytest
from launch.launcher import ROOT

from ddl.errors import ConfigError
from ddl.launch.agent.control import Assignment
from ddl.launch.agent.preflight import HostEntry, look_around, open_token_ports, wrong_names
from ddl.launch.agent.reach import TokenPort
from ddl.launch.ask.program import script_of


@pytest.mark.processes
def test_what_is_missing_on_a_host_is_said_before_anything_starts(tmp_path: Path) -> None:
    here = Assignment((0,), 1, 0, 1, (sys.executable, "-u", "train.py"), str(tmp_path), (), None, True, False, "")
    program = "import sys\n"
    program += (
        "from ddl.launch.agent.preflight import prepare; from ddl.launch.agent.control import Assignment; import json\n"
    )
    program += "prepare(Assignment.parse(json.loads(sys.stdin.read())))"
    for change, words in [
        ({"directory": "/no/such"}, "the directory /no/such cannot be entered"),
        ({"command": ("/no/python", "-u", "train.py")}, "the program /no/python is not here"),
        ({}, f"the script train.py is not in {tmp_path}"),
        ({"command": ("/bin/true",), "interface": "ib7"}, "there is no network interface 'ib7'"),
    ]:
        message = dataclasses.replace(here, **change).message()
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(message),
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert words in done.stderr, done.stderr


def test_scripts_are_recognised() -> None:
    for line, script in [
        ("/usr/bin/python3.11 -u train.py --config other.py", "train.py"),
        ("python -O -B dir/train.py", "dir/train.py"),
        ("python -X dev -W ignore train.py", "train.py"),
        ("python -Xdev -Wignore train.py", "train.py"),
        ("python -u -- train.py", "train.py"),
        ("python -Im train.py", ""),
        ("python -m train.py", ""),
        ("python -c train.py", ""),
        ("python -u", ""),
        ("python -u data.csv x.py", ""),
        ("./program train.py", ""),
    ]:
        assert script_of(line.split()) == script


def peer(number: int, address: str, token: bytes = b"") -> HostEntry:
    return HostEntry(number, f"me@h{number}", [address], token.hex())


def test_a_host_looks_around() -> None:
    """One port is open, at one somebody else answers, one is closed; and there is nobody else to look at."""
    with TokenPort("127.0.0.1") as own, TokenPort("127.0.0.1") as right, TokenPort("127.0.0.1") as wrong:
        closed = TokenPort("127.0.0.1")
        with closed:
            pass
        peers = [
            peer(0, f"127.0.0.1:{own.port}", own.token),
            peer(1, f"127.0.0.1:{right.port}", right.token),
            peer(2, f"127.0.0.1:{wrong.port}", right.token),
            peer(3, f"127.0.0.1:{closed.port}", closed.token),
        ]
        threads = [threading.Thread(target=greet_one, args=(token_port,)) for token_port in (right, wrong)]
        for thread in threads:
            thread.start()
        warned = look_around(0, peers, [own])
        for thread in threads:
            thread.join()
    assert warned["problems"] == [
        f"me@h0 cannot connect to me@h2 at 127.0.0.1:{wrong.port}: somebody else answers there",
        f"me@h0 cannot connect to me@h3 at 127.0.0.1:{closed.port}: refused",
    ]


def greet_one(token_port: TokenPort) -> None:
    assert select.select([token_port], [], [], 100)[0]
    token_port.greet()


def test_two_hosts_look_around_at_once() -> None:
    """Each greets the other while it waits for the other's greeting."""
    with TokenPort("127.0.0.1") as first, TokenPort("127.0.0.1") as other:
        peers = [peer(0, f"127.0.0.1:{first.port}", first.token), peer(1, f"127.0.0.1:{other.port}", other.token)]
        reports: List[Dict[str, List[str]]] = []
        thread = threading.Thread(target=lambda: reports.append(look_around(0, peers, [first])))
        thread.start()
        # The second one goes on greeting after it has seen all, as agents do until the job begins.
        reports.append(look_around(1, peers, [other]))
        while thread.is_alive():
            if select.select([other], [], [], 0.05)[0]:
                other.greet()
    assert [entry["problems"] for entry in reports] == [[], []]


def test_names_that_lead_to_other_hosts() -> None:
    peers = [peer(0, "10.0.0.1:1"), peer(1, "10.0.0.2:2")]
    for answers, words in [
        ({"h0": ["127.0.1.1"], "h1": ["10.0.0.2"]}, []),
        ({"h0": ["10.0.0.1"], "h1": []}, []),  # DDL needs no names
        ({"h0": ["10.0.0.1"], "h1": ["192.168.0.7"]}, []),  # another interface of it, or an address that is translated
        ({"h0": ["10.0.0.1"], "h1": ["10.0.0.1"]}, ["on me@h0, the name me@h1 leads to 10.0.0.1, which is me@h0"]),
        ({"h0": ["10.0.0.2"], "h1": ["10.0.0.2"]}, ["on me@h0, the name me@h0 leads to 10.0.0.2, which is me@h1"]),
        ({"h0": ["10.0.0.1"], "h1": ["127.0.0.1"]}, ["on me@h0, the name me@h1 leads to 127.0.0.1, which is me@h0"]),
        ({"h0": ["10.0.0.1"]}, ["me@h0 got no answer within 1 s when it asked for the address of me@h1"]),
    ]:
        warnings = list(wrong_names(peers[0], peers, answers))
        assert [text.partition(";")[0] for text in warnings] == words


def test_an_address_that_this_host_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDL_INTERFACE", "192.0.2.1")
    with pytest.raises(ConfigError, match="data cannot be awaited on 192.0.2.1: .*--network-interface"):
        open_token_ports("127.0.0.1")
