"""``ddlrun --metrics``: serves what the ranks of a job have done, for Prometheus. docs/metrics.md lists the names.

ddlrun's loop hands each new state of the job over as one object that nobody changes. The server's threads read the
last one. Only ``/metrics`` is there, and anybody who can connect may read it.
"""

from __future__ import annotations

import threading
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence, Tuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from ddl._version import __version__
from ddl.errors import ConfigError
from ddl.launch.ask.listening import ListeningAddress
from ddl.launch.show.job_totals import JobCounters, JobTotals, ProcessSums, RankTotals
from ddl.records.sample import RankSample

__all__ = ["MetricsServer"]

_PATH = "/metrics"
_RANK = ("rank", "process")  # labels
_READER_SECONDS = 10.0  # for a client that has connected to ask, and to read the answer
_LOOK_SECONDS = 0.1  # how long ``close`` may take

#: Of each rank and its communicators: name without ``_total``, unit, what it is, and where it stands.
_SUMS: Tuple[Tuple[str, str, str, Callable[[ProcessSums], float]], ...] = (
    ("ddl_operations", "", "Collectives that have ended", lambda sums: sums.operations),
    ("ddl_sent_messages", "", "Messages with data that were sent", lambda sums: sums.sent_messages),
    ("ddl_sent_bytes", "bytes", "Bytes of these messages", lambda sums: sums.sent_bytes),
    ("ddl_under_way_seconds", "seconds", "How long collectives were under way", lambda sums: sums.under_way),
    ("ddl_waited_seconds", "seconds", "How long nothing moved while they were", lambda sums: sums.waited),
)


class MetricsServer:
    """Listens from the beginning, and answers from ``start`` to ``close``. ddlrun's loop calls it."""

    def __init__(self, address: ListeningAddress) -> None:
        """Listen there. ``ConfigError`` if that cannot be, or if prometheus-client is missing."""
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app
        except ModuleNotFoundError as error:
            raise ConfigError("--metrics needs prometheus-client: pip install prometheus-client") from error
        self._counters = JobCounters()
        self._collector = _JobCollector()
        registry = CollectorRegistry()
        registry.register(self._collector)
        self._server = _Server(address, _only_metrics(make_wsgi_app(registry)))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_SECONDS,), name="ddlrun metrics", daemon=True
        )
        self.url = f"http://{address._replace(port=self._server.server_port)}{_PATH}"

    def start(self) -> None:
        """Answer from now on. Who has connected before is answered, too."""
        self._thread.start()

    def take(self, samples: Iterable[RankSample], running: int, late: Mapping[int, float]) -> None:
        """Show the next samples, as ``JobCounters`` takes them."""
        self._counters.take(samples, running, late)
        self._collector.totals = self._counters.totals()

    def forget(self, number: int) -> None:
        """The process with this number has ended: show nothing of it any more."""
        self._counters.forget(number)
        self._collector.totals = self._counters.totals()

    def close(self) -> None:
        """Answer nobody any more. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _JobCollector:
    """What prometheus-client asks for the metrics, in any thread."""

    def __init__(self) -> None:
        self.totals = JobTotals()

    def collect(self) -> Iterator[Any]:
        """Yield all families, those without any rank, too."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        totals = self.totals
        yield InfoMetricFamily("ddl_build", "The DDL of ddlrun", value={"version": __version__})
        yield GaugeMetricFamily("ddl_ranks", "Ranks that run", value=totals.running)
        yield GaugeMetricFamily("ddl_generation", "Number of the present list of ranks", value=totals.generation)
        info = InfoMetricFamily("ddl_rank", "Where a rank is", labels=[*_RANK, "host"])
        ranks = sorted(totals.ranks, key=lambda rank: (rank.rank, rank.process))
        for rank in ranks:
            info.add_metric([*_labels(rank), rank.host], {})
        yield info
        steps = CounterMetricFamily("ddl_steps", "Training steps that have ended", labels=_RANK)
        for rank in ranks:
            steps.add_metric(_labels(rank), rank.steps)
        yield steps
        for name, unit, text, value in _SUMS:
            counter = CounterMetricFamily(name, text, labels=[*_RANK, "communicator"], unit=unit)
            for rank in ranks:
                for communicator, sums in sorted(rank.sums.items()):
                    counter.add_metric([*_labels(rank), communicator], value(sums))
            yield counter
        paused = CounterMetricFamily(
            "ddl_paused_seconds", "How long it waited for a new generation of ranks", labels=_RANK, unit="seconds"
        )
        for rank in ranks:
            paused.add_metric(_labels(rank), rank.paused)
        yield paused
        late = GaugeMetricFamily(
            "ddl_late_seconds", "How late it comes to each operation; 0: it is not", labels=["rank"], unit="seconds"
        )
        for number in sorted({rank.rank for rank in ranks}):
            late.add_metric([str(number)], totals.late.get(number, 0.0))
        yield late
        links = CounterMetricFamily(
            "ddl_link_sent_bytes", "Bytes sent from host to host", labels=["from_host", "to_host"], unit="bytes"
        )
        for hosts, size in sorted(totals.links.items()):
            links.add_metric(hosts, size)
        yield links

    #: So that ``/metrics?name[]=...`` finds a family by its name.
    describe = collect


def _labels(rank: RankTotals) -> Sequence[str]:
    return str(rank.rank), str(rank.process)


def _only_metrics(metrics: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Return the application of prometheus-client, which answers at every path, for ``/metrics`` alone."""

    def application(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _PATH:
            return metrics(environ, start_response)
        status = HTTPStatus.NOT_FOUND
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"There is only {_PATH} here.\n".encode()]

    return application


class _QuietHandler(WSGIRequestHandler):
    timeout = _READER_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal is the ranks'."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each client.

    prometheus-client's own server would bind and start its thread at once. ddlrun has to bind before ranks start, so
    that a mistake is seen in time, and may have threads only afterwards, as ranks are forks of it.
    """

    daemon_threads = True

    def __init__(self, address: ListeningAddress, application: Callable[..., Iterable[bytes]]) -> None:
        super().__init__(address, _QuietHandler, bind_and_activate=False)
        self.socket.close()  # made for IPv4; and to bind it would ask for this host's name, which may take seconds
        self.socket = address.listen("--metrics")
        self.server_name, self.server_port = address.host, int(self.socket.getsockname()[1])
        self.setup_environ()
        self.set_app(application)
