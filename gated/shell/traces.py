"""Traces of runs for OpenTelemetry (`--traces`), made from events: a run is a trace, each call in it a span.

Spans have the log's times, and ids that are computed from thread, run and call: what a restart says again is the same span. They
carry who, which tool, the verdict and its code; never an argument or a result. Where they go is said by the usual `OTEL_…`
variables.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from gated.errors import GatedError
from gated.events import CallDecided, CallSettled, Decision, Record, RunEnded, RunOpened

REMEMBERED: Final = 100_000  # calls and runs that have begun and not ended
NANO: Final = 1000  # ns in a µs


class TracesError(GatedError):
    """Traces cannot be made: the library is missing."""


class Traces:
    """A listener of the telemetry. `exporter` is a span exporter of the SDK; None is OTLP over HTTP."""

    def __init__(self, exporter: Any = None) -> None:
        try:
            self._api = import_module("opentelemetry.trace")
            sdk = import_module("opentelemetry.sdk.trace")
            export = import_module("opentelemetry.sdk.trace.export")
            resource = import_module("opentelemetry.sdk.resources").Resource.create({"service.name": "gated"})
            if exporter is None:
                exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter()
        except ImportError as error:
            raise TracesError(f"traces need `{error.name}`, which is not installed: install `gated[traces]`") from error
        self._ids = _Ids()
        self._provider = sdk.TracerProvider(resource=resource, id_generator=self._ids)
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("gated")
        self._runs: OrderedDict[tuple[str, str], tuple[int, str]] = OrderedDict()  # began at, agent
        self._calls: OrderedDict[tuple[str, str, str], tuple[int, str]] = OrderedDict()  # asked at, tool

    def heard(self, record: Record, decisions: Sequence[Decision], agent: str) -> None:
        for decision in decisions:
            match decision:
                case RunOpened():
                    _remember(self._runs, (record.thread, record.run), (record.at, decision.agent))
                case CallDecided():
                    self._decided(record, decision, agent)
                case CallSettled():
                    self._settled(record, decision, agent)
                case RunEnded():
                    self._ended(record, decision)
                case _:
                    pass

    def _decided(self, record: Record, decided: CallDecided, agent: str) -> None:
        """A denial is a whole span; what waits or runs is one when it ends."""
        key = (record.thread, record.run, decided.call)
        begun = self._calls.get(key, (record.at, decided.tool))[0]
        if decided.decision != "deny":
            _remember(self._calls, key, (begun, decided.tool))
            return
        self._calls.pop(key, None)
        attributes = {"gated.decision": "deny", "gated.code": decided.code or "", "gated.stage": decided.stage or ""}
        self._span(record, decided.call, decided.tool, begun, agent, attributes)

    def _settled(self, record: Record, settled: CallSettled, agent: str) -> None:
        begun, tool = self._calls.pop((record.thread, record.run, settled.call), (record.at, "call"))
        attributes = {"gated.decision": "allow", "gated.status": settled.status, "gated.lapsed": settled.lapsed}
        self._span(record, settled.call, tool, begun, agent, attributes, failed=settled.status == "error")

    def _span(
        self, record: Record, call: str, name: str, begun: int, agent: str, attributes: dict[str, Any], failed: bool = False
    ) -> None:
        thread, run = record.thread, record.run
        trace, parent = _id(16, thread, run), _id(8, thread, run)
        flags = self._api.TraceFlags(self._api.TraceFlags.SAMPLED)
        above = self._api.SpanContext(trace, parent, is_remote=True, trace_flags=flags)
        context = self._api.set_span_in_context(self._api.NonRecordingSpan(above))
        common = {"gated.thread": thread, "gated.run": run, "gated.agent": agent, "gated.call": call}
        self._make(trace, _id(8, thread, run, call), context, name, begun, record.at, {**common, **attributes}, failed)

    def _ended(self, record: Record, ended: RunEnded) -> None:
        thread, run = record.thread, record.run
        begun, agent = self._runs.pop((thread, run), (record.at, ""))
        attributes = {"gated.thread": thread, "gated.run": run, "gated.agent": agent, "gated.status": ended.status}
        trace, own = _id(16, thread, run), _id(8, thread, run)
        self._make(trace, own, None, f"run {agent}", begun, record.at, attributes, ended.status == "failed")

    def _make(
        self, trace: int, own: int, context: Any, name: str, begun: int, ended: int, attributes: dict[str, Any], failed: bool
    ) -> None:
        self._ids.next = (trace, own)
        span = self._tracer.start_span(name, context=context, start_time=begun * NANO, attributes=attributes)
        if failed:
            span.set_status(self._api.Status(self._api.StatusCode.ERROR))
        span.end(end_time=ended * NANO)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


class _Ids:
    """Gives the SDK the ids that were computed for the span it makes now."""

    next: tuple[int, int] = (1, 1)

    def generate_trace_id(self) -> int:
        return self.next[0]

    def generate_span_id(self) -> int:
        return self.next[1]

    def is_trace_id_random(self) -> bool:
        return False


def _id(size: int, *parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:size], "big") or 1


def _remember(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    if len(kept) > REMEMBERED:
        kept.popitem(last=False)
