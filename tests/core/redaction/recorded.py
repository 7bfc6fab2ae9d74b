"""One thread decided by the core, and the log that it leaves."""

from __future__ import annotations

from typing import Any

from gated.core.decide import record
from gated.core.fold import fold
from gated.core.policy import Policy, load_text
from gated.core.redaction.vault import Vault
from gated.core.replay import Replayer
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    Body,
    CallDecided,
    CallId,
    Decision,
    IntentsReceived,
    Observation,
    Record,
    RunId,
    Sender,
    ThreadId,
    Wanted,
    unseal,
)

AGENT, ANA = Sender("agent", "a"), Sender("approver", "ana")
VAULT = Vault(b"k" * 32)
TOKEN = "Bearer eyJhbGciOi.secretsecret.sig"

POLICY = """
version: 1
redact: {detectors: [secrets, email, card, ssn, iban, phone], fields: [note, "send(body)"]}
agents:
  a:
    allowed_tools: [send, pay, Read, Write, look]
    approval_required: [pay]
    data_scope: any
machines:
  - {name: once, key: "{to}", initial: n, transitions: [
      {on: send, from: n, to: sent, when: any, on_violation: {action: deny, reason: "already wrote to {to}"}}]}
  - {name: noted, key: "{note}", initial: n, transitions: [{on: look, from: n, to: seen, when: any}]}
contracts:
  - {name: kept, on: Read, ensure: 'args.path.startsWith("bob@")'}
approvals: {default: {approvers: [user:ana], may_answer: true}}
"""


class Gate:
    """One thread and its log."""

    def __init__(self, text: str = POLICY, vault: Vault = VAULT) -> None:
        self.policy: Policy = load_text(text, file="p.yaml")
        self.known = {self.policy.digest: self.policy}
        self.vault, self.state = vault, ThreadState(ThreadId("t"))
        self.log: list[Record] = []

    def say(self, said: Observation) -> tuple[Decision, ...]:
        at = 1_000_000 * (len(self.log) + 1)
        step, sealed = record(Registry(self.policy, self.known, self.vault), self.state, RunId("r"), said, at)
        self.state = step.state
        if sealed is not None:
            self.log.append(sealed)
        return step.decisions

    def ask(self, call: str, tool: str, **args: Any) -> CallDecided:
        made = self.say(IntentsReceived(AGENT, (Wanted(CallId(call), tool, args),)))
        return next(d for d in made if isinstance(d, CallDecided))

    def restart(self) -> None:
        """Only the log is left."""
        state = ThreadState(ThreadId("t"))
        for stored in self.log:
            state = fold(self.known, state, unseal(stored), stored.hash)
        assert state == self.state
        self.state = state

    def body(self, index: int = -1) -> Body:
        return unseal(self.log[index])

    def text(self) -> str:
        return "\n".join(stored.body.decode() for stored in self.log)

    def replay(self) -> Replayer:
        replayer = Replayer(self.known.get)
        for stored in self.log:
            assert replayer.feed(stored) is None
        return replayer
