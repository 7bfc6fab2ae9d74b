"""One observation being handled: the decisions so far, and the state as they leave it.

A turn is the only thing in the core that is written to, and it lives as long as one call of `decide.step`. A call of a batch
sees what the calls before it did, since every decision is applied the moment it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from gated import canonical
from gated.core.flags import FLAGS
from gated.core.fold import apply
from gated.core.order.touching import Touched
from gated.core.policy import Policy, Profile
from gated.core.redaction.cover import Cover, keys
from gated.core.redaction.subjects import key_of, subject_of
from gated.core.redaction.vault import Unreadable, Vault
from gated.core.state import RunState, ThreadState
from gated.core.tickets import Ticket
from gated.events import (
    AgentId,
    CallDecided,
    CallId,
    CallRefused,
    Decision,
    PolicyRebound,
    Remaining,
    RunAnswered,
    RunEnded,
    RunId,
    RunOpened,
    TicketAnswered,
    TicketClosed,
    TicketId,
    UngatedExecution,
    Value,
)


class Repeat(Struct, frozen=True, gc=False):
    """A known call asked again: the answer is the verdict in record `seq`, under the policy of then, marked as replayed.

    `settled`: its outcome is in, so whoever asks must not run it again.
    """

    call: CallId
    seq: int
    policy: str
    settled: bool = False


class Unscored(Struct, frozen=True, gc=False):
    """What detectors must be asked before this can be decided well: about a call's arguments, or (`result`) about a result."""

    call: CallId
    tool: str
    value: Any
    detectors: tuple[str, ...]
    result: bool = False


class Unfollowed(Struct, frozen=True, gc=False):
    """Paths of a call that must be looked at on the disk before it can be decided well: do links lead them elsewhere?"""

    call: CallId
    paths: tuple[str, ...]


Reply = Repeat | CallDecided | CallRefused | Remaining | RunAnswered | TicketAnswered | UngatedExecution


class Registry(Struct, frozen=True, gc=False):
    """The policies that runs are bound to, by digest, and the one that new runs get."""

    current: Policy
    known: Mapping[str, Policy]
    vault: Vault | None = None  # None: nothing is taken out, what was sealed stays shut (a replay)
    again: bool = False  # a record is decided again: what cannot be opened raises `Unreadable`
    flags: tuple[int, ...] = FLAGS  # the logic in force; a record that is decided again has its own


_BINDING: Final = frozenset({RunOpened, PolicyRebound})


