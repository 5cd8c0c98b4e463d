"""What the documents show works: code blocks run, links lead somewhere, commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from documents import python_blocks

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

PRELUDES = {
    # What the reader of a fragment has already: a model and data.
    "import ddl_torch": """
import torch
torch.manual_seed(0)
Net = lambda: torch.nn.Linear(3, 2)
""",
    "import ddl\n": "",
}
AFTERWARDS = {
    "import ddl_torch": """
model(torch.ones(4, 3)).sum().backward()
optimizer.step()
weights = ddl.allgather(model.weight.detach().reshape(1, -1))
assert torch.equal(weights[0], weights[-1])
""",
    "import ddl\n": "assert (gradient == (ddl.size() - 1) / 2).all()",
}


def test_the_readme_has_the_blocks_that_are_run_here():
    assert len(python_blocks("README.md")) == len(PRELUDES)


@pytest.mark.processes
@pytest.mark.parametrize("kind", sorted(PRELUDES), ids=["arrays", "torch"])
def test_code_of_the_readme_runs_on_two_ranks(kind: str, tmp_path: Path):
    block = next(block for block in python_blocks("README.md") if kind in block)
    program = tmp_path / "readme.py"
    program.write_text(PRELUDES[kind] + block + AFTERWARDS[kind])
    line = [sys.executable, "-m", "ddl.run", "-np", "2", str(program)]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.processes
@pytest.mark.parametrize("number", [0, 1], ids=["backend", "hook"])
def test_the_code_of_torch_md_runs_on_two_ranks(number: int, tmp_path: Path):
    pytest.importorskip("torch")
    blocks = python_blocks("docs/torch.md")
    assert len(blocks) == 2
    program = tmp_path / "program.py"
    program.write_text(blocks[number])
    line = [sys.executable, "-m", "ddl.run", "-np", "2", str(program)]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.processes
@pytest.mark.parametrize("number", [0, 1, 2], ids=["mixed_precision", "a_batch_left_out", "kept_gradients"])
def test_the_code_of_training_loop_md_runs_on_two_ranks(number: int, tmp_path: Path):
    pytest.importorskip("torch")
    blocks = python_blocks("docs/training_loop.md")
    assert len(blocks) == 3
    program = tmp_path / "program.py"
    program.write_text(blocks[number])
    line = [sys.executable, "-m", "ddl.run", "-np", "2", str(program)]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.processes
def test_the_code_of_deterministic_md_runs_on_three_ranks(tmp_path: Path):
    (block,) = python_blocks("docs/deterministic.md")
    program = tmp_path / "program.py"
    program.write_text(block)
    line = [sys.executable, "-m", "ddl.run", "-np", "3", str(program)]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_lead_somewhere(document: Path):
    text = document.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")]
    paths = re.findall(r"`((?:csrc|ddl|ddl_[a-z]+|environments|examples|tests|docs|benchmarks)/[\w./-]+)`", text)
    missing = [link for link in links if not (document.parent / link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing


def test_the_code_of_topology_md_runs():
    blocks = python_blocks("docs/topology.md")
    assert len(blocks) == 1
    exec(compile(blocks[0], "docs/topology.md", "exec"), {})


LARGE_BATCH_BEFORE = """
import torch
Net = lambda: torch.nn.Linear(3, 2)
x = torch.randn(43, 3, generator=torch.Generator().manual_seed(0))
dataset = torch.utils.data.TensorDataset(x, x.sum(1).gt(0).long())
"""
LARGE_BATCH_AFTER = """
assert dataset_sampler.state_dict()["epoch"] == epochs
weights = ddl.allgather(model.weight.detach().reshape(1, -1))
assert torch.equal(weights[0], weights[-1])
x, y = dataset.tensors
assert abs(result["accuracy"] - (model(x).argmax(1) == y).float().mean()) < 1e-6
assert seconds == {"seconds": 0.05}
"""


@pytest.mark.processes
def test_the_code_of_large_batch_md_runs_on_two_ranks(tmp_path: Path):
    pytest.importorskip("torch")
    blocks = python_blocks("docs/large_batch.md")
    assert len(blocks) == 4
    program = tmp_path / "large_batch.py"
    program.write_text(LARGE_BATCH_BEFORE + "".join(blocks) + LARGE_BATCH_AFTER)
    line = [sys.executable, "-m", "ddl.run", "-np", "2", str(program)]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def machine_of_the_document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The TOML of docs/simulate.md, in a directory of its own."""
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "simulate.md").read_text(), re.DOTALL)
    directory = tmp_path_factory.mktemp("simulate")
    (directory / "machine.toml").write_text(block)
    return directory


def simulations() -> List[str]:
    return re.findall(r"^    (ddl simulate .*?)(?: +#.*)?$", (ROOT / "docs" / "simulate.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", simulations())
def test_commands_of_simulate_md_run(command: str, machine_of_the_document: Path):
    line = [sys.executable, "-m", "ddl.tools", *command.split()[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        line, cwd=machine_of_the_document, env=environment, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()
    for target in re.findall(r"step\.\w+", command):
        assert (machine_of_the_document / target).stat().st_size > 1000


def test_make_targets_of_the_readme_exist():
    rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    for document in DOCUMENTS:
        named = set(re.findall(r"^ {4}make ([\w-]+)", document.read_text(), re.MULTILINE))
        assert named <= targets


@pytest.mark.processes
def test_the_code_of_compression_md_runs_on_two_ranks(tmp_path: Path):
    pytest.importorskip("torch")
    blocks = python_blocks("docs/compression.md")
    assert len(blocks) == 2
    program = tmp_path / "compression.py"
    program.write_text("".join(blocks))
    line = [sys.executable, "-m", "ddl.run", "-np", "2", str(program)]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("powersgd") == 2
