"""How the ranks of one of vLLM's groups talk: by ``torch.distributed``, whose backend is DDL's."""

from __future__ import annotations

from typing import Any

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

__all__ = ["DDLGroupCommunicator"]


class DDLGroupCommunicator(CpuCommunicator):
    """vLLM's own for CPUs, without its shared memory for tensor and pipeline parallelism.

    DDL has shared memory between the ranks of a host, too, and sees when one of them dies. vLLM goes by the name of a
    group, so these groups are made by another name. vLLM would also use its shared memory between hosts if a launcher
    started the ranks (``external_launcher``): it takes "env://" for the same name on all of them.
    """

    def __init__(
        self,
        cpu_group: Any,
        device: Any = None,
        device_group: Any = None,
        unique_name: str = "",
        use_all2all: bool = False,
    ) -> None:
        has_shared_memory = unique_name.startswith(("tp", "pp"))
        name = f"ddl:{unique_name}" if has_shared_memory else unique_name
        super().__init__(cpu_group, device, device_group, name, use_all2all)
        self.unique_name = unique_name
