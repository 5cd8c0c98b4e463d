"""The example notebook runs in a real kernel, and what it shows in the repository is what comes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from process_groups import require

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
#: In a process of its own, as a notebook's event loops and warnings are no business of the tests'.
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
for cell in notebook.cells:
    if cell.cell_type == "code":
        cell.outputs = []
nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", coalesce_streams=True).execute()
nbformat.write(notebook, sys.argv[2])
"""


def shown(path: Path) -> list:
    """What stands under each cell of code: text of streams and of values."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    return [["".join(o.get("text") or o["data"]["text/plain"]) for o in cell["outputs"]] for cell in cells]


@pytest.mark.processes
@pytest.mark.slow
def test_the_notebook_shows_what_comes_out(tmp_path: Path):
    for module in ("nbclient", "ipykernel", "cloudpickle"):
        require(module)
    notebook, executed = ROOT / "examples" / "notebook.ipynb", tmp_path / "executed.ipynb"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": path, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", EXECUTE, str(notebook), str(executed)]
    done = subprocess.run(line, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert shown(executed) == shown(notebook)
    first, results, model = shown(notebook)
    assert first == [] and results[0].count("loss") == 4 and results[1] == "[(0, 128), (1, 128)]"
    assert model[0].endswith("of the points are recognised\n")
