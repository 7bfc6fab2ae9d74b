"""`redact: {store: encrypted}`: what is taken out is kept under a key of its subject, and gone with it."""

from typing import Any

import pytest
from hypothesis import given
from msgspec import UNSET
from msgspec.structs import replace

from core.redaction.recorded import AGENT, ANA, POLICY, TOKEN, VAULT, Gate
from core.redaction.test_records import CALLS
from gated.core.decide import record
from gated.core.policy import load_text
from gated.core.redaction.opened import opened_body, said_in
from gated.core.redaction.subjects import Held, KeysAtHand, SubjectKey, Unkeyed, parsed, subject_of
from gated.core.redaction.vault import Unreadable, Vault
from gated.core.replay import Replayer
from gated.core.turn import Registry
from gated.core.whatif import WhatIf
from gated.documents import DocumentError
from gated.events import (
    AgentId,
    CallDecided,
    CallId,
    CallRefused,
    DataErased,
    Decision,
    ErasureRequested,
    IntentsReceived,
    Observation,
    OutcomeReported,
    Remember,
    ResolutionReceived,
    RunId,
    RunStarted,
    Sender,
    ThreadId,
    TicketClosed,
    TicketOpened,
    Wanted,
)

OPERATOR = Sender("operator", "dpo")
IBAN = "DE89 3704 0044 0532 0130 00"
ENCRYPTED = POLICY.replace("fields:", "store: encrypted, fields:")
BY_CUSTOMER = POLICY.replace("fields:", 'store: encrypted, subject: "label:customer", fields:')


class Kept(Gate):
    """A gate whose keys of subjects are made when they are needed."""

    def __init__(self, text: str = ENCRYPTED) -> None:
        self.keys = KeysAtHand()
        self.made = 0
        super().__init__(text, VAULT.with_keys(self.keys))

    def say(self, said: Observation) -> tuple[Decision, ...]:
        while True:
            try:
                return super().say(said)
            except Unkeyed as missing:
                held = self.keys.held.get(missing.holder, Held())
                key = held.key
                if missing.to_seal and key is None:
                    self.made += 1
                    key = SubjectKey(bytes([self.made]) * 32)
                self.keys.held[missing.holder] = Held(key, held.erased)

    def forget(self, subject: str) -> tuple[str, ...]:
        """Erase a key, as the shell does; the log is told afterwards."""
        holder = VAULT.holder(subject)
        held = self.keys.held[holder]
        assert held.key is not None
        self.keys.held[holder] = Held(None, (*held.erased, held.key.id))
        return self.keys.held[holder].erased

    def erase(self, subject: str) -> tuple[Decision, ...]:
        return self.say(ErasureRequested(OPERATOR, subject, self.forget(subject), "asked by letter"))

    def reader(self) -> Vault:
        return VAULT.with_keys(KeysAtHand(self.keys.held, whole=True))

    def with_keys(self, erased: frozenset[str] = frozenset()) -> Replayer:
        replayer = Replayer(self.known.get, vault=self.reader(), erased=erased)
        for stored in self.log:
            assert replayer.feed(stored) is None
        return replayer

    def ticket(self) -> TicketOpened:
        return next(d for d in self.body().decisions if isinstance(d, TicketOpened))

    def answer(self, opened: TicketOpened, decision: Any = "approve", **more: Any) -> tuple[Decision, ...]:
        return self.say(ResolutionReceived(ANA, opened.ticket, decision, "d1", opened.args_sha256, **more))


def verdict(made: tuple[Decision, ...]) -> CallDecided:
    return next(d for d in made if isinstance(d, CallDecided))


def test_what_was_said_is_kept_under_the_key_of_its_thread() -> None:
    gate, args = Kept(), {"auth": TOKEN, "n": 1}
    gate.ask("c1", "look", **args)
    body = gate.body()
    assert body.subject == "thread:t"
    assert "secretsecret" not in gate.text()
    assert isinstance(body.sealed, str)
    parts = parsed(body.sealed)
    assert parts is not None
    assert (parts.holder, parts.key) == (VAULT.holder("thread:t"), SubjectKey(b"\1" * 32).id)
    said = said_in(body, gate.reader())
    assert isinstance(said, IntentsReceived)
    assert said.calls[0].args == args
    gate.restart()


