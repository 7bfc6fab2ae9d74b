"""The metrics of a daemon for Prometheus: an endpoint (`--metrics`), and every number in the text form it reads.

The numbers are read when they are asked for, on the endpoint's own thread: a scrape costs the decisions nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from gated.errors import GatedError
from gated.shell.notify.notifier import Counts
from gated.shell.telemetry import Histogram, Telemetry


class MetricsError(GatedError):
    """The endpoint cannot be opened: the library is missing, or the port is taken."""


class Gauges(NamedTuple):
    """What a daemon is at this moment."""

    waiting: int
    threads: int
    open_tickets: int
    records: int
    damaged_threads: int
    log_unavailable: bool
    reload_failed: bool


class Metrics:
    """A collector of `prometheus_client`."""

    def __init__(self, telemetry: Telemetry, gauges: Callable[[], Gauges], notices: Callable[[], Counts | None]) -> None:
        self._telemetry, self._gauges, self._notices = telemetry, gauges, notices
        self._core = _library("prometheus_client.core")

    def collect(self) -> Iterator[Any]:
        t, now = self._telemetry, self._gauges()
        yield self._counter("verdicts", "Verdicts on calls.", ("decision", "stage", "code", "agent"), t.verdicts)
        yield self._counter("findings_observed", "Findings that were not acted on.", ("outcome", "code"), t.observed)
        yield self._counter("refusals", "Messages, or calls of them, that were not taken.", ("code",), _single(t.refusals))
        yield self._counter("outcomes", "Outcomes of admitted calls.", ("status",), _single(t.outcomes))
        yield self._counter("calls_lapsed", "Admitted calls whose outcome nobody reported in time.", (), {(): t.lapsed})
        yield self._counter("ungated_executions", "Outcomes of calls that had no allow verdict.", (), {(): t.ungated})
        yield self._counter("contract_breaches", "Outcomes that broke a postcondition.", ("contract",), _single(t.breaches))
        yield self._counter("runs_opened", "Runs that were opened.", (), {(): t.runs_opened})
        yield self._counter("runs_ended", "Runs that ended.", ("status",), _single(t.runs_ended))
        yield self._counter("records", "Records made durable.", (), {(): now.records})
        yield from self._tickets(now)
        yield from self._of_notices()
        yield self._gauge("inputs_waiting", "Inputs in memory that are not decided yet.", now.waiting)
        yield self._gauge("threads_in_memory", "Threads whose state is in memory.", now.threads)
        yield self._gauge("threads_damaged", "Threads that nothing is decided on: their log is damaged.", now.damaged_threads)
        yield self._gauge("log_unavailable", "1 while no verdict leaves, since the log cannot be written.", now.log_unavailable)
        yield self._gauge("policy_reload_failed", "1 while the policy file is broken: the old one holds.", now.reload_failed)
        yield self._histogram("answer_seconds", "From the bus storing an input to its answer.", t.latency)

    def _tickets(self, now: Gauges) -> Iterator[Any]:
        t = self._telemetry
        yield self._counter("tickets_opened", "Tickets that were opened.", (), {(): t.tickets_opened})
        yield self._counter("tickets_closed", "Tickets that ended.", ("state",), _single(t.tickets_closed))
        yield self._counter("tickets_noted", "Events in a ticket's life.", ("event",), _single(t.tickets_noted))
        yield self._counter("tickets_expired_undecided", "Tickets that expired without an answer.", (), {(): t.expired_undecided})
        yield self._counter("tickets_expired_unseen", "Tickets that expired and nobody looked at.", (), {(): t.expired_unseen})
        yield self._gauge("tickets_open", "Tickets that wait for people.", now.open_tickets)
        yield self._gauge("tickets_unseen", "Open tickets, since the start, that nobody looked at.", t.unseen)

    def _of_notices(self) -> Iterator[Any]:
        counts = self._notices()
        if counts is None:
            return
        yield self._counter("notices_delivered", "Notices that were delivered.", (), {(): counts.delivered})
        yield self._counter("notices_failed", "Attempts at a notice that failed.", (), {(): counts.failed})
        yield self._counter("notices_undelivered", "Notices of which a ticket says so.", (), {(): counts.undelivered})
        yield self._counter("notices_given_up", "Notices that are not tried again.", (), {(): counts.given_up})

    def _counter(self, name: str, text: str, labels: tuple[str, ...], values: Mapping[Any, int]) -> Any:
        made = self._core.CounterMetricFamily(f"gated_{name}", text, labels=labels)
        for key, value in list(values.items()):
            made.add_metric(key, value)
        return made

    def _gauge(self, name: str, text: str, value: float) -> Any:
        return self._core.GaugeMetricFamily(f"gated_{name}", text, value=float(value))

    def _histogram(self, name: str, text: str, found: Histogram) -> Any:
        total, buckets = 0, []
        for edge, count in zip((*map(str, found.buckets), "+Inf"), list(found.counts), strict=True):
            total += count
            buckets.append((edge, total))
        return self._core.HistogramMetricFamily(f"gated_{name}", text, buckets=buckets, sum_value=found.sum)


def _single(values: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(name,): value for name, value in list(values.items())}


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MetricsError("metrics need `prometheus_client`, which is not installed: install `gated[metrics]`") from error


@contextmanager
def endpoint(metrics: Metrics, host: str, port: int) -> Iterator[int]:
    """Answer on a port while the block runs; which port it is. Raises `MetricsError` where it cannot be had."""
    library = _library("prometheus_client")
    registry = library.CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = library.start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise MetricsError(f"cannot serve metrics on `{host}:{port}`: {error}") from error
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def parse_address(text: str) -> tuple[str, int]:
    """`9464`, `127.0.0.1:9464` or `[::1]:9464`. Raises `MetricsError`."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise MetricsError(f"`{text}` is no address for metrics: write `9464` or `127.0.0.1:9464`")
    return host.strip("[]") or "127.0.0.1", int(port)
