"""``ddl simulate``: the file, the table, the picture, the presets, and what is refused."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import List

import pytest

from ddl.errors import ConfigError
from ddl.tools import cli
from ddl.tools.simulate.description import PRESETS, parse, preset
from ddl.tools.simulate.scenario import combinations, stragglers_of
from ddl.tuning.simulate.simulation import Lateness

SVG = "{http://www.w3.org/2000/svg}"
FILE = """
[host]
ranks = 2
memory = { latency_s = 2e-5, bandwidth_bytes_per_s = 2e10 }

[[network]]
name = "hosts"
size = 2
latency_s = 2e-5
bandwidth_bytes_per_s = 1.25e9

[[network]]
name = "racks"
size = 2
latency_s = 3e-5
bandwidth_bytes_per_s = 3e8
burst_bytes = 65536
burst_bytes_per_s = 3e9

[training]
model = "resnet50"
batch = 32
samples_per_second = 100.0

[[assumption]]
standing = "assumed"
text = "all of it"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "machine.toml").write_text(FILE)
    return str(tmp_path / "machine.toml")


def simulate(*words: str) -> int:
    return cli.main(["simulate", *words])


def test_a_step_is_printed_with_what_was_assumed(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--topology", file, "--mode", "2x4", "--mode", "2x2x2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("resnet50: 25.6 million parameters")
    assert lines[2].split() == ["ranks", "dimensions", "step", "compute", "communication", "exposed", "efficiency"]
    assert [line.split()[:2] for line in lines[3:5]] == [["8", "2x4"], ["8", "2x2x2"]]
    assert lines[-1] == "assumed  all of it"


def test_json_says_the_same_and_more(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--topology", file, "--json", "-") == 0
    content = json.loads(capsys.readouterr().out)
    (step,) = content["steps"]
    assert step["ranks"] == 8 and step["dimensions"] == "2x4"
    assert step["efficiency"] == pytest.approx(step["compute_s"] / step["step_s"])
    assert step["exposed_s"] == pytest.approx(step["step_s"] - 0.32)
    assert sum(bucket["bytes"] for bucket in step["buckets"]) > 102_000_000
    assert all(bucket["ended_s"] > bucket["ready_s"] for bucket in step["buckets"])
    assert content["assumptions"] == [{"standing": "assumed", "text": "all of it"}]


def test_options_beat_the_file(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--topology", file, "--model", "vgg16", "--batch", "64", "--no-overlap", "--json", "-") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["model"] == "vgg16" and not content["overlap"]
    assert content["steps"][0]["compute_s"] == pytest.approx(0.64)


def test_single_all_reduces(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--topology", file, "--allreduce", "4K,1M", "--json", "-") == 0
    small, large = json.loads(capsys.readouterr().out)["allreduces"]
    assert (small["algorithm"], large["algorithm"]) == ("leaders", "multiring")
    assert small["seconds"] < large["seconds"]
    assert simulate("--topology", file, "--allreduce", "1M", "--algorithm", "ring", "--piece", "256K") == 0
    assert "ring" in capsys.readouterr().out


def test_a_rank_alone_is_drawn(tmp_path: Path) -> None:
    path, target = tmp_path / "alone.toml", tmp_path / "alone.svg"
    path.write_text("[training]\nmodel = 'vgg16'\nbatch = 1\nsamples_per_second = 10")
    assert simulate("--topology", str(path), "--svg", str(target)) == 0
    assert "rank 0" in target.read_text() and "exposed " not in target.read_text().replace("exposed: ", "")


def test_fewer_hosts_fill_racks_first() -> None:
    description = preset("powerai-resnet50")
    shapes = [str(place.topology) for place in combinations(description, ["4x16x4", "4x64"], [1, 4, 32, 64])]
    assert shapes == ["4", "4x4", "4x16x2", "4x32", "4x16x4", "4x64"]


@pytest.mark.parametrize("late", [[], ["5:+20ms", "3:x1.1"]])
def test_the_picture(file: str, tmp_path: Path, late: List[str]) -> None:
    target = tmp_path / "step.svg"
    options = [word for straggler in late for word in ("--straggler", straggler)]
    assert simulate("--topology", file, "--mode", "2x2x2", "--svg", str(target), *options) == 0
    drawing = ElementTree.fromstring(target.read_text())
    width, height = float(drawing.attrib["width"]), float(drawing.attrib["height"])
    boxes = list(drawing.iter(f"{SVG}rect"))
    for box in boxes:
        x, y, w, h = (float(box.attrib.get(key, 0)) for key in ("x", "y", "width", "height"))
        assert x >= 0 and x + w <= width + 0.5 and y >= 0 and y + h <= height
    texts = [element.text or element[0].tail or "" for element in drawing.iter(f"{SVG}text")]
    assert "rank 0" in texts and "forward" in texts and "racks (2)" in texts
    assert any(text.startswith("exposed ") for text in texts)
    for straggler in late:
        assert f"rank {straggler[0]} (late)" in texts
    assert len(boxes) < 2000


def test_arrays_on_gpus_are_told_and_drawn(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, staged = tmp_path / "step.svg", tmp_path / "staged.toml"
    links = "[gpu]\nlinks = 2\ndown_bytes_per_s = 5e10\nup_bytes_per_s = 5e10\n"
    staged.write_text(f"{Path(file).read_text()}\n{links}")
    times = []
    for path in (file, str(staged)):
        assert simulate("--topology", path, "--svg", str(target), "--json", str(tmp_path / "step.json")) == 0
        content = json.loads((tmp_path / "step.json").read_text())
        (step,) = content["steps"]
        times.append(step["step_s"])
        on_gpus = path == str(staged)
        assert ("arrays are on GPUs" in capsys.readouterr().out) == ("GPU and host" in target.read_text()) == on_gpus
        assert content.get("gpu_model_checked") == (False if on_gpus else None)
    assert times[0] != times[1] == pytest.approx(times[0], rel=0.05)  # such links are fast, beside that network


@pytest.mark.parametrize("name", PRESETS)
def test_presets_say_where_every_figure_comes_from(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    description = preset(name)
    mode = f"{description.machine.ranks_per_host}x8x8"
    assert simulate("--preset", name, "--hosts", "2,64", "--mode", mode) == 0
    printed = capsys.readouterr().out
    assert description.machine.size == 64 * description.machine.ranks_per_host
    published = description.training.published
    if published is not None:
        assert f"published, 256 ranks: {100 * published:.0f} %" in printed
    assert ("not checked" in printed) == (description.machine.gpus is not None)
    standings = [assumption.standing for assumption in description.assumptions]
    assert {"fact", "derived", "assumed"} <= set(standings)
    for assumption in description.assumptions:
        assert assumption.text in printed


def test_stragglers() -> None:
    assert stragglers_of(["5:+20ms", "3:x1.5"]) == {5: Lateness(plus_s=0.02), 3: Lateness(factor=1.5)}
    for word in ("5", "5:20ms", "x:+1ms", "5:x0", "-1:+1ms"):
        with pytest.raises(ConfigError, match="write RANK"):
            stragglers_of([word])


WRONG = {
    "nonsense = 1": "the file: 'nonsense' is not known",
    "host = 3": "write [host]",
    "[host]\nranks = 2": "joins 2 units, but it has no link",
    "[host]\nranks = 2.5": "ranks = 2.5 is no whole number",
    "[host]\nranks = 0": "size must be at least 1",
    "[host]\nmemory = { latency_s = 1e-6 }": "[host] memory: missing 1 required",
    "[host]\nmemory = { latency_s = -1.0, bandwidth_bytes_per_s = 1e9 }": "latency must be >= 0",
    "[host]\nranks = 4\nlink = { latency_s = 0, bandwidth_bytes_per_s = 1e9 }\n"
    "[gpu]\nlinks = 3\ndown_bytes_per_s = 1e9\nup_bytes_per_s = 1e9": "3 links of GPUs for 4 ranks of a host",
    "[gpu]\nlinks = 1\ndown_bytes_per_s = 1e9": "[gpu]: missing 1 required",
    "[gpu]\nlinks = 1\ndown_bytes_per_s = 0\nup_bytes_per_s = 1e9": "rates > 0",
    "gpu = 3": "[gpu] is no table",
    "[core]\noverhead_s = inf": "the overhead must be >= 0 and finite",
    "[core]\nsend_bytes_per_s = nan": "rates > 0",
    "[host]\nranks = 2\nlink = { latency_s = inf, bandwidth_bytes_per_s = 1e9 }": "latency must be >= 0 and finite",
    "[[network]]\nsize = 2\nlatency_s = 0\nbandwidth_bytes_per_s = 1e9\nburst_bytes = nan": "bytes >= 0 and finite",
    "[host]\nmemory = {}\nlink = {}": "either share memory or send",
    "[[network]]\nsize = 2": "[[network]] 1: missing 2 required",
    "[[network]]\nlatency_s = 1e-6\nbandwidth_bytes_per_s = 1e9": "[[network]] 1: no size",
    "[[network]]\nsize = 2\nlatency_s = 'a'\nbandwidth_bytes_per_s = 1e9": "latency_s = 'a' is no float",
    "[network]\nsize = 2": "write [[network]]",
    "wire_bytes_per_byte = 0.5": "at least 1",
    "modes = [3]": "no list of texts",
    "hosts = [0]": "no list of numbers",
    "[training]\nmodel = true": "model = True is no str",
    "[[assumption]]\ntext = 'a'\nstanding = 'guess'": "must be one of fact, derived, assumed",
    "[": "it cannot be read",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text.replace("\n", ";"))
def test_what_is_wrong_with_a_file(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    assert simulate("--topology", str(path), "--allreduce", "1M") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ddl simulate: {path}: ") and WRONG[text] in error


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--mode", "2x3"], "multiply to 6, but the job has 8"),
        (["--hosts", "3"], "do not fill whole units"),
        (["--hosts", "1,none"], "write numbers of hosts"),
        (["--straggler", "9:+1ms"], "rank 9: the machine has ranks 0 to 7"),
        (["--straggler", "early"], "write RANK"),
        (["--algorithm", "magic"], "there is no such algorithm"),
        (["--algorithm", "direct"], "--algorithm direct: rank 0"),
        (["--allreduce", "1M", "--svg", "x.svg"], "omit --allreduce"),
        (["--batch", "-1"], "--batch, or [training] of the file, says -1: it must be above 0"),
        (["--batch", "0"], "says 0: it must be above 0"),
        (["--samples-per-second", "nan"], "--samples-per-second, or [training] of the file, says nan"),
        (["--classes", "-5"], "cannot have -5 classes"),
        (["--classes", "0"], "cannot have 0 classes"),
    ],
    ids=str,
)
def test_bad_usage_ends_with_2(words: List[str], why: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = simulate("--topology", file, *words)
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    assert why in capsys.readouterr().err


def test_without_training_the_options_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bare.toml"
    path.write_text(FILE.partition("[training]")[0])
    assert simulate("--topology", str(path)) == 2
    assert "--model is needed" in capsys.readouterr().err
    assert simulate("--topology", str(path), "--model", "resnet50", "--batch", "8", "--samples-per-second", "50") == 0


def test_a_topology_is_plain_data() -> None:
    """What `ddl tune` is to write: the names are those of the classes' fields."""
    machine = parse({"host": {"ranks": 1}, "network": [{"size": 2, "latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9}]})
    assert machine.machine.size == 2
