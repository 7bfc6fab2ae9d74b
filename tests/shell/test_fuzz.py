"""Any bytes on any subject: a verdict or a refusal, and the daemon lives. One server and one daemon for the whole module."""

import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import given
from hypothesis import strategies as st

from gated import ingress, wire
from gated.events import RunId, Sender, ThreadId
from gated.shell.nats_client import SturdyClient
from gated.wire import Refusal, Verdict
from patience import PATIENCE
from shell.live import Ears, Live, agent, decided, ears, gate, intents, tell

NUMBER = itertools.count()
SENDERS = {"agent": agent("worker"), "approver": Sender("approver", "bob"), "operator": Sender("operator", "local")}
GOOD = wire.encode(intents(("c", "read", {"n": 1})))


class Target(NamedTuple):
    """A gate that is shot at, and those who shoot; the gate's loop runs on a thread of its own."""

    portal: BlockingPortal
    live: Live
    clients: dict[str, SturdyClient]
    heard: Ears

    def shoot(self, data: bytes, role: str = "agent", thread: str = "", run: str = "r", **headers: str) -> list[wire.Outbound]:
        """What the agent was told of one input: all that came before the answer to a sound one behind it."""
        return self.portal.call(self._shoot, data, role, thread or f"t{next(NUMBER)}", run, headers)

    def shoot_raw(self, data: bytes, token: bytes, headers: bytes) -> list[wire.Outbound]:
        """The same with a thread and with headers that no client would write."""
        return self.portal.call(self._shoot_raw, data, token, headers)

    async def _shoot_raw(self, data: bytes, token: bytes, headers: bytes) -> list[wire.Outbound]:
        before, worker, size = len(self.heard.heard), self.clients["agent"], len(headers)
        line = b"HPUB gated.in.%s.r.agent.worker %d %d\r\n" % (token, size, size + len(data))
        await worker._send_command(line + headers + data + b"\r\n")
        return await self._told(before)

    async def _shoot(self, data: bytes, role: str, thread: str, run: str, headers: dict[str, str]) -> list[wire.Outbound]:
        before, subject = len(self.heard.heard), wire.in_subject(wire.Origin(ThreadId(thread), RunId(run), SENDERS[role]))
        await self.clients[role].publish(subject, data, headers={k.replace("_", "-"): v for k, v in headers.items()})
        await self.clients[role].flush()
        return await self._told(before)

    async def _told(self, before: int) -> list[wire.Outbound]:
        call = f"sound{next(NUMBER)}"

        def told() -> list[wire.Outbound]:
            return [message for _, message in self.heard.heard[before:]]

        await tell(self.clients["agent"], agent("worker"), "sound", intents((call, "read", {})))
        await self.heard.until(lambda: any(getattr(message, "call", "") == call for message in told()))
        return [message for message in told() if getattr(message, "call", "") != call]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("fuzz")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(gate(folder)) as live,
        portal.wrap_async_context_manager(live.bus.user("agent", "worker")) as worker,
        portal.wrap_async_context_manager(live.bus.user("approver", "bob")) as bob,
        portal.wrap_async_context_manager(live.bus.user("operator", "local")) as operator,
    ):
        clients = {"agent": worker, "approver": bob, "operator": operator}
        yield Target(portal, live, clients, portal.call(ears, worker, "worker"))
        assert worker.last_error is None
    assert anyio.run(decided, folder / "log.db"), "the log of all that was shot must verify and replay"


# --- what is known to kill ------------------------------------------------------------------------------------------------

CALL = '{"type": "intents", "calls": [{"id": "c", "tool": "read", "args": %s}]}'

