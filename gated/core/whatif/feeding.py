"""A log under another policy, record by record."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from gated.core import trial
from gated.core.policy import Policy
from gated.core.redaction.opened import opened_body
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.whatif.compared import Compared
from gated.core.whatif.counting import OpenRuns
from gated.core.whatif.following import Step
from gated.core.whatif.memory import Memory, OnTrial
from gated.events import Record, ThreadId, unseal


class WhatIf:
    """Feed it the records of a log in order; each thread is followed by itself."""

    def __init__(
        self, policy: Policy, begun: Mapping[ThreadId, ThreadState] = MappingProxyType({}), vault: Vault | None = None
    ) -> None:
        """`begun` are the states of threads whose first records are not here; a `vault` opens what was kept encrypted."""
        self._vault, self._states = vault, dict(begun)
        memory = Memory(OpenRuns(begun.values()))
        self._trial = OnTrial(policy, trial.bound(policy), trial.bound(trial.observed(policy)), memory)

    def feed(self, record: Record) -> tuple[Compared, ...]:
        """What the policy says of one record."""
        body = unseal(record) if self._vault is None else opened_body(unseal(record), self._vault)
        state = self._states.get(body.thread) or ThreadState(body.thread)
        step = Step(self._trial, body, state)
        step.play()
        self._states[body.thread] = replace(step.state, seq=body.seq, at=max(state.at, body.at))
        self._trial.memory.open.note(body)
        return tuple(step.found)

    def pass_by(self, record: Record) -> None:
        """A record of a thread that is not followed: only its open runs count."""
        self._trial.memory.open.note(unseal(record))
