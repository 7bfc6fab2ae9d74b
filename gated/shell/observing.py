"""Watching a daemon from outside: its metrics endpoint and its traces, where they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import structlog
from msgspec import Struct

from gated.shell.metrics import Gauges, Metrics, endpoint
from gated.shell.notify.notifier import Counts
from gated.shell.telemetry import Telemetry
from gated.shell.traces import Traces

log = structlog.get_logger("gated.observing")


class Observing(Struct, frozen=True):
    """`metrics` is where to answer Prometheus: host and port (0: a free one)."""

    metrics: tuple[str, int] | None = None
    traces: bool = False


@contextmanager
def observed(
    wanted: Observing,
    telemetry: Telemetry,
    gauges: Callable[[], Gauges],
    notices: Callable[[], Counts | None] = lambda: None,
) -> Iterator[int | None]:
    """Observe while the block runs; on which port. Raises `MetricsError`, `TracesError`."""
    port: int | None = None
    with ExitStack() as stack:
        if wanted.traces:
            traces = Traces()
            stack.callback(traces.close)
            telemetry.listeners.append(traces)
        if wanted.metrics is not None:
            port = stack.enter_context(endpoint(Metrics(telemetry, gauges, notices), *wanted.metrics))
            log.info("metrics", address=f"http://{wanted.metrics[0]}:{port}/metrics")
        yield port