DEADLY = {
    "nothing": b"",
    "NaN": (CALL % '{"amount": NaN}').encode(),
    "infinity": (CALL % '{"amount": 1e999}').encode(),
    "duplicate key": (CALL % '{"a": 1, "a": 2}').encode(),
    "duplicate key, escaped": (CALL % '{"a": 1, "\\u0061": 2}').encode(),
    "duplicate type": b'{"type": "run.abort", "type": "run.start"}',
    "nested arrays": (CALL % ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")).encode(),
    "nested objects": (CALL % ('{"a":' * 100_000 + "1" + "}" * 100_000)).encode(),
    "unclosed": b"[" * 1_000_000,
    "long integer": (CALL % ('{"a": ' + "9" * 5000 + "}")).encode(),
    "lone surrogate": (CALL % '{"a": "\\ud800"}').encode(),
    "surrogates in bytes": (CALL % '{"a": "?"}').encode().replace(b"?", b"\xed\xa0\x80"),
    "not UTF-8": (CALL % '{"a": "?"}').encode().replace(b"?", b"\xff"),
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": (CALL % "{}").encode("utf-16"),
    "too large": (CALL % json.dumps({"a": "x" * 1_200_000})).encode(),
    "unknown field": b'{"type": "run.finish", "surprise": 1}',
    "unknown type": b'{"type": "nonsense"}',
    "a list": b"[]",
    "a number": b"1",
    "two values": GOOD + GOOD,
    "no calls": b'{"type": "intents", "calls": []}',
    "too many calls": b'{"type": "intents", "calls": [' + b",".join([b"{}"] * 1001) + b"]}",
    "somebody else's word": b'{"type": "run.kill"}',
}


@pytest.mark.parametrize("data", DEADLY.values(), ids=DEADLY.keys())
def test_a_deadly_input_is_refused_with_its_reason(target: Target, data: bytes) -> None:
    (refusal,) = target.shoot(data)
    assert isinstance(refusal, Refusal)
    assert refusal.code.startswith("ingress.")
    assert refusal.reason
    assert len(refusal.reason) <= 500


def test_a_malformed_call_does_not_hide_the_good_one_beside_it(target: Target) -> None:
    bad: list[Any] = [None, 1, {"id": "../x"}, {"id": "b", "tool": "a b", "args": {}}, {"id": "d", "tool": "read", "args": []}]
    told = target.shoot(wire.encode(wire.Intents(calls=[*bad, {"id": "g", "tool": "read", "args": {}}])))
    assert [type(answer) for answer in told].count(Refusal) == len(bad)
    assert [answer.decision for answer in told if isinstance(answer, Verdict)] == ["allow"]


def test_a_payload_of_exactly_the_limit_is_decided_and_one_byte_more_is_not(target: Target) -> None:
    most = GOOD + b" " * (wire.MAX_PAYLOAD - len(GOOD))
    (verdict,) = target.shoot(most)
    assert isinstance(verdict, Verdict)
    (refusal,) = target.shoot(most + b" ")
    assert isinstance(refusal, Refusal)
    assert refusal.code == "ingress.too_large"


@pytest.mark.parametrize("value", [{"type": "intents", "calls": [{"id": "c", "tool": "read", "args": {"n": 1.5, "s": "é"}}]}])
def test_messagepack_is_taken_where_it_is_announced_and_only_there(target: Target, value: dict[str, Any]) -> None:
    packed = msgspec.msgpack.encode(value)
    (verdict,) = target.shoot(packed, Content_Type=wire.MSGPACK)
    assert isinstance(verdict, Verdict)
    for data, headers in ((packed, {}), (GOOD, {"Content_Type": wire.MSGPACK}), (packed[:-1], {"Content_Type": wire.MSGPACK})):
        (refusal,) = target.shoot(data, **headers)
        assert isinstance(refusal, Refusal)


@pytest.mark.parametrize(
    "value", [{"a": b"bytes"}, {"a": float("nan")}, {1: "key"}, {"a": msgspec.msgpack.Ext(5, b"x")}, {"a": 2**64 - 1}]
)
def test_what_messagepack_has_and_json_has_not_is_refused_or_decided(target: Target, value: dict[Any, Any]) -> None:
    calls = [{"id": "c", "tool": "read", "args": value}]
    (answer,) = target.shoot(msgspec.msgpack.encode({"type": "intents", "calls": calls}), Content_Type=wire.MSGPACK)
    assert isinstance(answer, Verdict if value == {"a": 2**64 - 1} else Refusal)


@pytest.mark.parametrize("name", ["a" * 129, "é", "a:b", "a/b", "$x", "%2e", "a\x7fb", "*", ">"])
def test_an_id_outside_the_contract_is_refused_and_does_no_harm(target: Target, name: str) -> None:
    for place in ({"thread": name}, {"run": name}):
        (refusal,) = target.shoot(GOOD, **place)
        assert isinstance(refusal, Refusal)
        assert refusal.code == "ingress.id"
        assert "A-Z a-z 0-9" in refusal.reason


# --- anything -------------------------------------------------------------------------------------------------------------

TAGS = ["run.start", "intents", "outcome", "run.finish", "run.abort", "run.kill", "policy.bind", "resolution", "forget"]
FIELDS = ["calls", "mode", "call", "status", "content", "facts", "cost_usd", "tokens", "reason", "task", "labels", "tools"]
MORE = ["ticket", "decision", "decision_id", "args_sha256", "args", "remember", "policy", "remembered", "agent", "id", "tool"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["c", "read", "each"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS + MORE) | st.text(max_size=4), inner),
    max_leaves=12,
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    fields = draw(st.dictionaries(st.sampled_from(FIELDS + MORE), VALUES, max_size=5))
    return json.dumps({"type": draw(st.sampled_from(TAGS)), **fields}).encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from([GOOD, wire.encode(wire.RunStart(task="t")), wire.encode(wire.RunFinish())])))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
    return bytes(data)


