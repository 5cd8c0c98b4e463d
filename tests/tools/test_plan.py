"""``ddl plan``: its counts, worked out by hand; what it refuses; the commands of docs/algorithms.md, as they stand."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Dict, List

import pytest

from ddl.tools import cli
from ddl.tools.doctor.phrases import bytes_text, counted
from ddl.tools.plan import command

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "algorithms.md"
MIB = 1 << 20


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Dict[str, Any]:
    assert cli.main(["plan", *words, "--json", "-"]) == 0
    answer: Dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> List[str]:
    assert cli.main(["plan", *words]) == 0
    return capsys.readouterr().out.splitlines()


def moved(counts: Dict[str, Any]) -> List[float]:
    """Messages, and MiB sent, received, read and written."""
    sizes = [counts[f"bytes_{how}"] / MIB for how in ("sent", "received", "read", "written")]
    return [counts["messages"], *sizes]


def test_4x8x2_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """The host leaves a quarter to each rank, 16 MiB; 7/8 of that go each way between hosts, then half of 2 MiB."""
    answer = asked(capsys, "4x8x2", "--bytes", "64M")
    assert (answer["algorithm"], answer["rounds"], answer["verified"]) == ("multiring", 1 + 14 + 2 + 1, True)
    assert (answer["chunks"], answer["chunk_bytes"], answer["pieces"], answer["pieces_at_once"]) == (64, MIB, 32, 4)
    assert answer["paper"] == {"messages": 2 * (3 + 7 + 1), "bytes": 126 * MIB}
    assert [counts["rank"] for counts in answer["counts"]] == list(range(64))
    for counts in answer["counts"]:
        assert moved(counts) == [16, 30, 30, 48, 48]
        assert moved(counts["dimensions"]["ranks"]) == [0, 0, 0, 48, 48]
        assert moved(counts["dimensions"]["hosts"]) == [14, 28, 28, 0, 0]
        assert moved(counts["dimensions"]["racks"]) == [2, 2, 2, 0, 0]
        assert (counts["rounds"], counts["empty_messages"]) == (18, 0)


def test_2x2_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a buffer is read and half written in the host; half of that half goes to the other host, each way."""
    for counts in asked(capsys, "2x2", "--bytes", "8M")["counts"]:
        assert (moved(counts), counts["steps"], counts["rounds"]) == ([2, 4, 4, 4, 4], 10, 4)
    for counts in asked(capsys, "2x2", "--bytes", "8M", "--shared", "0")["counts"]:
        assert (moved(counts), counts["rounds"]) == ([4, 12, 12, 0, 0], 4)
    for counts in asked(capsys, "2x2", "--bytes", "8M", "--shared", "2")["counts"]:  # one host: direct
        assert (moved(counts), counts["rounds"]) == ([0, 0, 0, 6, 6], 2)


def test_three_ranks_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(capsys, "1x3", "--bytes", "9M")
    assert [moved(counts) for counts in answer["counts"]] == [[4, 12, 12, 0, 0]] * 3
    assert (answer["rounds"], answer["paper"]) == (4, {"messages": 4, "bytes": 12 * MIB})
    # The root of a tree of three sends to both others; nobody else sends. No formula of the paper is about that.
    answer = asked(capsys, "1x3", "--bytes", "3K", "--collective", "broadcast", "--root", "1")
    assert [counts["messages"] for counts in answer["counts"]] == [0, 2, 0] and answer["paper"] is None
    # Of nine chunks of an all-to-all each rank has three, and sends two.
    answer = asked(capsys, "1x3", "--bytes", "9M", "--collective", "alltoall")
    assert [moved(counts) for counts in answer["counts"]] == [[2, 6, 6, 0, 0]] * 3 and answer["chunk_bytes"] == 3 * MIB
    # A chunk need not be a whole number of bytes.
    assert asked(capsys, "1x3", "--bytes", "1M")["chunk_bytes"] == pytest.approx(MIB / 3)


@pytest.mark.parametrize(
    ("words", "algorithm"),
    [
        ("4 --bytes 4K", "eager"),
        ("4 --bytes 4097", "direct"),
        ("1x4 --bytes 64KiB", "recursive_doubling"),
        ("2x2 --bytes 64KiB", "multiring"),
        ("1x4 --bytes 1G --collective gather", "tree"),
        ("1x4 --algorithm ring", "ring"),
        ("4 --collective barrier", "eager"),
        ("1", "direct"),
    ],
)
def test_what_serves_that_many_bytes_there(words: str, algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, *words.split())["algorithm"] == algorithm


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "1x3", "--bytes", "3M", "--collective", "gather", "--root", "2", "--rank", "0")
    assert lines == [
        "gather of 3 MiB by tree on 1x3: 3 ranks, no two share memory",
        "verified: at any speed, the result is right, without a deadlock and without a race",
        "",
        "rounds  1",
        "chunks  3 of 1 MiB",
        "pieces  one",
        "",
        "least–most     messages     sent  received",
        "between hosts       0–1  0–1 MiB   0–2 MiB",
        "",
        "rank 0:",
        "step  round  what",
        "   0      0  send chunk 1 of my input to rank 2",
    ]
    lines = printed(capsys, "1")
    assert lines[0] == "allreduce of 64 MiB by direct on 1: one rank" and "each rank: nothing is sent" in lines[-1]
    assert printed(capsys, "1x4", "--collective", "barrier")[-1].split() == ["between", "hosts", "2"]


