"""What comes to rest: packed, found, changed and dumped like the map that it stands for."""

import json
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace

from core.gate_of_core import CoreGate
from gated.core import filed, packed, writing
from gated.core import state as states
from gated.core.fold import fold
from gated.core.history import Tally
from gated.core.late import Late
from gated.core.packed import Packed
from gated.core.state import Calls, InFlight, Known, Runs, RunState, ThreadState, Tickets
from gated.core.tickets import Ticket
from gated.core.writing import FORMS, rows_written, whole, write, write_json
from gated.events import (
    AgentId,
    Answer,
    AnswerRule,
    Ask,
    CallId,
    Embedding,
    Phase,
    Remember,
    RunEnded,
    RunId,
    Score,
    ThreadId,
    TicketCall,
    TicketId,
    unseal,
)
from oracle.strategies import apply, asking

NAMES = st.sampled_from([*"abcé\n ", "", "aa", "ab", *(f"call_{number:04d}" for number in range(300))])
WORK = st.lists(st.tuples(st.sampled_from(["set", "set", "set", "delete"]), NAMES, st.binary(max_size=300)), max_size=400)


@given(WORK)
def test_a_packed_map_is_the_map_it_stands_for(work: list[tuple[str, str, bytes]]) -> None:
    made, meant = Packed(), dict[str, bytes]()
    for what, key, value in work:
        if what == "set":
            made, meant[key] = made.set(key, value), value
        elif key in meant:
            made = made.delete(key)
            del meant[key]
        else:
            with pytest.raises(KeyError):
                made.delete(key)
    assert dict(made.items()) == meant
    assert sorted(made.keys()) == sorted(meant)
    assert len(made) == len(meant)
    assert all(made.get(key) == value for key, value in meant.items())
    assert made.get("call_9999") is None


def grown(made: Packed, numbers: range) -> Packed:
    for number in numbers:
        made = made.add(f"{number * 7919 % 100_003:08x}", b"%d" % number)
    return made


def test_ten_thousand_entries_stand_in_leaves_of_bounded_size() -> None:
    made = grown(Packed(), range(10_000))
    assert len(made) == 10_000
    assert max(leaf.count for leaf in made.leaves) <= packed.LEAF
    assert len(made.fresh) < packed.FRESH + len(made.leaves) / packed.SHARE
    assert list(made.bounds) == sorted(made.bounds)
    assert made.get(f"{77 * 7919 % 100_003:08x}") == b"77"


def test_heavy_values_have_leaves_to_themselves() -> None:
    made = Packed()
    for number in range(200):
        made = made.add(f"{number:03d}", bytes(packed.HEAVY))
    assert max(leaf.count for leaf in made.leaves) == 1
    assert all(len(value) == packed.HEAVY for _, value in made.items())


def test_versions_share_their_leaves() -> None:
    before = grown(Packed(), range(5000))
    after = before.add("zzz", b"")
    assert after.leaves is before.leaves
    assert before.get("zzz") is None


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 500, 1999])
def test_a_map_that_was_loaded_grows_on_like_the_one_that_was_dumped(cut: int) -> None:
    """So that a snapshot and the records after it are the whole fold, byte for byte."""
    whole, first = Calls(final=grown(Packed(), range(2000))), Calls(final=grown(Packed(), range(cut)))
    dumped = states.dump(ThreadState(ThreadId("t"), runs=Runs(Map({RunId("r"): run(first)}))))
    loaded = states.load(dumped).runs[RunId("r")].calls
    assert loaded == first
    assert Calls(final=grown(loaded.final, range(cut, 2000))) == whole


# --- the calls and runs of a state -----------------------------------------------------------------------------------


NO_CALLS = Calls()


