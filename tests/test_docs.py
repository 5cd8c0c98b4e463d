"""What the documents show works: code blocks run, links lead somewhere, commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List, Set

import pytest
from documents import python_blocks

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

AFTERWARDS = {
    "import ddl_torch": """
weights = ddl.allgather(model.weight.detach().reshape(1, -1))
assert torch.equal(weights[0], weights[-1]) and (weights[0] - 1).abs().max() < 0.1
""",
    "import ddl\n": "assert (gradient == (ddl.size() - 1) / 2).all()",
}


def test_the_readme_has_the_blocks_that_are_run_here():
    assert len(python_blocks("README.md")) == len(AFTERWARDS)


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_lines_fit_a_terminal(path: Path):
    """At most 120 characters; a row of a table cannot be broken."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    long = [f"{path.name}:{number}" for number, line in lines if len(line) > 120 and not line.startswith("|")]
    assert not long, "break these lines"


def run_on_ranks(code: str, folder: Path, ranks: int = 2, status: int = 0) -> str:
    """Run a program on so many ranks, and return what it has printed; it must end with ``status``."""
    program = folder / "program.py"
    program.write_text(code)
    line = [sys.executable, "-m", "ddl.launch", "-np", str(ranks), str(program)]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", sorted(AFTERWARDS), ids=["arrays", "torch"])
def test_code_of_the_readme_runs_on_two_ranks(kind: str, tmp_path: Path):
    block = next(block for block in python_blocks("README.md") if kind in block)
    run_on_ranks(block + AFTERWARDS[kind], tmp_path)


#: Documents whose blocks are whole programs: what each is about, and on how many ranks it runs.
PROGRAMS = {
    "docs/torch.md": (["backend", "torchft", "hook", "lost"], 2),
    "docs/training_loop.md": (["mixed_precision", "a_batch_left_out", "kept_gradients"], 2),
    "docs/deterministic.md": (["bits"], 3),
}


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("document", "number"),
    [
        pytest.param(document, number, id=f"{Path(document).stem}-{name}")
        for document, (names, _) in PROGRAMS.items()
        for number, name in enumerate(names)
    ],
)
def test_programs_of_documents_run_on_ranks(document: str, number: int, tmp_path: Path):
    names, ranks = PROGRAMS[document]
    blocks = python_blocks(document)
    assert len(blocks) == len(names)
    if "torch" in blocks[number]:
        pytest.importorskip("torch")
    run_on_ranks(blocks[number], tmp_path, ranks)


@pytest.mark.slow
@pytest.mark.processes
def test_a_lost_rank_is_found_behind_the_error_of_ddp(tmp_path: Path):
    pytest.importorskip("torch")
    program = python_blocks("docs/torch.md")[-1]
    dies = "import os\nif dist.get_rank() == 1:\n    os._exit(3)\ntry:\n"
    assert program.count("try:\n") == 1
    printed = run_on_ranks(program.replace("try:\n", dies), tmp_path, status=3)
    assert re.search(r"^\[0\] \[rank 0/2 host .*\] allreduce .*: lost rank 1 ", printed, re.MULTILINE), printed


@pytest.mark.slow
@pytest.mark.processes
def test_a_training_goes_on_from_its_checkpoint(tmp_path: Path):
    pytest.importorskip("torch")
    (program,) = python_blocks("docs/checkpoint.md")
    begin = f"import os\nos.chdir({str(tmp_path)!r})\n"
    first = run_on_ranks(begin + program, tmp_path, 2)
    assert [line.split(":")[0] for line in first.splitlines()] == [f"[0] epoch {number}" for number in (1, 2, 3, 4)]
    assert program.count(", 4):") == 1
    second = run_on_ranks(begin + program.replace(", 4):", ", 6):"), tmp_path, 3)
    assert [line.split(":")[0] for line in second.splitlines()] == ["[0] epoch 5", "[0] epoch 6"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_lead_somewhere(document: Path):
    text = document.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if not link.startswith("http")]
    paths = re.findall(r"`((?:csrc|ddl|ddl_[a-z]+|environments|examples|tests|docs|benchmarks)/[\w./-]+)`", text)
    missing = [link for link in links if not (document.parent / link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing


def anchors(document: Path) -> Set[str]:
    """Return what links to the headings of a document end with, as GitHub makes it of each."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_headings_lead_to_one(document: Path):
    links = re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", document.read_text())
    missing = [
        f"{target}#{heading}"
        for target, heading in links
        if heading not in anchors(document.parent / target if target else document)
    ]
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


@pytest.mark.slow
@pytest.mark.processes
def test_the_code_of_large_batch_md_runs_on_two_ranks(tmp_path: Path):
    pytest.importorskip("torch")
    blocks = python_blocks("docs/large_batch.md")
    assert len(blocks) == 4
    run_on_ranks(LARGE_BATCH_BEFORE + "".join(blocks) + LARGE_BATCH_AFTER, tmp_path)


@pytest.fixture(scope="module")
def machine_of_the_document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The TOML of docs/simulate.md, in a directory of its own."""
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "simulate.md").read_text(), re.DOTALL)
    directory = tmp_path_factory.mktemp("simulate")
    (directory / "machine.toml").write_text(block)
    return directory


def simulations() -> List[str]:
    return re.findall(r"^    (ddl simulate .*?)(?: +#.*)?$", (ROOT / "docs" / "simulate.md").read_text(), re.MULTILINE)


@pytest.mark.few(1)
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


def test_pip_installs_this_project_by_its_own_name():
    """It is open-ddl; what PyPI has as "ddl" is somebody else's."""
    folders = [path for path in ROOT.glob("ddl*") if path.is_dir()]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    strange = re.compile(r"pip install[^`\n]*?[\s'\"]ddl(?=[\s'\"\[`;,=]|$)", re.MULTILINE)
    assert strange.search("pip install 'ddl[top]'") and not strange.search("pip install 'open-ddl[torch]' ddl_x")
    texts = {path: path.read_text() for path in [*sources, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]}
    assert [str(path) for path, text in texts.items() if strange.search(text)] == []


def test_make_targets_of_the_readme_exist():
    rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    for document in DOCUMENTS:
        named = set(re.findall(r"^ {4}make ([\w-]+)", document.read_text(), re.MULTILINE))
        assert named <= targets


@pytest.mark.slow
@pytest.mark.processes
def test_the_code_of_compression_md_runs_on_two_ranks(tmp_path: Path):
    pytest.importorskip("torch")
    blocks = python_blocks("docs/compression.md")
    assert len(blocks) == 2
    assert run_on_ranks("".join(blocks), tmp_path).count("powersgd") == 2
