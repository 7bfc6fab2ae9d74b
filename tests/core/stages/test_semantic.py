"""The semantic stage: what is recorded and replayed, what is kept of results, and what is refused when it is loaded.

Its behaviour over a run stands in `tests/scenarios/semantic.yaml`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gated.core import state as states
from gated.core.decide import Step, record, step
from gated.core.policy import Policy, load_text
from gated.core.replay import replay
from gated.core.scores import with_answers
from gated.core.stages import semantic
from gated.core.stages.semantic import MARK, MAX_MARKS, Seen, remember
from gated.core.state import ThreadState
from gated.core.turn import Registry, Unscored
from gated.core.writing import write_json
from gated.documents import DocumentError
from gated.events import (
    AgentId,
    CallDecided,
    CallId,
    Fingerprints,
    IntentsReceived,
    Observation,
    OutcomeReported,
    Reading,
    Record,
    RunId,
    Score,
    Sender,
    ThreadId,
    Wanted,
    unseal,
)

BY = Sender("agent", "a")
HEAD = 'version: 1\nagents: {a: {allowed_tools: ["*"], forbidden_tools: [shell], data_scope: any}}\n'
ALL = HEAD + (
    "semantic: {secrets: {}, exfiltration: {}, injection: {}, drift: {}, judge: {nats: judge}}\n"
    "tools: {read_inbox: {sensitive: true}, post: {outbound: true}}\n"
)
C = CallId("c")
GOOD = {name: Score(0) for name in ("secrets", "drift", "judge")}


def registry(policy: Policy) -> Registry:
    return Registry(policy, {policy.digest: policy})


def decide(policy: Policy, state: ThreadState, said: Observation, at: int = 0) -> tuple[Step, Record]:
    made, sealed = record(registry(policy), state, RunId("r"), said, at, state.seq + 1)
    assert sealed is not None
    return made, sealed


def intents(*calls: Wanted, **other: Any) -> IntentsReceived:
    return IntentsReceived(BY, calls, **other)


def verdicts(made: Step) -> list[tuple[str, str | None]]:
    return [(d.decision, d.code) for d in made.decisions if isinstance(d, CallDecided)]


# --- who is asked ---------------------------------------------------------------------------------------------------------


def test_detectors_are_asked_only_about_calls_that_every_earlier_stage_lets_pass() -> None:
    policy = load_text(ALL, "p.yaml")
    made, _ = decide(policy, ThreadState(ThreadId("t")), intents(Wanted(C, "shell"), Wanted(CallId("d"), "post", {"x": 1})))
    assert made.unscored == (Unscored(CallId("d"), "post", {"x": 1}, ("secrets", "drift", "judge")),)
    assert verdicts(made) == [("deny", "privilege.forbidden"), ("suspend", "semantic.unavailable")]


def test_with_their_answers_the_same_message_is_decided_and_nobody_is_asked_again() -> None:
    policy, empty, said = load_text(ALL, "p.yaml"), ThreadState(ThreadId("t")), intents(Wanted(C, "post"))
    answered = with_answers(said, {C: {**GOOD, "judge": Score(700_000, "odd")}}, None)
    made, sealed = decide(policy, empty, answered)
    assert not made.unscored
    assert verdicts(made) == [("suspend", "semantic.judge")]
    (finding,) = next(d for d in made.decisions if isinstance(d, CallDecided)).findings
    assert (finding.detector, finding.score) == ("judge", 0.7)
    assert finding.reason == "`judge` gives this call a score of 0.7: odd"
    assert unseal(sealed).observation == answered
    assert replay([sealed], {policy.digest: policy}.get) is None


def test_the_members_of_an_atomic_batch_are_all_asked_about() -> None:
    policy, empty = load_text(ALL, "p.yaml"), ThreadState(ThreadId("t"))
    said = intents(Wanted(C, "post"), Wanted(CallId("d"), "search"), mode="atomic")
    made, _ = decide(policy, empty, said)
    assert [item.call for item in made.unscored] == ["c", "d"]
    made, _ = decide(policy, empty, with_answers(said, {C: GOOD, CallId("d"): GOOD}, None))
    assert (verdicts(made), made.unscored) == ([("allow", None)] * 2, ())


def test_a_result_is_looked_at_and_only_marks_of_it_are_kept() -> None:
    policy = load_text(ALL, "p.yaml")
    made, first = decide(policy, ThreadState(ThreadId("t")), intents(Wanted(C, "read_inbox", scores=GOOD)))
    outcome = OutcomeReported(BY, C, "success", content="the secret plan", facts={"n": 1})
    unread, _ = decide(policy, made.state, outcome)
    value = ["the secret plan", {"n": 1}]
    assert unread.unscored == (Unscored(C, "read_inbox", value, ("exfiltration", "injection"), result=True),)
    assert unread.state.semantic.injection_unknown == semantic.NOT_READ
    assert unread.state.semantic.fingerprints_unknown == semantic.NOT_READ
    reading = Reading(Score(100_000), Fingerprints("k", b"12345", 8, 4))
    made, second = decide(policy, made.state, with_answers(outcome, {}, reading))
    assert not made.unscored
    assert made.state.semantic == Seen(100_000, "", (Fingerprints("k", b"12345", 8, 4),), "")
    assert b"secret plan" not in states.dump(made.state)
    assert states.load(states.dump(made.state)) == made.state
    made, third = decide(
        policy, made.state, intents(Wanted(CallId("d"), "post", scores={**GOOD, "exfiltration": Score(MILLION)}))
    )
    assert verdicts(made) == [("deny", "semantic.exfiltration")]
    assert replay([first, second, third], {policy.digest: policy}.get) is None


MILLION = 1_000_000


def test_the_agent_cannot_bring_scores_of_its_own() -> None:
    from gated.ingress import wanted_from

    said = wanted_from({"id": "c", "tool": "post", "args": {}, "scores": {"judge": {"value": 0}}})
    assert (said.refused, said.scores) == ("ingress.shape", None)


def test_a_snapshot_from_before_there_were_detectors_loads() -> None:
    made, _ = decide(load_text(HEAD, "p.yaml"), ThreadState(ThreadId("t")), intents(Wanted(C, "search")))
    old = json.loads(write_json(made.state))
    del old["semantic"]
    assert states.load(json.dumps(old).encode()) == made.state


def test_a_thread_keeps_so_many_marks_and_forgets_the_oldest() -> None:
    seen = Seen()
    for number in range(5):
        marks = bytes([number]) * MARK * (MAX_MARKS // 2)
        seen = remember(seen, Reading(fingerprints=Fingerprints("k", marks, 8, 4)))
        assert sum(len(found.marks) for found in seen.fingerprints) <= MAX_MARKS * MARK
    assert [found.marks[0] for found in seen.fingerprints] == [3, 4]
    seen = remember(seen, Reading(fingerprints=Fingerprints("k", bytes(MARK * (MAX_MARKS + 9)), 8, 4)))
    assert [len(found.marks) for found in seen.fingerprints] == [MAX_MARKS * MARK]


# --- it never widens ------------------------------------------------------------------------------------------------------

SCORES = st.none() | st.integers(-1, MILLION + 1)
CALLS = st.lists(
    st.builds(
        Wanted,
        id=st.sampled_from([CallId(f"c{n}") for n in range(6)]),
        tool=st.sampled_from(["search", "post", "read_inbox", "shell", "send_email"]),
        scores=st.none()
        | st.dictionaries(st.sampled_from(semantic.DETECTORS), st.builds(Score, value=SCORES, reason=st.just("")), max_size=5),
    ),
    min_size=1,
    max_size=3,
)
READINGS = st.none() | st.builds(
    Reading,
    injection=st.none() | st.builds(Score, value=SCORES),
    fingerprints=st.none() | st.just("gone") | st.just(Fingerprints("k", b"12345", 8, 4)),
)
OBSERVATIONS = st.builds(
    IntentsReceived, by=st.just(BY), calls=CALLS.map(tuple), mode=st.sampled_from(["each", "atomic"])
) | st.builds(
    OutcomeReported,
    by=st.just(BY),
    call=st.sampled_from([CallId(f"c{n}") for n in range(6)]),
    status=st.sampled_from(["success", "error"]),
    content=st.none() | st.just("text"),
    reading=READINGS,
)
HEAVY = load_text(ALL, "p.yaml")
LIGHT = load_text(ALL.replace("allowed_tools", "checks: [privilege, dfa, order, contracts, dcbf], allowed_tools"), "p.yaml")


@given(st.lists(OBSERVATIONS, max_size=12), OBSERVATIONS)
def test_with_the_stage_nothing_is_allowed_that_is_not_without_it(history: list[Any], last: Any) -> None:
    """On one and the same state, a call at a time; and the log of it replays."""
    state, records = ThreadState(ThreadId("t")), list[Record]()
    for at, said in enumerate(history):
        made, sealed = record(registry(HEAVY), state, RunId("r"), said, at, at + 1)
        state = made.state
        records += [sealed] if sealed is not None else []
    assert replay(records, {HEAVY.digest: HEAVY}.get) is None
    if not isinstance(last, IntentsReceived):
        return
    last = replace(last, calls=last.calls[:1])
    with_it = step(registry(HEAVY), state, RunId("r"), last, 99)
    without = step(Registry(LIGHT, {HEAVY.digest: LIGHT, LIGHT.digest: LIGHT}), state, RunId("r"), last, 99)
    assert {call for call, decision in _decided(with_it) if decision == "allow"} <= {
        call for call, decision in _decided(without) if decision == "allow"
    }
    assert {call for call, decision in _decided(without) if decision == "deny"} <= {
        call for call, decision in _decided(with_it) if decision == "deny"
    }


def _decided(made: Step) -> list[tuple[CallId, str]]:
    return [(d.call, d.decision) for d in made.decisions if isinstance(d, CallDecided)]


@given(st.dictionaries(st.sampled_from(semantic.DETECTORS), st.builds(Score, value=SCORES), max_size=5))
def test_no_allow_while_a_score_is_missing_or_makes_no_sense(scores: dict[str, Score]) -> None:
    made, _ = decide(HEAVY, ThreadState(ThreadId("t")), intents(Wanted(C, "search", scores=scores)))
    good = all(
        name in scores and (value := scores[name].value) is not None and 0 <= value < 600_000
        for name in ("secrets", "drift", "judge")
    )
    assert (verdicts(made) == [("allow", None)]) is good


# --- loading --------------------------------------------------------------------------------------------------------------


def test_by_default_the_stage_is_on_where_detectors_are_named_and_only_there() -> None:
    with_it, without = load_text(ALL, "p.yaml").agents[AgentId("a")], load_text(HEAD, "p.yaml").agents[AgentId("a")]
    assert [name for name, _ in with_it.stages][-2:] == ["dcbf", "semantic"]
    assert [name for name, _ in without.stages][-1] == "dcbf"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("semantic: {}", 3, "names no detector: give one of `secrets: {}`"),
        ("semantic: {secrets: }", 3, "secrets"),
        ("semantic: {sekrets: {}}", 3, "unknown key `sekrets`"),
        ("semantic:\n  secrets:\n    thresholds: {ask: 0.9, deny: 0.5}", 5, "`ask: 0.9` lies over `deny: 0.5`"),
        ("semantic:\n  secrets: {}\n  thresholds:\n    ask: 0", 6, "a threshold is over 0 and at most 1, or `never`; not `0`"),
        ("semantic:\n  secrets:\n    thresholds:\n      deny: 1.5", 6, "not `1.5`"),
        ("semantic:\n  secrets: {thresholds: {deny: sometimes}}", 4, "thresholds"),
        ("semantic:\n  secrets: {}\n  unavailable: allow", 5, "allow"),
        ("semantic:\n  secrets: {}\n  timeout: 16s", 5, "a timeout is from 1s to 15s, not `16s`"),
        ("semantic:\n  secrets:\n    timeout: soon", 5, "`soon` is not a duration"),
        ("semantic:\n  secrets:\n    tools: ['pay(']", 5, "pay("),
        ("semantic:\n  judge: {}", 4, "a judge has either `nats: SUBJECT` or `http: URL`"),
        ("semantic:\n  judge: {nats: a, http: 'https://j.example/'}", 4, "either"),
        ("semantic:\n  judge: {nats: 'judge.>'}", 4, "nats"),
        ("semantic:\n  judge: {http: 'https://user:pw@j.example/'}", 4, "http"),
        ("semantic:\n  judge: {nats: a, token_from: T}", 4, "`token_from` is for a judge with `http`"),
        ("defaults:\n  checks: [privilege, semantic]", 4, "the stage `semantic` needs detectors"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(text: str, line: int, says: str) -> None:
    with pytest.raises(DocumentError) as caught:
        load_text(HEAD + text + "\n", "p.yaml")
    assert (caught.value.line, says in str(caught.value)) == (line, True), str(caught.value)


@pytest.mark.parametrize(
    ("rules", "scores", "verdict"),
    [
        ("secrets: {}", {"secrets": 500_000}, ("allow", None)),
        ("secrets: {}, thresholds: {ask: 0.5}", {"secrets": 500_000}, ("suspend", "semantic.secrets")),
        ("secrets: {}, thresholds: {ask: 0.4, deny: 0.5}", {"secrets": 500_000}, ("deny", "semantic.secrets")),
        ("secrets: {thresholds: {ask: 0.6}}, thresholds: {ask: 0.5}", {"secrets": 500_000}, ("allow", None)),
        ("secrets: {}", {}, ("suspend", "semantic.unavailable")),
        ("secrets: {}, unavailable: deny", {}, ("deny", "semantic.unavailable")),
        ("secrets: {unavailable: ask}, unavailable: deny", {}, ("suspend", "semantic.unavailable")),
        ("secrets: {tools: [post]}", {}, ("allow", None)),
        ("secrets: {tools: [SEARCH]}", {}, ("suspend", "semantic.unavailable")),
        ("exfiltration: {}", {}, ("allow", None)),
        ("injection: {}", {}, ("allow", None)),
        ("drift: {}", {"drift": 950_000}, ("deny", "semantic.drift")),
        ("judge: {nats: j}", {"judge": 600_000}, ("suspend", "semantic.judge")),
        ("judge: {nats: j, tools: ['search(q = \"x\")']}", {}, ("allow", None)),
    ],
)
def test_every_setting_turns_a_verdict(rules: str, scores: dict[str, int], verdict: tuple[str, str | None]) -> None:
    policy = load_text(HEAD + f"semantic: {{{rules}}}\n", "p.yaml")
    said = Wanted(C, "search", scores={name: Score(value) for name, value in scores.items()})
    made, _ = decide(policy, ThreadState(ThreadId("t")), intents(said))
    assert verdicts(made) == [verdict]


@pytest.mark.parametrize(("rules", "timeout"), [("", 2), (", timeout: 5s", 5), (", timeout: 15", 15)])
def test_a_detector_has_its_own_time_or_that_of_all(rules: str, timeout: int) -> None:
    policy = load_text(HEAD + f"semantic: {{secrets: {{}}, drift: {{timeout: 3s}}{rules}}}\n", "p.yaml")
    assert policy.semantic is not None
    assert [detector.timeout for detector in policy.semantic.detectors] == [timeout * MILLION, 3 * MILLION]


def test_a_threshold_of_never_never_acts() -> None:
    policy = load_text(HEAD + "semantic: {secrets: {thresholds: {ask: never, deny: never}}}\n", "p.yaml")
    made, _ = decide(policy, ThreadState(ThreadId("t")), intents(Wanted(C, "search", scores={"secrets": Score(MILLION)})))
    assert verdicts(made) == [("allow", None)]
