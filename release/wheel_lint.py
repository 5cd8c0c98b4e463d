"""What check-wheel-contents finds in a wheel, except for what is intended.

It has no way to except single files, so a finding is left out here if it names exactly the files that it may name.
"""

from __future__ import annotations

from pathlib import Path
from typing import FrozenSet, Iterator, Set, Tuple

from check_wheel_contents.checker import WheelChecker
from check_wheel_contents.checks import Check
from check_wheel_contents.contents import WheelContents

from ddl._version import __version__
from release.tensorflow_ops import op_files

__all__ = ["lint"]


def lint(wheel: Path) -> Iterator[str]:
    """Yield what is wrong with the contents of a wheel, with the files that it is about."""
    checker = WheelChecker()
    # W009: there are several top-level packages, one for each framework. That is meant.
    checker.configure_options(ignore={Check.W009})
    for finding in checker.check_contents(WheelContents.from_wheel(wheel)):
        if (finding.check, frozenset(finding.args)) not in _meant():
            yield finding.show(wheel.name)


def _meant() -> Set[Tuple[Check, FrozenSet[str]]]:
    name = f"open_ddl-{__version__}"
    # `ddl completion zsh` prints the script that zsh itself finds below share/, if it looks there.
    script = {"ddl/tools/completion/scripts/completion.zsh", f"{name}.data/data/share/zsh/site-functions/_ddl"}
    # The terms of what others wrote lie beside it, and with ours.
    terms = {"ddl/launch/dashboard/files/uplot/LICENSE"}
    terms |= {f"{name}.dist-info/licenses/{path}" for path in terms}
    # TensorFlow loads its ops by their paths, and nobody imports them. The flags of two versions may be the same.
    ops = {path for path in op_files() if path.endswith(".so")}
    flags = {path for path in op_files() if path.endswith(".flags")}
    return {(Check.W004, frozenset(ops)), *((Check.W002, frozenset(paths)) for paths in (script, terms, flags))}