def test_what_holds_nothing_makes_no_key() -> None:
    gate = Kept()
    gate.say(RunStarted(AGENT, AgentId("a"), task="plain"))
    gate.ask("c1", "look", q="plain")
    gate.say(OutcomeReported(AGENT, CallId("c1"), "success", "plain"))
    assert (gate.made, gate.keys.held) == (0, {})
    assert {gate.body(i).subject for i in range(3)} == {UNSET}


def test_the_same_text_seals_to_the_same_bytes_and_another_under_another_nonce() -> None:
    key = SubjectKey(b"k" * 32)
    assert key.seal("h", b"a") == key.seal("h", b"a")
    nonces = [parsed(key.seal("h", text)) for text in (b"a", b"b")]
    assert len({parts.text[:16] for parts in nonces if parts}) == 2
    sealed = parsed(key.seal("h", b"a"))
    assert sealed is not None
    with pytest.raises(Unreadable, match="damaged"):
        key.open(sealed._replace(holder="other"))
    with pytest.raises(Unreadable, match="damaged"):
        key.open(sealed._replace(text="AAAA" + sealed.text[4:]))


def test_with_the_keys_every_record_is_decided_again() -> None:
    gate = Kept()
    gate.say(RunStarted(AGENT, AgentId("a"), task="write to ana@x.example"))
    gate.ask("c1", "pay", iban=IBAN)
    opened = gate.ticket()
    assert verdict(gate.answer(opened)).decision == "allow"
    gate.say(OutcomeReported(AGENT, CallId("c1"), "error", {"said": "no user ana@x.example"}))
    gate.ask("c2", "send", to="ana@x.example", body="hello")
    gate.ask("c3", "Read", path="bob@y.example")
    gate.say(OutcomeReported(AGENT, CallId("c3"), "success", "ok"))
    replayed = gate.with_keys()
    assert (replayed.records, replayed.skipped) == (len(gate.log), 0)
    assert gate.replay().skipped > 3


def test_a_waiting_call_runs_with_what_was_asked_until_its_key_is_erased() -> None:
    gate = Kept()
    gate.ask("c1", "pay", iban=IBAN)
    opened = gate.ticket()
    gate.restart()
    gate.forget("thread:t")  # and the log is not told yet
    made = gate.answer(opened)
    assert isinstance(made[0], CallRefused)
    assert made[0].code == "approvals.crashed"
    key = SubjectKey(b"\1" * 32).id
    why = f"the arguments of `pay` were erased with the key {key} of their subject: it can only be rejected"
    assert made[0].reason == why
    replayed = gate.with_keys(frozenset({key}))
    assert [item.seq for item in replayed.not_replayable] == [1, 2]
    assert all(f"erased with the key {key}" in item.why for item in replayed.not_replayable)


def test_an_erasure_ends_what_waits_for_people() -> None:
    gate = Kept()
    gate.ask("c1", "pay", iban=IBAN)
    opened = gate.ticket()
    gate.ask("c2", "pay", amount=1)
    made = gate.erase("thread:t")
    key = SubjectKey(b"\1" * 32).id
    assert made[0] == DataErased("thread:t", (key,))
    assert made[1] == TicketClosed(ticket=opened.ticket, state="cancelled")
    ended = verdict(made)
    assert (ended.call, ended.decision, ended.code) == ("c1", "deny", "approvals.cancelled")
    assert ended.reason == "its arguments were erased with the data of `thread:t`"
    assert len(made) == 3, "what waits with nothing sealed goes on waiting"
    assert gate.state.erased[RunId("r")] == (key,)
    late = gate.answer(opened)
    assert getattr(late[0], "code", "") == "approvals.already_decided"
    gate.restart()


