"""What setup.py does for shells and man: a wheel brings completion scripts and man pages, made from the parsers.

``build_py`` puts the scripts that ``ddl completion`` prints beside the package, in a wheel only: in a checkout they are
made anew each time. ``install_data`` puts files below ``share/`` of the environment. Nothing else is needed for it than
the standard library (and tomli before Python 3.11). Where that is missing, the build goes on without these files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import setuptools  # noqa: F401 (it brings the distutils of the next line)

from distutils.command.install_data import install_data  # isort: skip
from setuptools.command.build_py import build_py

__all__ = ["SHELL_FILES"]


def _share() -> Any:
    try:
        from ddl.tools.completion import share
    except ImportError as error:
        print(f"ddl: no completion scripts and no man pages are made: {error}", flush=True)
        return None
    return share


class BuildScripts(build_py):
    """Also writes completion scripts into the package."""

    def run(self) -> None:
        super().run()
        share = None if self.editable_mode else _share()
        if share is not None:
            share.write_scripts(Path(self.build_lib))


class InstallShare(install_data):
    """Installs what shells and man look for below ``share/``."""

    def run(self) -> None:
        share = _share()
        self.data_files = [] if share is None else share.write_share(Path("build"))
        super().run()


#: Commands of setuptools, as ``cmdclass`` takes them.
SHELL_FILES: Dict[str, Any] = {"build_py": BuildScripts, "install_data": InstallShare}
