"""``make gpu-carry``: copies to ``build/gpu-carry`` what ``make gpu`` needs and a GPU machine's Python may lack.

All of it is Python and headers, 4 MB. The last line that is printed is the folder, relative to the checkout: what to
bring along with it.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import List, Set

from gpu_machine import CARRIED, PURE, ROOT


def ignored(folder: str, names: List[str]) -> Set[str]:
    """Return what is left behind: what was compiled for one version of Python; the modules do without it."""
    return {name for name in names if name.endswith(".so") or name == "__pycache__"}


def carry(name: str) -> bool:
    """Copy a module; return whether there is one."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return False
    origin = Path(spec.origin)
    package = origin.parent if origin.name == "__init__.py" else origin
    for metadata in package.parent.glob(f"{name}-*.dist-info"):  # pytest looks for plugins there
        shutil.copytree(metadata, CARRIED / metadata.name)
    if package.is_dir():
        shutil.copytree(package, CARRIED / name, ignore=ignored)
    else:
        shutil.copy2(package, CARRIED)
    return True


shutil.rmtree(CARRIED, ignore_errors=True)
CARRIED.mkdir(parents=True)
missing = [name for name in PURE if not carry(name)]
if missing:
    print(f"make gpu-carry: not carried, as this environment has none: {', '.join(missing)}")
print(CARRIED.relative_to(ROOT))
