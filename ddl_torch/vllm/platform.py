"""vLLM's platform for CPUs, on DDL."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform

import ddl_torch  # noqa: F401 makes the backend known

__all__ = ["DDLPlatform"]


class DDLPlatform(CpuPlatform):
    """Makes the groups of ranks by the backend "ddl"; all else is as on vLLM's own platform for CPUs."""

    dist_backend = "ddl"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return the name of the class by which the ranks of a group talk."""
        return "ddl_torch.vllm.communicator.DDLGroupCommunicator"
