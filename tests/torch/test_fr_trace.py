"""PyTorch's own analyser reads what ``ddl dump --fr-trace`` writes, and names the rank and what it did."""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import io
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import ranks
import recorded
from said import Said

from ddl.records.fr_trace import fr_traces
from ddl.tools.cli import main
from ddl.tools.dump import command

pytest.importorskip("torch")
fr_trace = pytest.importorskip("torch.distributed.flight_recorder.fr_trace", reason="this torch has no analyser")


def analysed(folder, *options) -> str:
    """What the analyser says, without its remarks on names of libraries and missing packages."""
    handler = Said("Flight Recorder")
    try:
        fr_trace.main([str(folder), "-p", "fr_trace.", *options])
    finally:
        handler.close()
        gc.enable()  # below 2.15 it leaves it off
    return "\n".join(line for line in handler.texts if "unrecognized comm library" not in line)


def dump(folder, pids) -> str:
    """Let ``ddl dump`` write the files of these processes; return what it prints."""
    options = [option for pid in pids for option in ("--pid", str(pid))]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        assert main(["dump", *options, "--out", folder, "--fr-trace"]) == 0
    return out.getvalue()


def one_does_not_call(folder):
    """Rank 1 does not call what ranks 0 and 2 wait in, until rank 0 has looked at them."""
    import ddl

    world = ddl.world()
    pids = world.allgather_object(os.getpid())
    step = world.prepare_allreduce(np.zeros(5, np.float32))
    for _ in range(2100):  # more than is remembered
        step()
    ranks.meet()
    work = None
    if world.rank != 1:
        work = world.allreduce_async_(np.ones(1000, np.float32), name="bucket.3")
    if world.rank == 0:
        while dump(folder, pids).count("waits for rank 1") < 2:
            pass
    ranks.meet()
    (work or world.allreduce_async_(np.ones(1000, np.float32))).wait()


def one_calls_otherwise(folder, otherwise):
    """Rank 1 calls an all-reduce of another size, or something else."""
    import ddl

    world = ddl.world()
    pids = world.allgather_object(os.getpid())
    ranks.meet()  # two ranks whose calls differ would also end the call before, where the third is still in it
    work = world.allreduce_async_(np.ones(7, np.float32)) if world.rank != 1 else None
    ranks.meet()  # and refuse that call of the third, where it has not made it
    with pytest.raises(ddl.CollectiveMismatch):
        if work is not None:
            work.wait()
        elif otherwise == "size":
            world.allreduce_(np.ones(8, np.float32))
        else:
            world.broadcast_(np.ones(7, np.float32))
    ranks.meet()
    if world.rank == 0:
        dump(folder, pids)
    ranks.meet()


def culprits(text):
    """The ranks that are blamed. The file that the analyser happens to read first is right for it."""
    return {int(rank) for rank in re.findall(r"Culprit rank (\d+)", text)}


@pytest.mark.slow  # 2,100 all-reduces of three ranks, and torch is imported again
@pytest.mark.processes
def test_a_rank_that_does_not_call(tmp_path) -> None:
    ranks.run(3, one_does_not_call, str(tmp_path))
    line = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path), "-p", "fr_trace."]
    done = subprocess.run(line, capture_output=True, text=True, timeout=200, check=True)
    library = command._library()
    for text in (done.stderr + done.stdout, analysed(tmp_path)):
        assert text.count("Not all ranks joining collective, sequence number: 2103") == 1
        assert f"collective: {library}:all_reduce\nmissing ranks: {{1}}\ninput sizes: [[1000]]" in text
        assert text.count("missing ranks") == 1 and not culprits(text)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("otherwise", "error", "names"),
    [
        ("size", "SIZE_OR_SYNTAX_MISMATCH", ("[[7]]", "[[8]]")),
        ("type", "COLLECTIVE_TYPE_MISMATCH", ("all_reduce", "broadcast")),
    ],
)
def test_a_rank_that_calls_otherwise(tmp_path, otherwise, error, names) -> None:
    ranks.run(3, one_calls_otherwise, str(tmp_path), otherwise)
    text = analysed(tmp_path)
    assert text.count("Collective sequence number: 3 has errors") == text.count("has errors") == 1
    assert error in text and all(name in text for name in names)
    assert culprits(text) in ({1}, {0, 2})
    assert "missing ranks" not in text


