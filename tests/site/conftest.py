"""The site of the documents, built once for all of these tests, as `make docs` builds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


#: What `python -m sphinx` does; afterwards, as all adapters are imported then, it writes their public names to a file.
BUILD = """
import json, sys
from sphinx.cmd.build import main
status = main(sys.argv[2:])
from generated import PUBLIC
names = {module: list(sys.modules[module].__all__) for module in PUBLIC}
json.dump(names, open(sys.argv[1], "w"))
sys.exit(status)
"""


class BuiltSite(NamedTuple):
    """Where the pages are, and what Sphinx had to say."""

    folder: Path
    status: int
    words: str
    names: Dict[str, List[str]]  #: public names by module

    @property
    def pages(self):
        return sorted(self.folder.rglob("*.html"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> BuiltSite:
    for package in ("sphinx", "myst_parser", "furo", "torch", "tensorflow"):
        if not any(Path(place, package).exists() for place in sys.path):
            pytest.skip(f"{package} is not here: make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-c", BUILD, str(folder / "names.json")]
    line += ["-b", "html", "-c", "docs", "-d", str(folder / "doctrees")]
    line += ["-W", "--keep-going", "-n", "-q", ".", str(folder / "html")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280)
    words = ended.stdout + ended.stderr
    names = json.loads((folder / "names.json").read_text()) if (folder / "names.json").exists() else {}
    return BuiltSite(folder / "html", ended.returncode, words, names)
