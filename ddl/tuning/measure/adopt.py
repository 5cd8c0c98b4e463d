"""What ``init`` does about tables: takes the one that rank 0 found, or measures one where asked to (mode ``p``)."""

from __future__ import annotations

import logging

from ddl.communicator import Communicator
from ddl.errors import ConfigError
from ddl.plan.ir import Collective
from ddl.tuning.measure import table_file as file

__all__ = ["adopt"]

log = logging.getLogger("ddl")


def adopt(world: Communicator) -> None:
    """Let ``world``, which has run no collective yet, choose by the table for this job, if there is one.

    Collective, blocking; measuring takes the seconds of DDL_TUNE_SECONDS, and rank 0 keeps what came out for the next
    start. Raises ``ConfigError`` on all ranks if DDL_TUNED names a file that does not suit.
    """
    job, first = world.job, world.rank == 0
    if world.size == 1:
        return
    table = file.take(job.offer, world.topology, warn=first)
    if table is not None:
        if first:
            log.info("algorithms are chosen by %s, measured on %s", job.offer.path, table.date)
            if table.racks is not None:
                log.info("%s is laid out by %s", table.topology, table.racks.text(table.cluster.hosts))
    elif job.offer.seconds:
        from ddl.tuning.measure.sweep import SIZES, measure  # planning's whole tool box: only who measures loads it

        # All-reduces only: what else this communicator has planned by then, to make others, keeps its plan.
        tell = log.info if first else log.debug
        table = measure(world, [Collective.ALLREDUCE], SIZES, job.offer.seconds, tell=tell)
        if first:
            try:
                path = file.place(table.cluster)
                file.write(table, path)
                log.info("algorithms were measured; %s keeps them for the next start on these hosts", path)
            except (OSError, ConfigError) as error:
                log.warning("what was measured is not kept for the next start: %s; set XDG_CONFIG_HOME", error)
    if table is not None:
        world._use(table)