def written(folder, records):
    for rank, trace in fr_traces(records).items():
        (folder / f"fr_trace.{rank}").write_bytes(pickle.dumps(trace, protocol=2))
    return folder


EVERY_KIND = [
    recorded.call(1, "allgather", sizes_for="gather", dtype="int64"),
    recorded.call(2, "gather", count=0, root=1),
    recorded.call(3, "allgather"),
    recorded.call(4, "allgather", count=0),
    recorded.call(5, "reducescatter", count=5),
    recorded.call(6, "alltoall"),
    recorded.call(7, "broadcast"),
    recorded.call(8, "reduce"),
    recorded.call(9, "scatter", count=0),
    recorded.call(10, "broadcast", sizes_for="scatter", dtype="int64"),
    recorded.call(11, "barrier"),
]


def job(*parts, messages=((), (), ())):
    """Three ranks that have called everything on the communicator of all ranks; ``parts`` have the rank, too."""
    worlds = [recorded.communicator(0, rank, range(3), EVERY_KIND, messages[rank]) for rank in range(3)]
    return [
        recorded.process(rank, world, *(part for owner, part in parts if owner == rank))
        for rank, world in enumerate(worlds)
    ]


def test_a_healthy_job(tmp_path) -> None:
    """Nothing is said; ranks have forgotten different calls of a part, and messages went both ways."""
    parts = [
        (rank, recorded.communicator(4, place, (2, 0), recorded.last_calls(100, kept)))
        for place, (rank, kept) in enumerate([(2, 64), (0, 50)])
    ]
    messages = [
        [recorded.call(1, "send", root=2), recorded.call(2, "recv", root=2), recorded.call(3, "send", root=1)],
        [recorded.call(1, "recv", root=0)],
        [recorded.call(1, "send", root=0), recorded.call(2, "recv", root=0)],
    ]
    text = analysed(written(tmp_path, job(*parts, messages=messages)))
    assert not re.search("missing|Culprit|error|mismatch", text, re.IGNORECASE), text


@pytest.mark.parametrize("owner", [0, 2])
def test_a_rank_that_does_not_call_in_a_part(tmp_path, owner) -> None:
    calls = recorded.last_calls(100, 64)
    longer = [*calls[1:], recorded.call(101, state="begun", ended=None)]
    parts = [(rank, recorded.communicator(4, 0, (2, 0), longer if rank == owner else calls)) for rank in (0, 2)]
    text = analysed(written(tmp_path, job(*parts)))
    assert text.count("Not all ranks joining") == text.count("sequence number: 101") == 1
    assert f"group info: 4:communicator of 2 ranks\ncollective: gloo:all_reduce\nmissing ranks: {{{2 - owner}}}" in text


def test_a_message_that_nobody_receives(tmp_path) -> None:
    messages = [
        [recorded.call(1, "send", root=2), recorded.call(2, "send", root=2, state="begun", ended=None)],
        [],
        [recorded.call(1, "recv", root=0)],
    ]
    text = analysed(written(tmp_path, job(messages=messages)))
    assert text.count("Not all ranks joining collective, sequence number: 2") == text.count("joining") == 1
    group = "0.0->2:messages from rank 0 to rank 2"
    assert f"group info: {group}\ncollective: gloo:send 0->1\nmissing ranks: {{2}}" in text


def test_a_message_of_another_size(tmp_path) -> None:
    messages = [[recorded.call(1, "send", root=2)], [], [recorded.call(1, "recv", root=0, count=9, state="failed")]]
    text = analysed(written(tmp_path, job(messages=messages)))
    assert "SIZE_OR_SYNTAX_MISMATCH" in text and culprits(text) in ({0}, {2})


def test_a_dead_rank_needs_an_option(tmp_path) -> None:
    """Nothing is said of a rank of which nothing is known."""
    folder = written(tmp_path, job())
    (folder / "fr_trace.1").unlink()
    with pytest.raises(AssertionError, match=r"Missing dump files from ranks \{1\}"):
        analysed(folder)
    assert "missing" not in analysed(folder, "--allow-incomplete-ranks")


def test_the_library_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, library in (("2.14.1+cpu", "gloo"), ("2.15.0a0", "ddl"), ("2.15.0+cu132", "ddl"), ("3.0", "ddl")):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, version=version: version)
        assert command._library() == library

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert command._library() == "gloo"