def run(calls: Calls = NO_CALLS, **more: object) -> RunState:
    return RunState(agent=AgentId("a"), policy="p", tally=Tally(0), calls=calls, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("digest", ["ab" * 32, "AB" * 32, "d1", "", "ab cd", "é"])
@pytest.mark.parametrize("state", ["denied", "settled", "suspended"])
def test_a_call_comes_out_as_it_went_in(digest: str, state: states.KnownAs) -> None:
    known = Known(digest, "pay", 7, state, 5)
    calls = Calls().set(CallId("c"), known)
    assert calls.get(CallId("c")) == known
    assert list(calls.items()) == [(CallId("c"), known)]
    assert (len(calls.open), len(calls.final)) == ((1, 0) if state == "suspended" else (0, 1))


def test_an_entry_that_wakes_is_open_again_and_once() -> None:
    calls = Calls().set(CallId("c"), Known("d", "pay", 7, "denied")).set(CallId("c"), Known("d", "pay", 8, "suspended"))
    assert (len(calls), len(calls.final)) == (1, 0)
    assert calls[CallId("c")].seq == 8
    assert CallId("c") not in calls.delete(CallId("c"))


ENDED = RunEnded(status="complete", phase=Phase.ANSWERING)


@pytest.mark.parametrize(("in_flight", "ended"), list(product([False, True], repeat=2)))
def test_a_run_rests_when_it_ended_and_no_outcome_is_to_come(in_flight: bool, ended: bool) -> None:
    flights: Map[CallId, InFlight] = Map({CallId("c"): InFlight("pay", "d", 1, 1, 1, args={"n": 2**70})} if in_flight else {})
    more = {"end": "complete", "ended": ENDED, "labels": {"a": "b"}} if ended else {}
    given = run(Calls().set(CallId("c"), Known("ab" * 32, "pay", 1, "settled")), in_flight=flights, **more)
    runs = Runs().set(RunId("r"), given)
    assert len(runs.final) == (ended and not in_flight)
    assert runs[RunId("r")] == given


def test_a_state_from_before_anything_was_packed_is_read() -> None:
    """An archive keeps the states of threads whose records are gone."""
    tally = {"opened_at": 5, "calls": 3, "counts": {"pay": 3}}
    flying = ["pay", "cc" * 32, 1, 9, 99, None, [], [], "p1", None, 1, None, 4]
    calls = {
        "a": ["aa" * 32, "pay", 2, "settled", 2],
        "b": ["bb" * 32, "pay", 3, "denied", 3],
        "c": ["c0" * 32, "pay", 9, "admitted", 4],  # edited: it runs under another digest
        "d": ["dd" * 32, "pay", 5, "suspended", 5],
    }
    first = {"agent": "a", "policy": "p2", "tally": tally, "calls": calls, "in_flight": {"c": flying}, "tickets": {}}
    second = {"agent": "a", "policy": "p2", "tally": tally, "end": "complete", "calls": {}, "in_flight": {}, "tickets": {}}
    old = {"thread": "t", "seq": 9, "runs": {"r": first, "over": second}}
    state = states.load(json.dumps(old).encode())
    run = state.runs[RunId("r")]
    found = {name: run.known(CallId(name)) for name in "abcde"}
    assert {name: msgspec.to_builtins(known) for name, known in found.items()} == {**calls, "e": None}
    assert run.asked() == 4
    assert list(state.runs.open) == ["r"]
    assert state.policies == ("p1", "p2")
    assert states.load(states.dump(state)) == state


@pytest.mark.parametrize("raw", [b"{}", b"[]", b'{"thread":"t","runs":{"r":5}}', b"null", b"nonsense"])
def test_what_is_no_state_is_said_to_be_none(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        states.load(raw)


# --- runs that are open and put aside --------------------------------------------------------------------------------


ACTS = st.lists(st.tuples(st.sampled_from(["open", "open", "speak", "end", "delete"]), st.integers(0, 99)), max_size=300)


@given(ACTS)
def test_runs_that_are_put_aside_are_the_runs_that_they_were(acts: list[tuple[str, int]]) -> None:
    made, meant = Runs(), dict[RunId, RunState]()
    for what, number in acts:
        name = RunId(f"r{number}")
        if what == "delete":
            if name in meant:
                made = made.delete(name)
                del meant[name]
            continue
        value = run(step_count=len(meant))
        if what == "end":
            value = replace(value, end="complete", ended=ENDED)
        meant[name] = value
        made = made.keep(name, value) if what == "speak" and name not in made.final else made.set(name, value)
        assert made[name] == value
        assert len(made.open) <= filed.AT_HAND
        made = states.load(states.dump(ThreadState(ThreadId("t"), runs=made))).runs
    assert dict(made.items()) == meant
    assert sorted(made) == sorted(meant)
    assert (len(made), sum(name in made for name in meant)) == (len(meant), len(meant))
    assert dict(made.unfinished()) == {name: each for name, each in meant.items() if not each.end}
    with pytest.raises(KeyError):
        made.delete(RunId("nobody"))


def test_of_many_open_runs_few_are_at_hand_and_none_is_lost() -> None:
    runs = Runs()
    for number in range(10 * filed.AT_HAND):
        runs = runs.set(RunId(f"r{number}"), run(step_count=number))
    assert len(runs.open) <= filed.AT_HAND
    assert [runs[RunId(f"r{n}")].step_count for n in range(10 * filed.AT_HAND)] == list(range(10 * filed.AT_HAND))


# --- what is written -------------------------------------------------------------------------------------------------


def ticket(**more: object) -> Ticket:
    call = TicketCall(CallId("c"), "pay", {"n": 1}, "ab" * 32, embedding=Embedding("m", b"\x00\xff"), scores={"d": Score(7)})
    asks, rules = (Ask("s", "dcbf", "c", "why"),), (AnswerRule(("user:bob",), quorum=2),)
    return Ticket(TicketId("t1"), (call,), "ab" * 32, asks, rules, 1, 9, 8, None, False, False, **more)  # type: ignore[arg-type]


ANSWER = Answer("bob", "reject", "d1", 5, "no", Remember("run", "pay"))


@pytest.mark.parametrize(
    "given",
    [
        ticket(),
        ticket(state="rejected", answers=(ANSWER,), undelivered=("mail",), closed_at=5),
        replace(ticket(state="expired"), args_sha256="other"),
        replace(ticket(state="expired"), calls=(replace(ticket().calls[0], args={"n": 2**70}),)),
    ],
)
def test_a_ticket_is_written_without_the_names_of_its_fields_and_read_again(given: Ticket) -> None:
    assert Tickets.unpack(Tickets.pack(given)) == given
    assert Tickets.unpack(write_json(given)) == given  # as it was written before


@pytest.mark.parametrize("number", [7, 2**63, 2**64, -(2**70)])
def test_a_state_with_any_number_is_written_and_read(number: int) -> None:
    flights = Map({CallId("c"): InFlight("pay", "d", 1, 1, 1, args={"n": number, "f": 0.1, "s": "é", "l": [None, True]})})
    state = ThreadState(ThreadId("t"), runs=Runs(Map({RunId("r"): run(in_flight=flights)})))
    assert states.load(states.dump(state)) == state
    assert states.load(write_json(state)) == state


def test_what_has_no_place_in_a_state_is_not_written() -> None:
    with pytest.raises(TypeError, match="has no place in a state"):
        write(object())
    with pytest.raises(TypeError, match="has no place in a state"):
        write_json(object())


# --- what waits, in rows ---------------------------------------------------------------------------------------------


def waiting(number: int, **more: object) -> Ticket:
    """A ticket like many, but for what is its own."""
    call = TicketCall(CallId(f"c{number}"), "pay", {"n": number}, f"{number:064x}", nesting="explicit")
    asks, rules = (Ask(f"s{number % 2}", "dcbf", "c", "why"),), (AnswerRule(("user:bob",), quorum=1 + number % 3),)
    made = Ticket(
        TicketId(f"t{number:04d}"), (call,), call.args_sha256, asks, rules, number, number + 9, number + 8, None, False, False
    )
    return replace(made, number=number, **more)


ODD = [
    waiting(0),
    waiting(1, answers=(ANSWER,), escalated=True, soon=True, undelivered=("mail",)),
    waiting(2, args_sha256="other", escalate_at=5, edited=True),
    waiting(3, calls=(*waiting(3).calls, *ticket().calls), atomic=True),
    waiting(4, calls=(replace(ticket().calls[0], args_sha256="AB" * 32, sealed="s", parent=CallId("p"), cost_microusd=7),)),
    waiting(5, state="rejected", closed_at=7),
]


@given(st.lists(st.sampled_from([*ODD, *(waiting(number) for number in range(9))]), min_size=1, unique_by=lambda each: each.id))
def test_tickets_that_wait_are_written_as_rows_and_read_again(given: list[Ticket]) -> None:
    tickets = Map({each.id: each for each in given})
    raw = whole(FORMS[Ticket].write(tickets))
    assert FORMS[Ticket].read(raw) == dict(tickets)
    assert whole(FORMS[Ticket].write(Map({each.id: each for each in reversed(given)}))) == raw


@given(st.dictionaries(NAMES, st.sampled_from(["ab" * 32, "AB" * 32, "", "é"]), min_size=1, max_size=20), st.integers(0, 2**40))
def test_calls_that_wait_are_written_as_rows_and_read_again(digests: dict[str, str], seq: int) -> None:
    calls = Map({CallId(name): Known(digest, "pay", seq, "suspended", 3) for name, digest in digests.items()})
    assert FORMS[Known].read(whole(FORMS[Known].write(calls))) == dict(calls)


def much_waits(count: int, args: int = 0) -> ThreadState:
    tickets, calls = Tickets(), Calls()
    for number in range(count):
        one = waiting(number)
        if args:
            one = replace(one, calls=(replace(one.calls[0], args={"n": args}),))
        tickets = tickets.set(one.id, one)
        calls = calls.set(one.calls[0].call, Known(one.args_sha256, "pay", number, "suspended", number))
    return ThreadState(ThreadId("t"), runs=Runs().set(RunId("r"), run(calls, tickets=tickets)))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 500, 501, 65_535, 65_536])