def test_too_many_ranks_are_not_verified_unasked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_MOST_SECONDS", 0.0)
    lines = printed(capsys, "4x8x2", "--rank", "9")
    assert re.fullmatch(r"NOT VERIFIED: with so many ranks that takes about .*s; --verify does it", lines[1])
    assert "rounds  not known, as it was not verified" in lines
    assert any(line.startswith("rank 9 ") for line in lines)
    assert any(re.fullmatch(r" +2 +\? +reduce chunks 16–31 of my input .*", line) for line in lines)
    answer = asked(capsys, "4x8x2")
    assert (answer["verified"], answer["rounds"], len(answer["counts"])) == (False, None, 1)
    assert moved(answer["counts"][0]) == [16, 30, 30, 48, 48]
    picture = tmp_path / "plan.svg"
    assert cli.main(["plan", "4x8x2", "--svg", str(picture)]) == 2 and not picture.exists()
    assert f"--svg {picture}: " in capsys.readouterr().err
    assert printed(capsys, "4x8x2", "--svg", str(picture), "--verify")[1].startswith("verified: ")
    assert picture.read_text().startswith("<svg")


def test_thousands_of_ranks_are_counted_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(capsys, "4x1024")
    assert (answer["ranks"], answer["verified"], answer["counts"][0]["messages"]) == (4096, False, 2 * 1023)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("4x", "mode '4x': not sizes"),
        ("9999999", "mode '9999999': .* more than 1048576"),
        ("4 --shared 2", "--shared 2: mode 4 has 1 dimension; give 0 to 1"),
        ("4x2 --shared -1", "--shared -1: mode 4x2 has 2 dimensions; give 0 to 2"),
        ("4 --root 1", "--root 1: allreduce has no root"),
        ("4 --collective reduce --root 4", "--root 4: mode 4 has ranks 0 to 3"),
        ("4 --rank -1", "--rank -1: mode 4 has ranks 0 to 3"),
        ("4x2 --algorithm direct", "--algorithm direct: .* only 4 of 8 do"),
        ("4 --collective alltoall --algorithm tree", "--algorithm tree: alltoall has no such .*one of direct, eager"),
        ("4 --collective sum", "argument --collective: invalid choice: 'sum'"),
        ("4 --algorithm best", "argument --algorithm: invalid choice: 'best'"),
        ("4 --bytes 4Q", "argument --bytes: '4Q': it must be a number of bytes"),
        ("", "required: MODE"),
    ],
)
def test_bad_usage(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(["plan", *words.split()])
    except SystemExit as ended:
        status = int(ended.code or 0)
    shown = capsys.readouterr()
    assert (status, shown.out) == (2, "")
    assert re.search(rf"^ddl plan: (error: )?(.*){said}", shown.err, re.MULTILINE), shown.err


def test_sizes_for_people() -> None:
    assert [bytes_text(size) for size in (0, 999, 1008 * MIB, 1023 << 10, 1 << 30)] == [
        "0 bytes",
        "999 bytes",
        "1008 MiB",
        "1023 KiB",
        "1 GiB",
    ]
    assert [counted(1, "round"), counted(0, "round")] == ["1 round", "0 rounds"]


# docs/algorithms.md


def commands() -> List[str]:
    return re.findall(r"^    ddl (plan .*?)(?: +#.*)?$", DOCUMENT.read_text(), re.MULTILINE)


@pytest.mark.slow
def test_the_commands_of_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They run as they stand, print what the document shows, and draw the pictures that are committed."""
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    said = ""
    for line in commands():
        assert cli.main(shlex.split(line)) == 0, line
        said += capsys.readouterr().out
    shown = re.findall(r"```text\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(shown) == 1 and all(block in said for block in shown)
    here = {path.name: path.read_text() for path in (tmp_path / "docs" / "pictures").iterdir()}
    assert len(here) == 8
    changed = [name for name, text in here.items() if (ROOT / "docs" / "pictures" / name).read_text() != text]
    assert not changed, f"draw them anew by the commands of {DOCUMENT.name}: {', '.join(changed)}"
    assert set(re.findall(r"\]\(pictures/(.*?)\)", DOCUMENT.read_text())) == set(here)


def test_the_code_of_the_document() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) == 1
    names: Dict[str, Any] = {}
    exec(compile(blocks[0], DOCUMENT.name, "exec"), names)
    assert names["picture"].startswith("<svg")
