"""``ddlrun --dry-run``: it says what would be started, where and with what, and starts nothing."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

import pytest
from launch.launcher import ROOT, Launcher

pytestmark = pytest.mark.processes


def test_on_this_machine(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')")
    options = ("--env", "A=b c", "--env", "TOKEN", "--timeout=7", "--output-dir", "logs", "--dry-run")
    environ = {"TOKEN": "hush", "OMP_NUM_THREADS": "3", "DDL_SECRET": "ab" * 32}
    done = launcher.run("-n", "2", *options, "train.py", "--epochs", "a b", cwd=tmp_path, environ=environ)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        f"2 ranks on this machine, in {tmp_path}:",
        f"    {sys.executable} -u train.py --epochs 'a b'",
        f"output: {tmp_path}/logs/rank.N.out and .err",
        "environment: ddlrun's own, and",
    ]
    told = [line.strip() for line in lines[4:]]
    for line in ("A='b c'", "TOKEN=(ddlrun's own)", "DDL_TIMEOUT=7", "DDL_SIZE=2", "MASTER_PORT=(chosen at the start)"):
        assert told.count(line) == 1
    assert f"HOROVOD_HOSTNAME={socket.gethostname()}" in told and not [line for line in told if "OMP_NUM" in line]
    for rank in range(2):
        (own,) = [line for line in told if line.startswith(f"rank {rank}: ")]
        assert f"DDL_RANK={rank}" in own.split() and f"LOCAL_RANK={rank}" in own.split()
    assert "DDL_SECRET=(made at the start, never shown)" in told and "ab" * 8 not in done.stdout
    assert "hush" not in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["train.py"]  # nothing was started, nothing written


def test_on_other_hosts(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\ntouch started\n")
    (tmp_path / "ssh").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DDL_SECRET": "ab" * 32, "HUSH": "silence"}
    options = ("-H", "localhost:1,192.0.2.7:2", "-p", "2200", "--env", "DDL_SECRET", "--env", "A=b")
    done = launcher.run(*options, "--dry-run", "true", "x", cwd=tmp_path, environ=environ)
    assert (done.returncode, done.stderr) == (0, "")
    hosts, _, rest = done.stdout.partition("started from here")
    assert re.fullmatch(
        "3 ranks on 2 hosts:\n"
        f"    host localhost: rank 0, in {tmp_path}:\n        /\\S*/true x\n"
        f"    host 192.0.2.7: ranks 1, 2, in {tmp_path}:\n        /\\S*/true x\n",
        hosts,
    )
    assert f"\n    {sys.executable} -m ddl.launch.agent.remote\n    {tmp_path}/ssh -T " in rest
    assert f" -p 2200 192.0.2.7 'exec env PYTHONPATH={ROOT} {sys.executable} -m ddl.launch.agent.remote'\n" in rest
    assert "\n    A=b\n" in rest and "    DDL_SECRET=(made at the start, never shown)\n" in rest
    assert "ab" * 8 not in done.stdout and "silence" not in done.stdout
    assert sorted(os.listdir(tmp_path)) == ["ssh"]


def test_of_an_elastic_job(launcher: Launcher, tmp_path: Path) -> None:
    done = launcher.run("-n", "2", "--elastic", "--dry-run", "true", cwd=tmp_path)
    first, second, *_ = done.stdout.splitlines()
    assert first == "elastic: ranks come and go, at least 1, at most 2"
    assert second == f"2 ranks on this machine, in {tmp_path}:"
    assert "    DDL_ELASTIC=1\n" in done.stdout
    script = "touch started"
    done = launcher.run("-n", "2", "--host-discovery-script", script, "--dry-run", "true", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and not os.listdir(tmp_path)
    assert re.fullmatch(
        "elastic: ranks come and go, at least 2, as many as there are slots\n"
        rf"2 ranks or more, in {tmp_path}, on the hosts that the script names \(it is not run now\):\n"
        "    touch started\n    /\\S*/true\n",
        done.stdout,
    )
