"""Calls on machines without the rest of the core: what decide and fold do with the engine, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import msgspec

from gated.core.order import engine
from gated.core.order.engine import Settlement
from gated.core.order.machines import Machine, MachineEntry, compile_machine
from gated.core.order.state import OrderState
from gated.core.order.touching import MachineSet
from gated.events import CallId, Finding, RunId, Status, Touch

R1, R2 = RunId("r1"), RunId("r2")


def machine(name: str = "m", **entry: Any) -> Machine:
    return compile_machine(msgspec.convert({"name": name, "initial": "s", "transitions": [], **entry}, MachineEntry))


def step(on: str, source: Any, to: str, **more: Any) -> dict[str, Any]:
    return {"on": on, "from": source, "to": to, **more}


class Thread:
    """A thread's machines. `call` decides and admits, `end` settles, `run` does both."""

    def __init__(self, *machines: Machine, order: OrderState | None = None) -> None:
        self.machines = MachineSet(machines)
        self.order = OrderState() if order is None else order
        self.touches: dict[tuple[RunId, CallId], tuple[Touch, ...]] = {}
        self._ids = count()

    def gate(self, tool: str, args: Mapping[str, Any] | None = None, run: RunId = R1) -> tuple[Finding, ...]:
        return engine.gate(self.machines, self.order, run, tool, self.machines.touches(tool, args or {}), args or {})

    def call(
        self,
        tool: str,
        args: Mapping[str, Any] | None = None,
        run: RunId = R1,
        call: str | None = None,
        approved: bool = False,
    ) -> tuple[Finding, ...]:
        """Decide; what is not denied is admitted. `approved`: people say yes to what is asked."""
        touched = self.machines.touches(tool, args or {})
        findings = engine.gate(self.machines, self.order, run, tool, touched, args or {})
        acted = [f for f in findings if f.authoritative and f.outcome in ("deny", "ask")]
        denied = any(f.outcome == "deny" for f in acted)
        asked = {(f.machine, f.key) for f in acted if f.outcome == "ask"}
        decision = "deny" if denied else "suspend" if asked and not approved else "allow"
        self.order = engine.count(self.order, findings, "order" if decision != "allow" else None, decision, tool)
        if decision == "allow":
            self.admit(CallId(call or f"c{next(self._ids)}"), engine.override(touched, asked), run)
        return findings

    def admit(self, call: CallId, touches: tuple[Touch, ...], run: RunId = R1) -> None:
        self.touches[run, call] = touches
        self.order = engine.admit(self.order, self.machines, run, call, touches)

    def end(
        self,
        call: str,
        status: Status = "success",
        content: Any = None,
        facts: Mapping[str, Any] | None = None,
        run: RunId = R1,
    ) -> Settlement:
        touches = self.touches.pop((run, CallId(call)))
        settled = engine.settle(self.machines, self.order, run, CallId(call), touches, status, content, facts or {})
        self.order = engine.advance(self.order, self.machines, run, CallId(call), touches, settled.moves, settled.reminders)
        return settled

    def run(self, tool: str, args: Mapping[str, Any] | None = None, run: RunId = R1, **outcome: Any) -> Settlement:
        call = f"run{next(self._ids)}"
        findings = self.call(tool, args, run, call)
        assert not [f for f in findings if f.outcome == "deny"], findings
        return self.end(call, run=run, **outcome)

    def states(self, run: RunId = R1) -> dict[str, dict[str, str]]:
        return self.order.view(run)


def said(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(finding.outcome, finding.code) for finding in findings]


READ_BEFORE_WRITE = machine(
    "read-before-write",
    key="{file_path}",
    key_normalizer="path",
    initial="unread",
    terminal=["written"],
    transitions=[
        step('Read(file_path ~ "*")', ["unread", "read", "written"], "read"),
        step(
            'Write(file_path ~ "*")',
            "read",
            "written",
            when={"status": "success"},
            emit={"target": "system", "content": "Wrote {file_path}", "cooldown_turns": 2},
            on_violation={"action": "deny", "reason": "Read {file_path} before writing."},
        ),
    ],
)
