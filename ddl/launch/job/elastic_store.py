"""The seam between an elastic job and the membership in its store: all that ddlrun asks of it, and hears from it.

Who the ranks are is decided in ddl/store. ddlrun tells it which processes have ended (``StoreServer.ended``) or are to
leave, and hears which generation the others have formed.
"""

from __future__ import annotations

from typing import Callable

from ddl.bootstrap.environ import Settings
from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.job.elastic_events import RanksFormed
from ddl.store.membership.limits import ElasticLimits
from ddl.store.messages import Message
from ddl.store.server import FromAgent, StoreServer

__all__ = ["MOST_HOSTS", "elastic_store", "leave", "lost"]

MOST_HOSTS = 4096  #: agents of one job, those that have ended included
#: Seconds that the store and the ranks wait longer than ddlrun. It gives up first, and can say which rank was lost, and
#: how. They end the job only if it cannot.
_LONGER_THAN_DDLRUN = 5.0


def elastic_store(
    secret: bytes,
    size: int,
    options: ElasticOptions,
    formed: Callable[[RanksFormed], None],
    *,
    settings: Settings,
    host: str = "127.0.0.1",
    port: int = 0,
    agents: int = 0,
    from_agent: FromAgent = lambda host, message: None,
) -> StoreServer:
    """Return the store of an elastic job, not started yet. ``formed`` is called in its thread, once per generation."""

    def told(news: Message) -> None:
        formed(RanksFormed(news["generation"], tuple(news["members"]), news["seconds"]))

    return StoreServer(
        secret,
        size,
        host,
        port,
        start=False,
        agents=agents,
        from_agent=from_agent,
        elastic=ElasticLimits(
            min_size=options.min_np,
            patience=options.timeout + _LONGER_THAN_DDLRUN,
            script_patience=settings.timeout,
        ),
        generation_formed=told,
        encrypt=settings.encrypt,
        host_timeout=settings.host_timeout,
    )


def leave(server: StoreServer, incarnation: int) -> None:
    """Let a process leave after its step. If it does not, it is ended later."""
    server.remove(incarnation)


def lost(server: StoreServer, incarnation: int, how: str) -> None:
    """Tell that nothing is known of a process any more, as its agent is gone: it may still run, cut off from us."""
    server.ended(incarnation, how)