class Turn:
    """`decisions` are for the record; `replies` change nothing and are answered without one.

    `opened` is the run, None where there is none (yet); `policy` is what it is bound to, or without a run the current one;
    `profile` is its agent's, or without a run nobody's. `unscored` is what detectors were not asked about, `unfollowed` the
    paths whose links nobody followed: whoever can should, and decide again. `cover` takes out of the decisions what must not
    be written. `vault` seals for `subject`, where the policy keeps what was taken out. `flags` are the logic flags that were
    asked for and are in force.
    """

    __slots__ = (
        "at",
        "cover",
        "decisions",
        "flags",
        "opened",
        "policy",
        "profile",
        "registry",
        "replies",
        "run_id",
        "state",
        "subject",
        "unfollowed",
        "unscored",
        "vault",
    )

    opened: RunState | None
    policy: Policy
    profile: Profile
    vault: Vault | None
    subject: str
    unscored: tuple[Unscored, ...]
    unfollowed: tuple[Unfollowed, ...]
    flags: tuple[int, ...]

    def __init__(self, registry: Registry, state: ThreadState, run_id: RunId, at: int, cover: Cover | None = None) -> None:
        self.registry = registry
        self.state = state
        self.run_id = run_id
        self.at = at if at > state.at else state.at
        self.decisions: list[Decision] = []
        self.replies: list[Reply] = []
        self.unscored = self.unfollowed = self.flags = ()
        self.cover = cover
        self._bind()

    def _bind(self) -> None:
        """Find the run, and what it is bound to."""
        registry, runs = self.registry, self.state.runs
        run = self.opened = runs.open.get(self.run_id) or runs.get(self.run_id)
        if run is None:
            policy = self.policy = registry.current
            self.profile = policy.nobody
        else:
            policy = self.policy = registry.known[run.policy]
            self.profile = policy.profile(run.agent)
        self.vault, self.subject, kind = registry.vault, "", policy.redactor.subject
        if kind is not None and self.vault is not None:
            self.subject = subject_of(kind, self.state.thread, self.run_id, {} if run is None else run.labels)
            self.vault = self.vault.of_subject(self.subject)

    @property
    def run(self) -> RunState:
        """The run, where it is certain that there is one."""
        assert self.opened is not None
        return self.opened

    def do(self, decision: Decision) -> None:
        if self.cover is not None:
            decision = self.cover.decision(decision)
        self.decisions.append(decision)
        before, run_id = self.state, self.run_id
        state = self.state = apply(self.registry.known, before, run_id, before.seq + 1, self.at, decision)
        if type(decision) in _BINDING:  # `isinstance` that is no costs ten times as much for these types
            self._bind()
        else:
            self.opened = state.runs.open.get(run_id) or state.runs.get(run_id)

    def reveal(self, args: dict[str, Value], sealed: str | None, tool: str) -> dict[str, Value]:
        """The arguments of a call of before, as they were said. Raises `Unreadable` where they were sealed and stay so."""
        if sealed is None:
            return args
        if self.vault is None:
            raise Unreadable(f"the arguments of `{tool}` were redacted", key_of(sealed))
        try:
            opened: dict[str, Value] = self.vault.open(sealed)
        except Unreadable as error:
            raise Unreadable(f"the arguments of `{tool}` were {error}", error.key) from error
        self.cover = self.cover or Cover(self.policy.redactor, self.vault)
        self.cover.value(opened, tool)
        return opened

    def digest(self, tool: str, args: dict[str, Value]) -> str:
        """What stands for a call: keyed where something in its arguments is redacted."""
        vault = self.vault
        if vault is None or not self.policy.redactor.redact(args, tool, vault)[1]:
            return canonical.args_digest(tool, args)
        return vault.args_digest(tool, args)

    def writable(self, touched: Touched) -> Touched:
        """The machine instances that a call bears on, under keys that may be written."""
        vault, redactor = self.vault, self.policy.redactor
        if vault is None or not redactor.active or not touched.touches:
            return touched
        if not redactor.suspects_keys(touched.keys):
            return touched
        touches = keys(touched.touches, redactor, vault)
        if touches is touched.touches:
            return touched
        self.cover = self.cover or Cover(redactor, vault)
        self.cover.note_key()
        return replace(touched, touches=touches, keys=tuple(dict.fromkeys(touch.key for touch in touches)))

    @property
    def must_open(self) -> bool:
        """Whether what cannot be opened ends the turn: a record that is decided again is not replayable then."""
        return self.registry.again or self.registry.vault is None

    def follows(self, flag: int) -> bool:
        """Whether the logic of a flag is in force; the record will say so."""
        if flag not in self.registry.flags:
            return False
        if flag not in self.flags:
            self.flags = (*self.flags, flag)
        return True

    def refuse(self, code: str, reason: str, call: CallId | None = None, ticket: TicketId | None = None) -> None:
        """Not taken. Past the cap of recorded refusals it is answered and not recorded."""
        self._record_up_to_cap(CallRefused(code=code, reason=reason, call=call, ticket=ticket))

    def turn_away(self, decision: CallDecided) -> None:
        """A denial that leaves no trace in the run (`known` is false): recorded up to the same cap."""
        self._record_up_to_cap(decision)

    def _record_up_to_cap(self, decision: CallRefused | CallDecided) -> None:
        run = self.opened
        refusals = self.state.refusals if run is None else run.refusals
        if refusals >= self.policy.limits.max_refusals:
            self.replies.append(decision)
        else:
            self.do(decision)

    def end(self, ended: RunEnded) -> None:
        """End the run; what still waits for people is cancelled, a denial for each call."""
        self.do(ended)
        for ticket in sorted(self.run.tickets.open.values(), key=lambda ticket: ticket.number):
            self.close_ticket(ticket.id, "cancelled", f"the run ended before anyone answered: {ended.status}")

    def close_ticket(self, ticket_id: TicketId, state: Literal["expired", "cancelled"], reason: str) -> None:
        """Close a ticket that nobody answered, with the terminal denial of each of its calls."""
        ticket = self.run.tickets[ticket_id]
        self.do(TicketClosed(ticket=ticket_id, state=state))
        self.deny_waiting(ticket, state, reason)

    def deny_waiting(self, ticket: Ticket, state: Literal["expired", "cancelled", "rejected"], reason: str) -> None:
        """The terminal denial of every call that waited on a ticket."""
        for call in ticket.calls:
            self.do(
                CallDecided(
                    call=call.call,
                    tool=call.tool,
                    args_sha256=call.args_sha256,
                    decision="deny",
                    stage="approvals",
                    code=f"approvals.{state}",
                    reason=reason,
                    ticket=ticket.id,
                    hop=False,
                )
            )
            self._answer_anew(call.call)

    def _answer_anew(self, call: CallId) -> None:
        """Who asked for a call earlier in this turn is told what became of it since, not what was recorded before."""
        for place, reply in enumerate(self.replies):
            if isinstance(reply, Repeat) and reply.call == call:
                self.replies[place] = replace(reply, seq=self.state.seq + 1, policy=self.run.policy)


def may_speak(turn: Turn, agent: AgentId) -> tuple[str, str] | None:
    """Why `agent` may not speak for the run: code and reason. A stranger learns nothing else."""
    owner = turn.state.owner
    if owner is not None and owner != agent:
        shared = turn.registry.current.shared
        if not any(owner in group and agent in group for group in shared):
            return "lifecycle.not_thread_owner", f"the thread belongs to another agent than `{agent}`"
    run = turn.opened
    if run is not None and run.agent != agent:
        return "lifecycle.not_run_owner", f"the run belongs to another agent than `{agent}`"
    return None
