"""What a decision costs without a bus: decide, fold, record bytes and hash; replay, verify; memory of an idle run.

What is timed leaves nothing behind but the state: a gate hands its records over to the log, and does not keep them.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc

from gated.core.chain import ChainChecker
from gated.core.decide import record
from gated.core.policy import Policy, load_text
from gated.core.redaction.vault import Vault
from gated.core.replay import Replayer
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    AgentId,
    CallId,
    IntentsReceived,
    OutcomeReported,
    Record,
    RunId,
    RunStarted,
    Score,
    Sender,
    ThreadId,
    Wanted,
)

A = AgentId("a")
BY = Sender("agent", A)

PLAIN = """
version: 1
limits: {max_in_flight: 1000000, max_calls: 1000000}
agents:
  a:
    allowed_tools: [Read, Write, search]
    data_scope: {allowed_paths: [/workspace], base_path: /workspace}
    resource_budget: {max_steps: 1000000, max_calls: 1000000, max_total_cost_usd: 1000000}
    dcbf: {stability: {step_budget: 1000000}, resource: {limit_usd: 1000000}}
tools: {Read: {resources: {args: {file_path: path}}}}
"""


def machines(count: int, touching: int) -> str:
    """`count` machines of which `touching` watch Read and Write, the others tools that nobody calls."""
    lines = ["machines:"]
    for number in range(count):
        tool = "" if number < touching else f"Other{number}"
        lines.append(
            f"  - {{name: m{number}, key: '{{file_path}}', key_normalizer: path, initial: n, transitions: ["
            f"{{on: {tool or 'Read'}, from: '*', to: r}}, {{on: {tool or 'Write'}, from: [r, w], to: w}}]}}"
        )
    return PLAIN + "\n".join(lines) + "\n"


def contracts(count: int, applying: int) -> str:
    """`count` contracts of which `applying` are about `search`: one argument, and a count of the run."""
    asks = ("size(args.query) < 200", "run.counts[tool] < 1000000")
    lines = ["contracts:"]
    for number in range(count):
        tool = "search" if number < applying else f"Other{number}"
        lines.append(f"  - {{name: c{number}, on: {tool}, require: '{asks[number % len(asks)]}'}}")
    return PLAIN + "\n".join(lines) + "\n"


def play(
    policy: Policy,
    calls: int,
    *,
    files: int = 0,
    thread: str = "t",
    scores: dict[str, Score] | None = None,
    records: list[Record] | None = None,
) -> tuple[list[float], ThreadState]:
    """µs of each decision of a run that reports every outcome, intent in, record out; and the final state.

    `records` is given all that are made.
    """
    registry = Registry(policy, {policy.digest: policy}, Vault(b"bench"))
    run, spent, keep = RunId("r"), list[float](), (lambda record: None) if records is None else records.append
    step, sealed = record(registry, ThreadState(ThreadId(thread)), run, RunStarted(BY, agent=A), 0)
    for number in range(calls):
        assert sealed is not None
        keep(sealed)
        call = CallId(f"c{number}")
        wanted = Wanted(call, "search", {"query": f"late orders {number}"}, scores=scores)
        if files:
            wanted = Wanted(call, "Read", {"file_path": f"src/f{number % files}.py"})
        intent, state = IntentsReceived(BY, (wanted,), nesting="explicit"), step.state
        started = time.perf_counter_ns()
        step, sealed = record(registry, state, run, intent, number * 1000, number)
        spent.append((time.perf_counter_ns() - started) / 1000)
        assert sealed is not None
        keep(sealed)
        outcome = OutcomeReported(BY, call, "success", content="ok")
        step, sealed = record(registry, step.state, run, outcome, number * 1000)
    assert sealed is not None
    keep(sealed)
    return spent, step.state


def in_flight(policy: Policy, calls: int, files: int, repeats: int = 1000) -> list[float]:
    """µs of deciding a call while so many others are in flight on the same few instances; always from the same state."""
    registry, run = Registry(policy, {policy.digest: policy}, Vault(b"bench")), RunId("r")
    state = record(registry, ThreadState(ThreadId("t")), run, RunStarted(BY, agent=A), 0)[0].state
    spent: list[float] = []
    for number in range(calls + repeats):
        wanted = Wanted(CallId(f"c{number}"), "Read", {"file_path": f"src/f{number % files}.py"})
        started = time.perf_counter_ns()
        step, _ = record(registry, state, run, IntentsReceived(BY, (wanted,), nesting="explicit"), number)
        spent.append((time.perf_counter_ns() - started) / 1000)
        if number < calls:
            state = step.state
    return spent[calls:]


def percentiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return statistics.median(ordered), ordered[int(len(ordered) * 0.99)]


def measure(calls: int = 11_000) -> dict[str, float]:
    found: dict[str, float] = {}
    policy = load_text(PLAIN, "bench.yaml")
    play(policy, 300)
    gc.collect()
    gc.freeze()
    runs = [play(policy, 60, thread=f"w{n}")[0][10:60] for n in range(20)]
    early = [value for run in runs for value in run]
    spent, _ = play(policy, calls)
    late = spent[10_000:]
    found["decide_us_p50_10th"], found["decide_us_p99_10th"] = percentiles(early)
    found["decide_us_p50"], found["decide_us_p99"] = percentiles(spent)
    found["decide_us_p50_10000th"], found["decide_us_p99_10000th"] = percentiles(late)
    found["decide_us_p50_path_in_scope"] = percentiles(play(policy, 2000, files=50)[0])[0]
    for name, text, files in (
        ("100_machines_none_touching", machines(100, 0), 50),
        ("100_machines_10000_instances", machines(100, 1), 10_000),
        ("100_machines_5_touching", machines(100, 5), 50),
    ):
        spent, _ = play(load_text(text, "bench.yaml"), calls, files=files)
        found[f"decide_us_p50_{name}"] = percentiles(spent[-1000:])[0]
    crowded = in_flight(load_text(machines(100, 5), "bench.yaml"), calls=50, files=5)
    found["decide_us_p50_50_in_flight_on_5_instances"] = percentiles(crowded)[0]
    spent, _ = play(load_text(contracts(20, 2), "bench.yaml"), calls)
    found["decide_us_p50_20_contracts_2_applying"] = percentiles(spent[-1000:])[0]
    found |= _logs(policy, calls)
    found["bytes_per_idle_run"] = _memory(policy)
    return found


def _logs(policy: Policy, calls: int) -> dict[str, float]:
    records: list[Record] = []
    play(policy, calls, records=records)
    started = time.perf_counter()
    replayer = Replayer({policy.digest: policy}.get)
    assert all(replayer.feed(record) is None for record in records)
    replayed = time.perf_counter()
    checker = ChainChecker()
    assert all(checker.feed(n, record) is None for n, record in enumerate(records))
    verified = time.perf_counter()
    return {
        "replay_records_per_s": len(records) / (replayed - started),
        "verify_records_per_s": len(records) / (verified - replayed),
    }


def _memory(policy: Policy, runs: int = 500) -> float:
    """Bytes that an open run with ten ended calls keeps in memory."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = [play(policy, 10, thread=f"m{number}")[1] for number in range(runs)]
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / len(kept)
