"""For Lightning: ``Trainer(strategy="ddl")`` and ``Fabric(strategy="ddl")``, once this module is imported.

The strategy is Lightning's own for DDP, on DDL. It knows the ranks by DDL, under whatever started them, so that
``devices`` and ``num_nodes`` need not be given. This module imports Lightning; ``import ddl_torch`` does not. It takes
the package ``lightning``, or ``pytorch_lightning`` where the script has imported that one, or where only that is
installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from datetime import timedelta
from typing import Any, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.distributed import default_pg_timeout

import ddl
from ddl import ConfigError, InvalidArgument, InvalidState

__all__ = ["DDLEnvironment", "DDLFabricStrategy", "DDLStrategy"]


def _packages() -> Tuple[str, str]:
    """Return the names of the Trainer's package and of Fabric's: those that the script uses."""
    known = [name for name in ("lightning", "pytorch_lightning") if name in sys.modules]
    known += [name for name in ("lightning", "pytorch_lightning") if importlib.util.find_spec(name) is not None]
    if known and known[0] == "pytorch_lightning":
        return "pytorch_lightning", "lightning_fabric"
    return "lightning.pytorch", "lightning.fabric"


_TRAINER, _FABRIC = _packages()
_trainer = importlib.import_module(f"{_TRAINER}.strategies")
_fabric = importlib.import_module(f"{_FABRIC}.strategies")
_ClusterEnvironment: Any = importlib.import_module(f"{_FABRIC}.plugins.environments").ClusterEnvironment
_DDPStrategy: Any = _trainer.DDPStrategy
_FabricDDPStrategy: Any = _fabric.DDPStrategy


class DDLEnvironment(_ClusterEnvironment):
    """What Lightning asks about the ranks, answered by DDL: under ddlrun, torchrun, srun, and MPI's mpiexec.

    The strategy "ddl" has one. For another strategy, pass it to the Trainer: ``plugins=[DDLEnvironment()]``. That one
    asks for ``devices`` and ``num_nodes``, which are compared with the job. To make one is collective: it calls
    ``ddl.init()`` if nobody has.
    """

    def __init__(self) -> None:
        if not ddl.is_initialized():
            ddl.init()

    @staticmethod
    def detect() -> bool:
        """Return False: Lightning does not look for it, but a script passes it."""
        return False

    @property
    def creates_processes_externally(self) -> bool:
        """True: a launcher has started the ranks, not Lightning."""
        return True

    @property
    def main_address(self) -> str:
        """Where torch's store is, as the launcher says."""
        return self._variable("MASTER_ADDR")

    @property
    def main_port(self) -> int:
        """Its port."""
        return int(self._variable("MASTER_PORT"))

    def _variable(self, name: str) -> str:
        if not os.environ.get(name):
            raise ConfigError(
                f"{ddl.world().who} DDLEnvironment: {name} is not set; start the script by ddlrun or torchrun, which "
                'set it, or use Trainer(strategy="ddl"), which does not need it'
            )
        return os.environ[name]

    def world_size(self) -> int:
        """Return the number of ranks."""
        return ddl.size()

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher has decided."""

    def global_rank(self) -> int:
        """Return this process's rank."""
        return ddl.rank()

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launcher has decided."""

    def local_rank(self) -> int:
        """Return this process's number on its host."""
        return ddl.local_rank()

    def node_rank(self) -> int:
        """Return the number of this process's host."""
        return ddl.cross_rank()

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Raise ``InvalidArgument`` if a script has said other numbers than the job has."""
        check_said("devices", num_devices, ddl.local_size())
        check_said("num_nodes", num_nodes, ddl.cross_size())


def check_said(what: str, said: int, known: int) -> None:
    """Raise ``InvalidArgument`` if a script has given an argument another number than the job has."""
    if said != known:
        raise InvalidArgument(
            f"{ddl.world().who} Lightning was told {what}={said}, but the job has {known} here: leave it out with "
            f'strategy="ddl", or start as many ranks (ddlrun -np says how many)'
        )


class _OnDDL:
    """What makes DDL's strategies of Lightning's: a base before ``DDPStrategy``."""

    strategy_name = "ddl"

    def __init__(self, *, timeout: timedelta = default_pg_timeout, **options: Any) -> None:
        self._time_of_operations = timeout
        self._devices: Optional[List[torch.device]] = None
        options.setdefault("cluster_environment", DDLEnvironment())
        super().__init__(process_group_backend="ddl", timeout=timeout, **options)  # type: ignore[call-arg]

    @property
    def parallel_devices(self) -> Optional[List[torch.device]]:
        """A device for each rank of this host."""
        return self._devices

    @parallel_devices.setter
    def parallel_devices(self, devices: Optional[Sequence[torch.device]]) -> None:
        if devices is None:
            self._devices = None
            return
        here = ddl.local_size()
        if len(devices) == 1 and devices[0].type == "cpu":  # also if the script has said nothing
            devices = [devices[0]] * here
        if len(devices) < here or devices[0].type == "cpu":
            check_said("devices", len(devices), here)
        self._devices = list(devices)

    @property
    def num_nodes(self) -> int:
        """The number of hosts."""
        return ddl.cross_size()

    @num_nodes.setter
    def num_nodes(self, number: int) -> None:
        if number != 1:  # which is also what it is if the script has said nothing
            check_said("num_nodes", number, ddl.cross_size())

    @property
    def distributed_sampler_kwargs(self) -> Any:
        """This rank's share of the data, also where hosts have different numbers of ranks."""
        return {"num_replicas": ddl.size(), "rank": ddl.rank()}

    def setup_environment(self) -> None:
        """Make the process group, by what started the ranks, before Lightning would look at torch's variables."""
        if not dist.is_initialized():
            dist.init_process_group("ddl", init_method="ddl://", timeout=self._time_of_operations)
        elif ":ddl" not in dist.get_backend_config():
            raise InvalidState(
                f'{ddl.world().who} strategy="ddl": the process group is there already, with the backends '
                f"{dist.get_backend_config()}; call destroy_process_group before, or make it with the backend ddl"
            )
        super().setup_environment()  # type: ignore[misc]  # DDPStrategy's


class DDLStrategy(_OnDDL, _DDPStrategy):
    """``Trainer(strategy="ddl")``; with options of ``DDPStrategy``: ``strategy=DDLStrategy(static_graph=True)``.

    ``timeout``: of each operation; torch's default counts as DDL's own (DDL_TIMEOUT). To make one is collective.
    """


class DDLFabricStrategy(_OnDDL, _FabricDDPStrategy):
    """``Fabric(strategy="ddl")``: as ``DDLStrategy``."""


_trainer.StrategyRegistry.register("ddl", DDLStrategy, description="DDP on DDL", override=True)
_fabric.STRATEGY_REGISTRY.register("ddl", DDLFabricStrategy, description="DDP on DDL", override=True)
