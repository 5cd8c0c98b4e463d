"""Trainings on this machine whose processes a benchmark kills: started by ddlrun, or one by one (``DDL_ELASTIC=1``)."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import List, Optional, Sequence

from benchmarks.churn.trainings import ChurnNetwork, ChurnTraining, write_at_once

__all__ = ["LaunchedTraining", "SeparateTraining"]


class LaunchedTraining(ChurnTraining):
    """Started by ddlrun, which starts a process in place of each that is lost.

    min_np: with fewer ranks it pauses. list_hosts: let ddlrun ask how many ranks there may be (``set_slots``).
    options: more of ddlrun's.
    """

    def __init__(
        self,
        network: ChurnNetwork,
        folder: Path,
        ranks: int,
        *,
        min_np: int = 1,
        list_hosts: bool = False,
        options: Sequence[str] = (),
        period: float = 1.0,
    ) -> None:
        super().__init__(network, folder, period)
        line = [sys.executable, "-m", "ddl.launch", "-np", str(ranks), "--min-np", str(min_np)]
        self.set_slots(ranks)
        script = f"cat {self.folder / 'hosts'}"
        line += ["--host-discovery-script", script] if list_hosts else ["--max-restarts", "100000"]
        self.start([*line, *options, *network.command(self.path)], {})

    def set_slots(self, count: int) -> None:
        """With ``list_hosts``: let there be so many ranks, by a planned change."""
        self.slots = count
        write_at_once(self.folder / "hosts", f"localhost:{count}\n")

    def wait_for_end(self, pid: int) -> str:
        """Wait until a rank has ended; return how, in the words of ddlrun."""
        pattern = re.compile(rf"^ddlrun: .*\(pid {pid}\).* (was killed|exited).*", re.MULTILINE)

        def told() -> Optional[re.Match[str]]:
            return pattern.search((self.folder / "output").read_text(encoding="utf-8", errors="replace"))

        self.notes.wait(lambda: told() is not None, f"the end of process {pid}")
        text = told()
        return text[0] if text else ""

    def was_ended_amid_a_store(self, pid: int) -> bool:
        """Return whether other ranks have ended this one, as it was stopped while it wrote to their memory."""
        return f"(pid {pid}) was given up while it wrote" in (self.folder / "output").read_text("utf-8", "replace")

    def wait_until_settled(self) -> None:
        """Wait until there are as many ranks as slots, and no process that is still to leave or to join."""
        self.notes.wait(
            lambda: len(self.notes.members()) == len(self.running()) == self.slots,
            f"{self.slots} processes, all of them ranks",
        )

    def launcher_pids(self) -> List[int]:
        """Return ddlrun, and its agent if it has one: the parent of the ranks."""
        parents = {self.started[0].pid}
        for pid in self.pids()[:1]:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
                parents.add(int(stat.rpartition(")")[2].split()[1]))
        return sorted(parents)


class SeparateTraining(ChurnTraining):
    """Ranks that another launcher might have started: they are told what torchrun tells, and rank 0 has the store."""

    def __init__(self, network: ChurnNetwork, folder: Path, ranks: int, *, period: float = 1.0) -> None:
        super().__init__(network, folder, period)
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "churn", "GROUP_RANK": "0"}
        job.update({"GROUP_WORLD_SIZE": "1", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)})
        job.update({"DDL_ELASTIC": "1", "DDL_RENDEZVOUS_DIR": str(folder), "OMP_NUM_THREADS": "1"})
        for rank in range(ranks):
            self.start(network.command(self.path), {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)})
