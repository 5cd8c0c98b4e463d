"""What ``init`` does with tables: it uses the one that rank 0 has read, or measures one if asked to (mode ``p``)."""

from __future__ import annotations

import logging

from ddl.communicator import Communicator
from ddl.errors import ConfigError
from ddl.plan.ir import Collective
from ddl.tuning.measure import table_file

__all__ = ["adopt"]

log = logging.getLogger("ddl")


def adopt(world: Communicator) -> None:
    """Let ``world`` choose algorithms by the table for this job, if there is one.

    ``world`` must not have run a collective yet. Collective, blocking. Measuring takes DDL_TUNE_SECONDS seconds; rank 0
    then writes the table for the next start. Raises ``ConfigError`` on all ranks if DDL_TUNED names a file that does
    not suit the job.
    """
    job, first = world.job, world.rank == 0
    if world.size == 1:
        return
    table = table_file.take(job.offer, world.topology, warn=first)
    if table is not None:
        if first:
            # Of a file that the user has not named he may not know.
            level = logging.INFO if job.offer.named else logging.WARNING
            log.log(level, "algorithms are chosen by %s, measured on %s", job.offer.path, table.date)
            if table.racks is not None:
                log.info("%s is laid out by %s", table.topology, table.racks.text(table.cluster.hosts))
    elif job.offer.seconds:
        from ddl.tuning.measure.other_work import OtherWork  # many modules: loaded only if needed
        from ddl.tuning.measure.sweep import SIZES, measure

        # Only all-reduces: the communicator has already planned the collectives that make other communicators.
        tell = log.info if first else log.debug
        others = OtherWork()
        table = measure(world, [Collective.ALLREDUCE], SIZES, job.offer.seconds, tell=tell)
        busy = others.told(world)
        if first and busy:
            log.warning("%s: the measured table is used now, and not kept for the next start", busy)
        elif first:
            try:
                path = table_file.place(table.cluster)
                table_file.write(table, path)
                log.info("algorithms were measured; the next start on these hosts will use %s", path)
            except (OSError, ConfigError) as error:
                log.warning("the measured table cannot be kept for the next start: %s; set XDG_CONFIG_HOME", error)
    if table is not None:
        world._use(table)