def test_after_an_erasure_the_chain_holds_and_a_replay_names_what_is_gone() -> None:
    gate = Kept()
    gate.ask("c1", "pay", iban=IBAN)
    gate.ask("c2", "send", to="ana@x.example")
    gate.erase("thread:t")
    before = len(gate.log)
    gate.ask("c3", "pay", iban=IBAN)
    key = SubjectKey(b"\1" * 32).id
    replayed = gate.with_keys()
    assert [(item.seq, f"erased with the key {key}" in item.why) for item in replayed.not_replayable] == [(1, True), (2, True)]
    assert replayed.records == len(gate.log) - 2, "the erasure itself, and what came after it under a new key"
    without = Replayer(gate.known.get, erased=frozenset({key}))
    for stored in gate.log:
        assert without.feed(stored) is None
    assert [f"erased with the key {key}" in item.why for item in without.not_replayable] == [True, True, False]
    for body in (gate.body(i) for i in range(before - 1)):
        with pytest.raises(Unreadable, match="erased"):
            said_in(body, gate.reader())
    assert said_in(gate.body(), gate.reader()) != gate.body().observation


def test_an_erasure_that_is_told_again_changes_nothing() -> None:
    gate = Kept()
    gate.ask("c1", "look", auth=TOKEN)
    gate.erase("thread:t")
    keys = gate.state.erased[RunId("r")]
    assert gate.say(ErasureRequested(OPERATOR, "thread:t", keys)) == ()
    refused = gate.say(ErasureRequested(OPERATOR, "thread:other"))
    assert getattr(refused[0], "code", "") == "ingress.id"


def test_what_a_stranger_said_is_erased_though_it_opened_no_run() -> None:
    gate = Kept()
    gate.say(IntentsReceived(Sender("agent", "stranger"), (Wanted(CallId("c1"), "look", {"auth": TOKEN}),)))
    assert gate.body().subject == "thread:t"
    assert isinstance(gate.erase("thread:t")[0], DataErased)
    gate.restart()
    assert gate.with_keys().skipped == 1


def test_a_subject_by_a_label_and_its_name_where_that_is_personal() -> None:
    gate = Kept(BY_CUSTOMER)
    gate.say(RunStarted(AGENT, AgentId("a"), labels={"customer": "ana@x.example"}))
    gate.ask("c1", "look", auth=TOKEN)
    marked = f"label:customer=[redacted email {VAULT.digest('ana@x.example')[:12]}]"
    assert [gate.body(i).subject for i in range(2)] == [marked, marked]
    made = gate.say(ErasureRequested(OPERATOR, "label:customer=ana@x.example", gate.forget(marked)))
    assert made == (DataErased(marked, (SubjectKey(b"\1" * 32).id,)),)
    assert "ana@x" not in gate.text()
    assert gate.replay().skipped == 0, "no rule reads what was taken out"


@pytest.mark.parametrize(
    ("kind", "subject"),
    [("thread", "thread:t"), ("run", "run:t/r"), ("label:customer", "label:customer=42"), ("label:other", "thread:t")],
)
def test_whose_data_it_is(kind: str, subject: str) -> None:
    assert subject_of(kind, ThreadId("t"), RunId("r"), {"customer": "42"}) == subject


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{subject: thread}", "needs `store: encrypted`"),
        ("{store: encrypted, detectors: []}", "keeps what is redacted"),
        ("{store: encrypted, subject: nobody}", "subject"),
        ("{store: sealed}", "store"),
    ],
)
def test_settings_that_contradict_one_another(text: str, match: str) -> None:
    with pytest.raises(DocumentError, match=match):
        load_text(f"version: 1\nredact: {text}\n", file="p.yaml")


def test_nothing_is_recorded_while_the_key_is_not_at_hand() -> None:
    gate = Kept()
    registry = Registry(gate.policy, gate.known, VAULT.with_keys(KeysAtHand()))
    asked = IntentsReceived(AGENT, (replace(_wanted(), args={"auth": TOKEN}),))
    with pytest.raises(Unkeyed) as missing:
        record(registry, gate.state, RunId("r"), asked, 1)
    assert (missing.value.holder, missing.value.to_seal) == (VAULT.holder("thread:t"), True)


def _wanted() -> Any:
    gate = Kept()
    gate.ask("c1", "look")
    observation = gate.body().observation
    assert isinstance(observation, IntentsReceived)
    return observation.calls[0]


