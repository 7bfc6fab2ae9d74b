"""What Prometheus reads of a running gate, and the traces of its runs."""

import urllib.request
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from gated import wire
from gated.core.decide import record
from gated.core.policy import load_text
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    AgentId,
    CallId,
    DeadlineReached,
    Decision,
    IntentsReceived,
    Observation,
    OutcomeReported,
    Record,
    RunId,
    RunStarted,
    Sender,
    ThreadId,
    Wanted,
)
from gated.shell.metrics import MetricsError, endpoint, parse_address
from gated.shell.observing import Observing
from gated.shell.telemetry import Histogram, Telemetry
from gated.shell.traces import Traces
from patience import until
from shell.live import POLICY, agent, daemon_on, ears, intents, server, tell, write_policy
from shell.notify.test_notify import answer

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(port: int) -> Values:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as said:
        text = said.read().decode()
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


async def test_a_scrape_of_a_running_gate(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path, observing=Observing(("127.0.0.1", 0))) as live:
        assert live.daemon.metrics_port
        async with bus.user("agent", "payer") as payer, bus.user("agent", "worker") as worker:
            heard, other = await ears(payer, "payer"), await ears(worker, "worker")
            await tell(payer, agent("payer"), "r1", intents(("c1", "refund", {"a": 1}), ("c2", "refund", {"a": 2})))
            first, _ = await heard.count(2)
            await tell(worker, agent("worker"), "r2", intents(("c1", "shell", {}), ("c2", "read", {})))
            await other.count(2)
            assert isinstance(first, wire.Verdict)
            await answer(live, first)
            await heard.count(3)
        port, found = live.daemon.metrics_port, Values()

        async def scraped() -> bool:
            found.update(await anyio.to_thread.run_sync(scrape, port))
            return value("records_total") == value("answer_seconds_count") == 3

        def value(name: str, **labels: str) -> float:
            return found[(f"gated_{name}", tuple(sorted(labels.items())))]

        await until(scraped)
    denied = {"decision": "deny", "stage": "privilege", "code": "privilege.forbidden", "agent": "worker"}
    assert value("verdicts_total", **denied) == 1
    assert value("verdicts_total", decision="allow", stage="", code="", agent="worker") == 1
    waits = {"decision": "suspend", "stage": "privilege", "code": "privilege.approval_required", "agent": "payer"}
    assert value("verdicts_total", **waits) == 2
    assert value("tickets_opened_total") == 2
    assert value("tickets_closed_total", state="rejected") == 1
    assert value("tickets_open") == 1
    assert value("tickets_unseen") == 1
    assert value("runs_opened_total") == 2
    assert value("records_total") == 3
    assert value("answer_seconds_count") == 3
    assert value("log_unavailable") == 0


def test_an_endpoint_that_cannot_be_had(tmp_path: Path) -> None:
    from gated.shell.metrics import Gauges, Metrics

    made = Metrics(Telemetry(lambda agent: True), lambda: Gauges(0, 0, 0, 0, 0, False, False), lambda: None)
    with endpoint(made, "127.0.0.1", 0) as port, pytest.raises(MetricsError, match=str(port)), endpoint(made, "127.0.0.1", port):
        pass
    assert parse_address("9464") == ("127.0.0.1", 9464)
    assert parse_address("[::1]:9") == ("::1", 9)
    for bad in ("", "x", "1:2:x", "99999"):
        with pytest.raises(MetricsError):
            parse_address(bad)


def test_a_histogram_counts_each_duration_once() -> None:
    made = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 5.0):
        made.add(seconds)
    assert made.counts == [2, 1, 1]
    assert made.sum == pytest.approx(5.65)


# --- from events, without a bus -----------------------------------------------------------------------------------------

WAITS = "version: 1\nagents: {a: {allowed_tools: [pay, read], approval_required: [pay]}}\napprovals: {default: {timeout: 1m}}\n"
BY = Sender("agent", "a")


