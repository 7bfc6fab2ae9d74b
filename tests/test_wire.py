"""The wire: subjects, strict messages, MessagePack that hides nothing, roles that may not say everything."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated import wire
from gated.events import IntentsReceived, MessageRefused, OutcomeReported, RunId, Sender, ThreadId
from gated.wire import MSGPACK, Origin, parse_in_subject, read

AGENT = Origin(ThreadId("t"), RunId("r"), Sender("agent", "a"))
BOB = Origin(ThreadId("t"), RunId("r"), Sender("approver", "bob"))
OPERATOR = Origin(ThreadId("t"), RunId("r"), Sender("operator", "local"))
INTENT = {"type": "intents", "calls": [{"id": "c1", "tool": "Read", "args": {"n": 1}}]}


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


@pytest.mark.parametrize(
    "subject",
    [
        "gated.in.t.r.agent",
        "gated.in.t.r.agent.a.b",
        "gated.in.t.r.daemon.a",
        "gated.in.t r.r.agent.a",
        "gated.in.t.*.agent.a",
        "gated.in.t.>.agent.a",
        "gated.out.t.r.agent.a",
        f"gated.in.{'x' * 129}.r.agent.a",
        "gated.in..r.agent.a",
    ],
)
def test_subjects_outside_the_contract_mean_nothing(subject: str) -> None:
    assert parse_in_subject(subject) is None


@pytest.mark.parametrize(
    ("subject", "left", "bad"),
    [
        ("gated.in.t$.r.agent.a", ("", "r"), ("t$",)),
        ("gated.in.t.*.agent.a", ("t", ""), ("*",)),
        ("gated.in..>.agent.a", ("", ""), ("", ">")),
    ],
)
def test_whose_ids_are_none_is_known_by_its_name(subject: str, left: tuple[str, str], bad: tuple[str, ...]) -> None:
    assert wire.parse_bad_ids(subject) == (Origin(ThreadId(left[0]), RunId(left[1]), AGENT.sender), bad)


@pytest.mark.parametrize("subject", ["t.r.agent.a$", "t$.r.daemon.a", "t$.r.agent.a.b", "t$.r.agent"])
def test_a_subject_that_names_no_sender_is_nobodys(subject: str) -> None:
    assert wire.parse_bad_ids(f"gated.in.{subject}") is None


@pytest.mark.parametrize(("thread", "run"), [("", ""), ("t", ""), ("", "r")])
def test_a_refused_id_is_in_no_subject(thread: str, run: str) -> None:
    told = f"gated.out.{thread or '-'}.{run or '-'}.agent.a"
    assert wire.out_subject(ThreadId(thread), RunId(run), "a") == told
    assert wire.reply_subject(ThreadId(thread), RunId(run), AGENT.sender) == told


def test_a_subject_and_its_origin_are_one_thing() -> None:
    assert parse_in_subject(wire.in_subject(AGENT)) == AGENT


def test_messagepack_reads_as_json_does() -> None:
    assert read(AGENT, packed(INTENT), MSGPACK) == read(AGENT, msgspec.json.encode(INTENT))
    assert isinstance(read(AGENT, packed(INTENT), MSGPACK), IntentsReceived)


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\xa1a\x01\xa1a\x02",  # a duplicate key
        packed({**INTENT, "mode": math.nan}),
        packed({**INTENT, "mode": b"each"}),
        b"\xcd\x00\x01",  # 1 in a longer form
        b"\xc1",
        b"",
        b"\x91" * 5000,
    ],
)
def test_messagepack_that_could_hide_something_is_refused(data: bytes) -> None:
    said = read(AGENT, data, MSGPACK)
    assert isinstance(said, MessageRefused)
    assert said.code in ("ingress.shape", "ingress.args")


def test_deadly_messagepack_is_refused_as_the_same_json_is() -> None:
    deep = b"\x91" * 100_000 + b"\x90"
    for data, reason in (
        (packed(math.nan), "`NaN` is not a JSON number, at `args`"),
        (packed([1, -math.inf]), "`-Infinity` is not a JSON number, at `args[1]`"),
        (b"\xa3\xed\xa0\x80", "not MessagePack of JSON values: Invalid UTF-8 encoded string"),  # a lone surrogate
        (packed({"k" * 1025: 1}), f"a key of more than 1024 bytes, at `args.{'k' * 80}`"),
        (deep, "nested deeper than 64"),
    ):
        said = read(AGENT, b"\x81\xa4args" + data, MSGPACK)
        assert isinstance(said, MessageRefused)
        assert (said.code, said.reason) == ("ingress.args", reason)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"type":"intents","calls":[],"x":1}', "ingress.shape"),
        (b'{"type":"intents","calls":[{"id":"a","tool":"T","args":{"x":NaN}}]}', "ingress.args"),
        (b'{"type":"intents","calls":[{"id":"a","tool":"T","args":{"x":1,"x":2}}]}', "ingress.args"),
        (b'{"type":"outcome","call":"a","status":"fine"}', "ingress.shape"),
        (b'{"type":"outcome","call":"a b","status":"success"}', "ingress.id"),
        (b'{"type":"outcome","call":"a\\n","status":"success"}', "ingress.id"),
        (b'{"type":"run.start","parent_run":"../x"}', "ingress.id"),
        (b'{"type":"run.start","agent":"someone"}', "ingress.shape"),
        (b'{"type":"resolution","ticket":"t","decision":"approve","decision_id":"d","args_sha256":""}', "ingress.shape"),
        (b"[]", "ingress.shape"),
        (b"{", "ingress.shape"),
        (b"x" * 1_100_000, "ingress.too_large"),
    ],
)
def test_what_an_agent_may_not_say_is_refused_with_a_code(data: bytes, code: str) -> None:
    said = read(AGENT, data)
    assert isinstance(said, MessageRefused)
    assert said.code == code
    assert said.reason
    assert said.bytes == len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"type":"outcome","call":7,"status":"success"}', "expected `str`, got `int`, at `call`"),
        (b'{"type":"run.finish","x":1}', "object contains unknown field `x`"),
        (b'{"type":"recall","call":"a b"}', "an id is 1 to 128 of the characters A-Z a-z 0-9 _ -, at `call`"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_where(data: bytes, reason: str) -> None:
    said = read(AGENT, data)
    assert isinstance(said, MessageRefused)
    assert said.reason == reason


@pytest.mark.parametrize("kind", [MSGPACK, MSGPACK.upper(), f"{MSGPACK}; charset=binary"])
def test_messagepack_is_known_by_its_type(kind: str) -> None:
    assert isinstance(read(AGENT, packed(INTENT), kind), IntentsReceived)


def test_one_malformed_call_does_not_hide_the_others() -> None:
    calls = [
        {"id": "a", "tool": "T", "args": {}},
        {"id": "b", "tool": "bad name", "args": {}},
        {"id": "c", "tool": "T", "args": []},
    ]
    said = read(AGENT, msgspec.json.encode({"type": "intents", "calls": calls}))
    assert isinstance(said, IntentsReceived)
    assert [call.refused for call in said.calls] == [None, "ingress.tool_name", "ingress.args"]


WORD = st.sampled_from(["c1", "read", "mcp__a__b", "a/b", "", "a b", "x" * 129, "é", "c\n"])
CALL = st.fixed_dictionaries(
    {
        "id": WORD | st.none(),
        "tool": WORD | st.integers(),
        "args": st.dictionaries(WORD, st.integers() | WORD, max_size=3) | WORD,
    },
    optional={"parent": WORD | st.none(), "cost_usd": st.sampled_from([0, 1.5, -1, "1"]), "more": WORD},
)
INTENTS = st.fixed_dictionaries(
    {"type": st.just("intents"), "calls": st.lists(CALL | st.just({"id": "c", "tool": "t", "args": {}}) | WORD, max_size=3)},
    optional={"mode": st.sampled_from(["each", "atomic", "any"]), "nesting": st.just("explicit"), "more": WORD},
)


@given(INTENTS, st.sampled_from(["agent", "approver", "operator", "runner"]))
def test_what_is_read_the_short_way_is_what_is_read_the_long_way(message: dict[str, Any], role: Any) -> None:
    """A space at the end makes it another text than our clients write, with the same meaning."""
    origin, data = AGENT._replace(sender=Sender(role, "a")), msgspec.json.encode(message)
    short, long = read(origin, data), read(origin, data + b" ")
    if isinstance(short, MessageRefused) and isinstance(long, MessageRefused):
        assert (short.code, short.reason) == (long.code, long.reason)
    else:
        assert short == long


@pytest.mark.parametrize("cost", ["-1", "1e400", '"2"', "true"])
def test_costs_are_amounts_of_money(cost: str) -> None:
    said = read(AGENT, b'{"type":"intents","calls":[{"id":"a","tool":"T","args":{},"cost_usd":%s}]}' % cost.encode())
    refused = said.calls[0].refused if isinstance(said, IntentsReceived) else getattr(said, "code", None)
    assert refused in ("ingress.cost", "ingress.args")


@pytest.mark.parametrize("cost", ["-1", "-0.5", "1e300", "1000000000001", '"2"', "true", "[]"])
def test_costs_of_outcomes_are_amounts_of_money(cost: str) -> None:
    said = read(AGENT, b'{"type":"outcome","call":"a","status":"success","cost_usd":%s}' % cost.encode())
    assert isinstance(said, MessageRefused)
    assert said.code == "ingress.cost"


@pytest.mark.parametrize(
    ("sender", "message", "reason"),
    [
        (BOB, {"type": "resolution", "ticket": "é", "decision": "approve", "decision_id": "d", "args_sha256": ""}, "a ticket is"),
        (OPERATOR, {"type": "policy.bind", "policy": "00"}, "a digest is 64 of"),
        (AGENT, {"type": "recall", "call": "a b"}, "an id is 1 to 128 of"),
    ],
)
def test_what_misses_a_pattern_is_told_in_words(sender: Origin, message: dict[str, str], reason: str) -> None:
    said = read(sender, msgspec.json.encode(message))
    assert isinstance(said, MessageRefused)
    assert said.reason.startswith(reason)


def test_a_runner_reports_outcomes_and_nothing_else() -> None:
    runner = AGENT._replace(sender=Sender("runner", "box"))
    assert isinstance(read(runner, b'{"type":"outcome","call":"a","status":"success"}'), OutcomeReported)
    assert isinstance(read(runner, msgspec.json.encode(INTENT)), MessageRefused)
