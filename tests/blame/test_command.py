"""``ddl blame``: the files that it reads, and those that it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Sequence

import pytest
from blame.fabricated import all_wait_for, call, job

from ddl.records.dump import JobEnd, RankDump, dump_message, end_message, file_name
from ddl.tools.cli import main


def write(folder: Path, dumps: Sequence[RankDump]) -> None:
    for dump in dumps:
        (folder / file_name(dump)).write_text(json.dumps(dump_message(dump)))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["blame", *words]) == 2
    return capsys.readouterr().err


def test_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, job(all_wait_for(2), dumps={2: {"state": "is stopped"}}))
    end = JobEnd(4, {"kind": "CollectiveTimeout", "culprit": 2, "reason": "rank 2 does not answer"}, 2)
    (tmp_path / "job.json").write_text(json.dumps(end_message(end)))
    assert main(["blame", str(tmp_path), "--json", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("stopped: rank 2 (host a, pid 1002) is stopped, and 3 ranks wait for it in allreduce #7")
    assert "    the job's store says the same: CollectiveTimeout: rank 2: rank 2 does not answer\n" in out
    assert out.endswith("    what to do: let it go on: kill -CONT 1002\n")
    (finding,) = json.loads((tmp_path / "out").read_text())["findings"]
    assert (finding["kind"], finding["ranks"], finding["host"]) == ("stopped", [2], "a")
    assert main(["blame", str(tmp_path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == [finding]


def test_a_healthy_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, job([[call(7)]] * 4))
    assert main(["blame", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no rank is to blame: all 4 ranks do operation #7 or compute\n"


def test_a_job_that_ended_before_anybody_dumped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end = JobEnd(2, None, 1, {1: "exited with status 3"}, {1: ["ValueError: x"]})
    (tmp_path / "job.json").write_text(json.dumps(end_message(end)))
    assert main(["blame", str(tmp_path)]) == 0
    assert "dead: rank 1 exited with status 3\n" in capsys.readouterr().out


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{tmp_path}/no: there is no such folder" in refused(capsys, f"{tmp_path}/no")
    assert f"{tmp_path}: it has no dumps of ranks" in refused(capsys, str(tmp_path))
    dumps = job([[call(7)]] * 4)
    write(tmp_path, dumps)
    assert "--patience -1: it must be 0 or more" in refused(capsys, str(tmp_path), "--patience", "-1")
    assert "--patience nan: it must be" in refused(capsys, str(tmp_path), "--patience", "nan")
    path = tmp_path / "rank.1.json"
    for text, said in [
        ("{", "it cannot be read"),
        ("[]", "this is no dump of a rank"),
        ('{"format": 9}', "the dump has format 9"),
        (json.dumps(dump_message(dumps[0])), "it is of rank 0, as rank.0.json is"),
    ]:
        path.write_text(text)
        assert f"{path}: {said}" in refused(capsys, str(tmp_path))
    dumps[1].record.identity["job"] = "b"  # type: ignore[index]
    write(tmp_path, dumps[1:2])
    assert f"{path}: it is of another job than rank.0.json" in refused(capsys, str(tmp_path))
    path.unlink()
    (tmp_path / "job.json").write_text("{}")
    assert f"{tmp_path}/job.json: this is no end of a job" in refused(capsys, str(tmp_path))
