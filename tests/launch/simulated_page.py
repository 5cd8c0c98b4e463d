"""Serves the page of a job that is not there: samples of as many ranks as wanted, from one process, for tests.

By hand: ``PYTHONPATH=. python tests/launch/simulated_page.py --hosts 64 --ranks-per-host 8``, until Ctrl-C.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Dict, List, Optional, Tuple

from ddl.launch.agent.job_watch import JobWatch
from ddl.launch.agent.output import Sink
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.listening import ListeningAddress
from ddl.launch.ask.placement import Placement
from ddl.launch.dashboard.live import JobPage
from ddl.records.sample import RankSample

__all__ = ["SimulatedJob"]

_STEPS_PER_SECOND = 11.0


class SimulatedJob:
    """Ranks that train in rings: each host sends to the next one, and each rank to its neighbours in the host.

    The last rank but one is late, one is stopped. Of several ``rails``, the last one is down. ``time`` is the job's.
    """

    def __init__(
        self, hosts: int, per_host: int, *, per_rack: int = 0, rails: int = 1, history: Optional[str] = None
    ) -> None:
        self._rails = rails
        self.size = hosts * per_host
        names = tuple(f"node{number:02}" for number in range(hosts))
        ranks = tuple(tuple(range(host * per_host, (host + 1) * per_host)) for host in range(hosts))
        sizes = f"{per_host}x{per_rack}x{hosts // per_rack}" if per_rack else ""
        self._config = RunConfig(
            num_proc=self.size,
            command=("python", "-u", "train.py", "--model", "<b>resnet</b>"),
            environ=(("DDL_DIMENSIONS", sizes),) if sizes else (),
            placement=Placement(names, ranks),
            dashboard=ListeningAddress("127.0.0.1", 0),
            history=history,
        )
        self._host_of = {rank: host for host, of_host in zip(names, ranks) for rank in of_host}
        self._per_host = per_host
        self._watch = JobWatch()
        self.sinks = (Sink(1), Sink(2))
        self.page = JobPage(self._config, self.sinks)
        self.page.start()
        self.time = 0.0

    def second(self) -> None:
        """Let a second pass."""
        self.time += 1.0
        self._watch.take([self._sample(rank) for rank in range(self.size)])
        for rank in range(0, self.size, max(1, self.size // 16)):
            line = f"step {self._steps()}: loss {2 / (1 + self.time / 30):.4f} <i>&amp;</i>\n"
            width = len(str(self.size - 1))
            tap = self.sinks[0].tap
            assert tap is not None
            tap(f"[{rank:>{width}}] {line}".encode())
        late = {self.size - 2: 0.0123} if self.size > 2 and self.time > 20 else {}
        self.page.take(self.time, self._watch.now(self.size, late), self._watch.ranks(late), None)

    def _steps(self) -> int:
        return int(_STEPS_PER_SECOND * self.time + 8 * math.sin(self.time / 8))

    def _sample(self, rank: int) -> RankSample:
        sent = self._sent(rank)
        steps = self._steps()
        stopped = rank == self.size // 3 and self.size > 4 and self.time > 25
        waiting = rank % 7 == 3
        return RankSample(
            *(rank, rank, self._host_of[rank], 20000 + rank, "is stopped" if stopped else "runs", self.time, 0),
            steps=steps,
            operations=4 * steps,
            under_way=0.6 * self.time,
            waited=(0.05 + 0.02 * (rank % 5)) * self.time + 0.3 * math.sin(self.time / 12),
            sent_bytes=sum(sent.values()),
            sent_to=list(sent.items()),
            call=f'allreduce #{4 * steps} "bucket.{rank % 4}" (1048576 x float32, average)',
            call_state="begun" if waiting else "ended",
            awaited=self.size // 3 if waiting else None,
            rails=self._over(rank, sent),
        )

    def _over(self, rank: int, sent: Dict[int, int]) -> List[Tuple[str, str, int]]:
        """Return what has gone to other hosts over each rail. Of the last one it was no more than some bytes."""
        own, rails = rank // self._per_host, self._rails
        return [
            (
                f"10.77.{rail}.{own + 1}",
                f"10.77.{rail}.{to // self._per_host + 1}",
                count // rails if rail < rails - 1 else 9,
            )
            for to, count in sent.items()
            if to // self._per_host != own
            for rail in range(rails if rails > 1 else 0)
        ]

    def _sent(self, rank: int) -> Dict[int, int]:
        """Return what it has sent in all, to each other rank."""
        neighbour = rank - rank % self._per_host + (rank + 1) % self._per_host
        next_host = (rank + self._per_host) % self.size
        before = (rank - self._per_host) % self.size
        million = int(1e6 * self.time)
        return {next_host: 40 * million + rank * 100_000, before: 9 * million, neighbour: 3 * million}


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--ranks-per-host", type=int, default=8)
    parser.add_argument("--per-rack", type=int, default=0)
    parser.add_argument("--rails", type=int, default=1)
    arguments = parser.parse_args()
    job = SimulatedJob(arguments.hosts, arguments.ranks_per_host, per_rack=arguments.per_rack, rails=arguments.rails)
    try:
        while True:
            job.second()
            time.sleep(1.0)
    except KeyboardInterrupt:
        job.page.end(job.time, 0, None)


if __name__ == "__main__":
    main()