ANY = st.binary(max_size=300) | messages() | damaged()


@given(data=ANY, kind=st.sampled_from(["application/json", wire.MSGPACK, "text/plain", ""]))
def test_an_agent_is_told_something_of_whatever_it_says(target: Target, data: bytes, kind: str) -> None:
    assert target.shoot(data, **({"Content_Type": kind} if kind else {}))


@given(data=ANY, role=st.sampled_from(["approver", "operator"]), run=st.sampled_from(["known", "unknown"]))
def test_whatever_people_say_does_no_harm(target: Target, data: bytes, role: str, run: str) -> None:
    target.shoot(wire.encode(wire.RunStart()), thread="people", run="known")
    target.shoot(data, role, thread="people", run=run)


TOKEN = st.text(
    st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"], exclude_characters=".*>"), min_size=1, max_size=20
)


@given(thread=TOKEN, run=TOKEN, data=ANY)
def test_any_subject_does_no_harm(target: Target, thread: str, run: str, data: bytes) -> None:
    told = target.shoot(data, thread=thread, run=run)
    sound = ingress.is_id(thread) and ingress.is_id(run)
    assert told
    assert sound or [answer.code for answer in told if isinstance(answer, Refusal)] == ["ingress.id"]


# --- bytes that no client would send --------------------------------------------------------------------------------------

LINES = st.binary(max_size=20).filter(lambda line: b"\r" not in line and b"\n" not in line)
HEADERS = st.one_of(
    st.sampled_from([b"X", b"NATS/1.0", b"NATS/1.0 ", b"NATS/1.0\r\n", b"NATS/1.0 \xff\r\n\r\n", b"NATS/1.0 404 No\r\n\r\n"]),
    st.lists(LINES | LINES.map(b"Nats-Msg-Id: ".__add__) | LINES.map(b"Gated-Re: ".__add__) | LINES.map(b"Status: ".__add__)).map(
        lambda lines: b"NATS/1.0\r\n" + b"\r\n".join([*lines, b"", b""])
    ),
)
WILD = st.binary(min_size=1, max_size=20).filter(lambda token: not {*token} & {*b" \t\n.*>"})


@given(headers=HEADERS)
def test_headers_that_are_none_stop_nobody(target: Target, headers: bytes) -> None:
    told = target.shoot_raw(GOOD, b"t%d" % next(NUMBER), headers)
    assert told or b"Nats-" in headers, "only the server refuses an input, for what it takes as its own header"


@given(token=WILD | st.sampled_from([b"\xff", b"a\rb", b"a\x0bb", b"a\x0c7\x0b5", b"\x1c", b"\xe2\x80\xa8", b"a" * 3000]))
def test_subjects_that_are_none_stop_nobody(target: Target, token: bytes) -> None:
    (told,) = target.shoot_raw(GOOD, token, b"NATS/1.0\r\n\r\n")
    assert isinstance(told, Verdict if ingress.is_id(token.decode(errors="replace")) else Refusal)


@given(data=st.binary(max_size=50) | VALUES.map(lambda value: json.dumps(value).encode()))
@pytest.mark.parametrize("verb", ["health", "runs.show", "tickets.list", "policy.show"])
def test_any_question_is_answered(target: Target, verb: str, data: bytes) -> None:
    answer = target.portal.call(target.clients["operator"].request, f"gated.api.{verb}", data, PATIENCE)
    assert answer.data or answer.headers