def test_rows_that_are_written_slice_by_slice_are_one_array(count: int) -> None:
    values = list(range(count))
    assert whole(rows_written(values, lambda number: (number, "é"))) == writing.pack([(number, "é") for number in values])


@pytest.mark.parametrize(("count", "args", "slices"), [(1001, 0, 4), (500, 0, 0), (501, 0, 2), (1001, 2**70, 2)])
def test_a_snapshot_that_is_made_in_slices_is_the_same(count: int, args: int, slices: int) -> None:
    """Of 100,000 calls that wait in one run it took a second and more, in which nobody else was answered."""
    state = much_waits(count, args)
    assert states.waiting(state) == 2 * count
    assert whole(states.dump_in_slices(state)) == states.dump(state)
    assert len(list(states.dump_in_slices(state))) == slices
    loaded = states.load(states.dump(state))
    assert states.waiting(loaded) == (2 * count if args else 0)
    assert whole(states.dump_in_slices(loaded)) == states.dump(state)


def test_what_waits_in_a_loaded_run_is_decoded_when_somebody_asks_for_it() -> None:
    state = much_waits(300)
    loaded = states.load(states.dump(state))
    found = loaded.runs.open[RunId("r")]
    late: list[Any] = [found.tickets.open, found.calls.open]
    assert [type(each) for each in late] == [Late, Late]
    assert states.dump(loaded) == states.dump(state)
    assert [each._map for each in late] == [None, None]
    assert found.tickets[TicketId("t0007")] == waiting(7)
    assert found.asked() == 300
    assert states.dump(loaded) == states.dump(state)
    assert loaded == state
    assert state == loaded
    assert states.load(states.dump(much_waits(299))) != loaded
    few = states.load(states.dump(much_waits(3))).runs.open[RunId("r")]
    assert [type(few.tickets.open), type(few.calls.open)] == [Map, Map]