def test_what_if_reads_what_was_kept() -> None:
    gate = Kept()
    gate.ask("c1", "look", iban=IBAN)
    stricter = load_text(ENCRYPTED.replace("[send, pay, Read, Write, look]", '["look(iban = \\"x\\")"]'), file="new.yaml")
    assert [found.outcome for stored in gate.log for found in WhatIf(stricter).feed(stored)] == ["not_replayable"]
    assert [found.outcome for stored in gate.log for found in WhatIf(stricter, vault=gate.reader()).feed(stored)] == ["flipped"]


def test_what_if_says_of_no_approval_what_it_cannot_read() -> None:
    gate = Kept()
    gate.ask("c1", "pay", iban=IBAN)
    gate.answer(gate.ticket())
    stricter = load_text(ENCRYPTED.replace("[send, pay, Read, Write, look]", '["pay(iban = \\"x\\")"]'), file="new.yaml")
    whatif = WhatIf(stricter)
    found = [said for stored in gate.log for said in whatif.feed(stored)]
    assert [(said.what, said.outcome, said.derived) for said in found] == [
        (what, "not_replayable", None) for what in ("call", "approval")
    ]


def outcomes(gate: Kept) -> list[tuple[str, str, str]]:
    """What its own policy says of a log, read with the keys: no verdict may flip."""
    whatif = WhatIf(gate.policy, vault=gate.reader())
    return [(found.call, found.outcome, found.why) for stored in gate.log for found in whatif.feed(stored)]


def test_what_if_knows_opened_calls_by_the_digests_that_were_remembered() -> None:
    gate = Kept()
    assert gate.ask("c1", "pay", iban=IBAN).decision == "suspend"
    gate.answer(gate.ticket(), remember=Remember("call"))
    assert gate.ask("c2", "pay", iban=IBAN).decision == "allow"
    assert gate.ask("c3", "pay", iban=IBAN, n=2).decision == "suspend"
    assert [said[:2] for said in outcomes(gate)] == [(call, "unchanged") for call in ("c1", "c1", "c2", "c3")]


def test_what_if_says_where_keys_that_are_gone_leave_a_machine_unknown() -> None:
    gate, bob = Kept(), "bob@example.com"
    assert gate.ask("c1", "send", to=bob).decision == "allow"
    gate.say(OutcomeReported(AGENT, CallId("c1"), "success", "ok"))
    assert gate.ask("c2", "send", to=bob).decision == "deny"
    assert [said[1] for said in outcomes(gate)] == ["unchanged", "unchanged"]
    gate.erase("thread:t")
    assert [gate.ask(call, "send", to=to).decision for call, to in (("c3", bob), ("c4", "desk"))] == ["deny", "allow"]
    unread = "machine `once` reads the arguments, which were redacted"
    assert outcomes(gate) == [
        ("c1", "not_replayable", unread),
        ("c2", "not_replayable", unread),
        ("c3", "not_replayable", "machine `once` was moved by calls whose arguments were redacted"),
        ("c4", "unchanged", ""),
    ]


def test_a_ticket_is_opened_whole_for_an_auditor() -> None:
    gate = Kept()
    gate.ask("c1", "pay", iban=IBAN)
    opened = next(d for d in opened_body(gate.body(), gate.reader()).decisions if isinstance(d, TicketOpened))
    assert opened.calls[0].args == {"iban": IBAN}
    gate.forget("thread:t")
    shut = opened_body(gate.body(), gate.reader())
    assert shut == gate.body()


@given(CALLS)
def test_with_the_keys_whatever_was_said_is_decided_again(calls: list[tuple[str, dict[str, Any], str, Any]]) -> None:
    gate = Kept()
    for number, (tool, args, status, content) in enumerate(calls):
        decided = gate.ask(f"c{number}", tool, **args)
        if decided.decision == "suspend":
            gate.answer(next(d for d in gate.body().decisions if isinstance(d, TicketOpened)))
        elif decided.decision == "allow" and status != "none":
            gate.say(OutcomeReported(AGENT, CallId(f"c{number}"), status, content))  # type: ignore[arg-type]
    gate.restart()
    replayed = gate.with_keys()
    assert (replayed.records, replayed.skipped) == (len(gate.log), 0)