class Thread:
    """Records of one thread, heard by a telemetry."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.policy = load_text(WAITS, file="p")
        self.telemetry, self.state = telemetry, ThreadState(ThreadId("t"))

    def say(self, seconds: float, said: Observation) -> tuple[Record, tuple[Decision, ...]]:
        registry = Registry(self.policy, {self.policy.digest: self.policy})
        made, sealed = record(registry, self.state, RunId("r"), said, int((1_700_000_000 + seconds) * 1e6))
        assert sealed is not None
        self.state = made.state
        self.telemetry.heard(sealed, made.decisions, "a", None)
        return sealed, made.decisions

    def ask(self, seconds: float, call: str, tool: str = "pay") -> None:
        self.say(seconds, IntentsReceived(BY, (Wanted(CallId(call), tool, {}),), nesting="explicit"))


def test_tickets_that_nobody_looked_at_are_counted() -> None:
    telemetry = Telemetry(lambda agent: agent == "a")
    thread = Thread(telemetry)
    thread.ask(0, "c1")
    thread.say(100, DeadlineReached(Sender("timer", "daemon"), 0))
    assert (telemetry.expired_undecided, telemetry.expired_unseen) == (1, 1)
    thread.ask(200, "c2")
    assert (telemetry.open, telemetry.unseen) == (1, 1)
    telemetry.looked(ThreadId("other"))
    assert telemetry.unseen == 1
    telemetry.looked(ThreadId("t"))
    assert (telemetry.open, telemetry.unseen) == (1, 0)
    thread.say(300, DeadlineReached(Sender("timer", "daemon"), 0))
    assert (telemetry.expired_undecided, telemetry.expired_unseen) == (2, 1)
    assert telemetry.tickets_closed == {"expired": 2}
    assert telemetry.verdicts[("deny", "approvals", "approvals.expired", "a")] == 2


def test_a_stranger_makes_no_label_of_its_own() -> None:
    telemetry = Telemetry(lambda agent: False)
    Thread(telemetry).ask(0, "c1")
    assert [agent for _, _, _, agent in telemetry.verdicts] == ["(none)"]


def test_a_listener_that_fails_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def heard(self, record: Record, decisions: Any, agent: str) -> None:
            raise RuntimeError("broken")

    telemetry = Telemetry(lambda agent: True)
    telemetry.listeners.append(Broken())
    Thread(telemetry).ask(0, "c1")
    assert telemetry.tickets_opened == 1
    assert "a listener failed" in capsys.readouterr().out


def test_a_run_is_a_trace_with_a_span_a_call() -> None:
    telemetry, exporter = Telemetry(lambda agent: True), InMemorySpanExporter()
    traces = Traces(exporter)
    telemetry.listeners.append(traces)
    thread = Thread(telemetry)
    thread.say(0, RunStarted(BY, AgentId("a")))
    thread.ask(1, "c1", "read")
    thread.ask(2, "c2", "shell")
    thread.say(4, OutcomeReported(BY, CallId("c1"), "error", "password=hunter22"))
    thread.ask(5, "c3")
    thread.say(99, DeadlineReached(Sender("timer", "daemon"), 0))
    from gated.events import FinishRequested

    thread.say(100, FinishRequested(BY))
    traces.close()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"read", "shell", "pay", "run a"}
    root = spans["run a"]
    assert len({span.context.trace_id for span in spans.values()}) == 1
    assert all(
        span.parent is not None and span.parent.span_id == root.context.span_id for n, span in spans.items() if n != "run a"
    )
    assert root.parent is None
    assert root.end_time - root.start_time == 100 * 10**9  # type: ignore[operator]
    assert spans["read"].end_time - spans["read"].start_time == 3 * 10**9  # type: ignore[operator]
    assert spans["read"].attributes["gated.status"] == "error"  # type: ignore[index]
    assert spans["pay"].attributes["gated.code"] == "approvals.expired"  # type: ignore[index]
    assert spans["pay"].end_time - spans["pay"].start_time == 94 * 10**9  # type: ignore[operator]
    assert "hunter22" not in "".join(span.to_json() for span in spans.values())


def test_the_same_run_again_has_the_same_ids() -> None:
    ids = []
    for _ in range(2):
        telemetry, exporter = Telemetry(lambda agent: True), InMemorySpanExporter()
        traces = Traces(exporter)
        telemetry.listeners.append(traces)
        Thread(telemetry).ask(0, "c1", "shell")
        traces.close()
        ids += [(span.context.trace_id, span.context.span_id) for span in exporter.get_finished_spans()]
    assert ids[0] == ids[1]
