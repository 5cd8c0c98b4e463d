"""``ddlrun --jax``: has every Python of the job tell JAX about DDL when JAX is imported (ddl_jax/startup)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Mapping

from ddl.errors import ConfigError

__all__ = ["variables_for_jax"]

_STARTUP = Path(__file__).resolve().parents[3] / "ddl_jax" / "startup"
_PATH = "PYTHONPATH"


def variables_for_jax(environ: Mapping[str, str], *, in_image: bool) -> Dict[str, str]:
    """Return the variable that does it, given those that a rank has otherwise. Raises ``ConfigError``.

    ``in_image``: the ranks run in a container's image, whose folders are not known here.
    """
    if in_image:
        raise ConfigError(
            "--jax names a folder of this machine, and the pods have those of their image; "
            "import ddl_jax before jax in the program, and leave --jax out"
        )
    if not _STARTUP.is_dir():
        raise ConfigError(f"--jax: this installation of DDL has no {_STARTUP}; install it whole")
    return {_PATH: os.pathsep.join(filter(None, (str(_STARTUP), environ.get(_PATH, ""))))}