def test_a_map_that_is_decoded_late_is_the_map_that_it_stands_for() -> None:
    meant = Map({"a": 1, "b": 2})
    late = Late[str, int](b"a1b2", lambda raw: {chr(raw[0]): 1, chr(raw[2]): 2})
    assert isinstance(late, Map)
    assert (late == meant, meant == late, late == Late(b"a1b2", dict), late == Map(), Map() == late) == (
        True,
        True,
        True,
        False,
        False,
    )
    assert (late.get("a"), late["b"], late.get("c"), "a" in late, "c" in late, len(late), bool(late)) == (
        1,
        2,
        None,
        True,
        False,
        2,
        True,
    )
    assert (sorted(late), sorted(late.keys()), sorted(late.values()), dict(late.items())) == (
        ["a", "b"],
        ["a", "b"],
        [1, 2],
        dict(meant),
    )
    assert (late.set("c", 3), late.delete("a")) == (meant.set("c", 3), Map({"b": 2}))
    with pytest.raises(KeyError):
        late["c"]


def test_a_state_in_which_much_waits_and_a_number_is_long_is_written_as_json() -> None:
    state = much_waits(300, args=2**70)
    assert states.load(states.dump(state)) == state


def test_a_snapshot_from_before_what_waits_was_written_as_rows_is_read() -> None:
    """It had every ticket with the names of its fields, and which call waits on which."""
    state = much_waits(300)
    encoder = msgspec.msgpack.Encoder(enc_hook=lambda each: encoder.encode(dict(each)) if each else b"\x80", order="sorted")
    old = msgspec.msgpack.decode(encoder.encode(state))
    held = msgspec.msgpack.decode(old["runs"][0])
    held["r"]["waiting"] = encoder.encode({f"c{number}": f"t{number:04d}" for number in range(300)})
    old["runs"][0] = encoder.encode(held)
    assert states.load(writing.summed(encoder.encode(old))) == state


@pytest.mark.parametrize("seed", range(12))
def test_a_snapshot_in_which_much_waits_and_the_records_behind_it_are_the_whole_fold(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LATE", 0)
    policy, operations = asking(seed)
    gate = CoreGate(policy)
    for operation in operations:
        apply(gate, operation)
    known = {gate.world.current.digest: gate.world.current}
    threads = {unseal(entry.record).thread for entry in gate.world.log}
    for thread in sorted(threads):
        whole = through = ThreadState(thread)
        for entry in gate.world.log:
            body = unseal(entry.record)
            if body.thread == thread:
                whole = fold(known, whole, body, entry.record.hash)
                through = states.load(states.dump(fold(known, through, body, entry.record.hash)))
                assert states.dump(through) == states.dump(whole)
                assert through == whole
