"""The gate, the advance after an outcome, reminders, the end of a run, counters: the scenarios of the page, on the engine."""

from __future__ import annotations

from typing import Any

import pytest

from core.order.harness import R1, R2, READ_BEFORE_WRITE, Thread, machine, said, step
from gated.core.order import engine
from gated.core.order.state import MAX_ISSUED, MAX_VIOLATIONS
from gated.core.order.touching import MachineSet
from gated.events import CallId, Move, Reminder, RunId, Touch

A, B = {"file_path": "a"}, {"file_path": "b"}
SUITE = machine(
    "suite",
    scope="run",
    initial="idle",
    on_unmatched="flaky",
    transitions=[
        step("Test", ["idle", "passing", "failing", "flaky"], "passing", when={"content": "*all green*"}),
        step("Test", ["idle", "passing", "failing", "flaky"], "failing", when="error"),
        step("Deploy", "passing", "passing", on_violation={"action": "deny", "reason": "Tests must pass first."}),
    ],
)
CONFIRM_DELETE = machine(
    "confirm-delete",
    key="{id}",
    initial="new",
    transitions=[step("Confirm", "new", "confirmed"), step("Delete", "confirmed", "deleted", on_violation="deny")],
)


# --- one at a time ---------------------------------------------------------------------------------------------------


def test_write_before_read_then_read_then_write() -> None:
    thread = Thread(READ_BEFORE_WRITE)
    (finding,) = thread.call("Write", {"file_path": "src/a.rs"})
    assert (finding.stage, finding.outcome, finding.code) == ("order", "deny", "order.violation")
    assert (finding.machine, finding.key, finding.retry) == ("read-before-write", "src/a.rs", False)
    assert finding.reason == "Read src/a.rs before writing."
    thread.run("Read", {"file_path": "./src/../src/a.rs"})
    written = thread.run("Write", {"file_path": "src/a.rs"})
    assert written.reminders == (Reminder("system", "user", "Wrote src/a.rs", "read-before-write", "src/a.rs", "transition"),)
    assert said(thread.call("Write", {"file_path": "src/a.rs"})) == [("deny", "order.violation")]
    assert said(thread.call("Write", {"file_path": "src/b.rs"})) == [("deny", "order.violation")]
    assert thread.call("Write", {"other": 1}) == ()
    assert thread.states() == {"read-before-write": {"src/a.rs": "written"}}
    totals = thread.order.totals()
    assert (totals["denied"], totals["transitioned"], totals["emitted"]) == (3, 2, 1)


def test_the_default_reason() -> None:
    thread = Thread(machine("plan-first", initial="start", transitions=[step("Edit", "planned", "planned")]))
    (finding,) = thread.call("Edit")
    assert finding.reason == "Tool `Edit` is not permitted by state machine `plan-first` from state `start`."


def test_strict_denies_what_is_not_declared() -> None:
    thread = Thread(machine(strict=True, transitions=[step("Plan", "s", "t"), step("Edit", "t", "t")]))
    assert said(thread.call("Browse")) == [("deny", "order.undeclared")]
    assert said(thread.call("Edit")) == [("deny", "order.violation")]
    thread.run("Plan")
    assert thread.call("Edit") == ()


def test_strict_applies_only_where_the_key_renders() -> None:
    keyed = Thread(machine(strict=True, key="{id}", transitions=[step("Plan", "s", "t")]))
    assert keyed.call("Browse") == ()
    assert said(keyed.call("Browse", {"id": 1})) == [("deny", "order.undeclared")]


def test_a_star_lists_any_state() -> None:
    thread = Thread(machine(transitions=[step("Read", "*", "read"), step("Go", "read", "gone")]))
    for tool in ("Read", "Go", "Read"):
        thread.run(tool)
    assert thread.states() == {"m": {"": "read"}}


def test_any_matching_transition_that_lists_the_state_allows() -> None:
    thread = Thread(machine(transitions=[step("T", "never", "s"), step("T", "s", "t")]))
    assert thread.call("T") == ()


def test_the_violated_transition_is_the_first_that_matched() -> None:
    first = step("T", "x", "x", on_violation={"action": "ask", "reason": "first"})
    second = step("T", "y", "y", on_violation={"action": "deny", "reason": "second"})
    (finding,) = Thread(machine(transitions=[first, second])).call("T")
    assert (finding.outcome, finding.reason) == ("ask", "first")


@pytest.mark.parametrize(
    ("exact", "wide", "outcome"),
    [("warn", "deny", "deny"), ("warn", "ask", "ask"), ("deny", "warn", "deny"), ("ask", "deny", "deny"), ("ask", "warn", "ask")],
)
def test_a_wide_match_only_makes_the_action_stricter(exact: str, wide: str, outcome: str) -> None:
    transitions = [
        step("Bash(rm *)", "ok", "ok", on_violation={"action": wide, "reason": "wide"}),
        step("Bash", "ok", "ok", on_violation={"action": exact, "reason": "exact"}),
        step("allow", "s", "ok"),
    ]
    thread = Thread(machine(transitions=transitions))
    (finding,) = thread.call("Bash", {"c": "rm x", "junk": 1})
    assert (finding.outcome, finding.reason) == (outcome, "exact")


def test_what_matches_only_widely_is_a_violation_in_every_state_and_moves_nothing() -> None:
    rules = [step("Bash(rm *)", "*", "t", when="any", on_violation="warn")]
    thread = Thread(machine(transitions=rules))
    assert said(thread.call("Bash", {"c": "rm x", "junk": 1}, call="w")) == [("warn", "order.violation")]
    assert thread.order.size == 0
    settled = thread.end("w")
    assert settled.moves == ()
    assert [r.reason for r in settled.reminders] == ["warning"]
    thread.run("Bash", {"c": "rm x"})
    assert thread.states() == {"m": {"": "t"}}


def test_an_exact_match_that_lists_the_state_allows_whatever_matches_widely() -> None:
    thread = Thread(machine(transitions=[step("Bash(rm *)", "ok", "ok"), step("Bash", "s", "s")]))
    assert thread.call("Bash", {"c": "rm x", "junk": 1}) == ()


def test_findings_come_in_the_order_of_the_machines() -> None:
    names = ["b", "c", "a"]
    keyed = {"key": "{id}", "on_missing_key": "deny", "transitions": [step("T", "t", "s")]}
    plain = {"transitions": [step("T", "t", "s", on_violation="warn")]}
    thread = Thread(*(machine(name, **(keyed if name == "c" else plain)) for name in names))
    assert [finding.machine for finding in thread.call("T")] == names


def test_an_observed_machine_is_only_recorded() -> None:
    rule: dict[str, Any] = {
        "terminal": ["t"],
        "transitions": [step("T", "t", "t", on_violation="warn"), step("Go", "s", "u"), step("End", "u", "t")],
    }
    thread = Thread(machine(mode="observe", **rule))
    (finding,) = thread.call("T", call="c")
    assert finding.authoritative is False
    assert thread.end("c").reminders == ()
    thread.run("Go")
    assert engine.incomplete(thread.machines, thread.order, R1) == ()
    assert thread.order.totals()["warned"] == 0
    assert thread.order.violations == ()


# --- results ---------------------------------------------------------------------------------------------------------


def test_results_route_to_states() -> None:
    thread = Thread(SUITE)
    (finding,) = thread.call("Deploy")
    assert finding.reason == "Tests must pass first."
    thread.run("Test", content="3 passed, 1 skipped")
    assert thread.states()["suite"] == {"": "flaky"}
    thread.run("Test", status="error", content="boom")
    assert thread.states()["suite"] == {"": "failing"}
    assert said(thread.call("Deploy")) == [("deny", "order.violation")]
    thread.run("Test", content="suite:\nall green\nbye")
    assert thread.states()["suite"] == {"": "passing"}
    assert thread.call("Deploy") == ()


@pytest.mark.parametrize(
    ("when", "status", "moves"),
    [
        (None, "success", True),
        (None, "error", False),
        (None, "not_run", False),
        ("any", "success", True),
        ("any", "error", True),
        ("any", "not_run", False),
        ("error", "error", True),
        ("error", "success", False),
        ({"content": "ok*"}, "success", True),
        ({"content": "ok*"}, "error", False),
        ({"content": "ok"}, "success", False),
        ({"facts": 'complete = "true"'}, "success", True),
        ({"facts": 'complete = "false"'}, "success", False),
        ({"facts": 'missing != "x"'}, "success", False),
        ({"status": "any", "content": "ok*", "facts": 'complete = "true"'}, "error", True),
    ],
)
def test_what_fires(when: Any, status: Any, moves: bool) -> None:
    thread = Thread(machine(transitions=[step("T", "s", "t", **({"when": when} if when else {}))]))
    settled = thread.run("T", status=status, content="ok then", facts={"complete": True})
    assert settled.moves == ((Move("m", "", "t"),) if moves else ())


def test_content_that_is_no_text_is_compact_json() -> None:
    thread = Thread(machine(transitions=[step("T", "s", "t", when={"content": '*"a":1,"done":true*'})]))
    thread.run("T", content={"done": True, "a": 1})
    assert thread.states() == {"m": {"": "t"}}


def test_the_first_transition_that_fits_fires() -> None:
    rules = [step("T", "x", "a"), step("T", "s", "b", when="error"), step("T", "s", "c"), step("T", "s", "d", when="any")]
    thread = Thread(machine(transitions=rules))
    assert thread.run("T").moves == (Move("m", "", "c"),)


def test_on_unmatched_waits_for_a_listed_state_and_a_run_call() -> None:
    rule: dict[str, Any] = {"on_unmatched": "odd", "transitions": [step("T", "s", "t", when={"content": "x"})]}
    assert Thread(machine(**rule)).run("T", status="not_run").moves == ()
    assert Thread(machine(**rule)).run("T", status="error").moves == (Move("m", "", "odd"),)
    unlisted: dict[str, Any] = {
        "on_unmatched": "odd",
        "transitions": [step("T", "t", "t", on_violation="warn"), step("Go", "s", "t")],
    }
    assert Thread(machine(**unlisted)).run("T").moves == ()


def test_staying_is_no_transition() -> None:
    thread = Thread(machine(terminal=["t"], transitions=[step("T", "s", "s"), step("Go", "s", "t")]))
    assert thread.run("T").moves == ()
    assert thread.order.totals()["transitioned"] == 0
    assert thread.order.size == 0
    assert engine.incomplete(thread.machines, thread.order, R1) == ()


def test_a_partial_read_does_not_bless_a_write() -> None:
    whole = machine(
        key="{file_path}",
        initial="unread",
        transitions=[step("Read", "*", "read", when={"facts": 'complete = "true"'}), step("Write", "read", "read")],
    )
    thread = Thread(whole)
    thread.run("Read", A, facts={"complete": False})
    assert said(thread.call("Write", A)) == [("deny", "order.violation")]
    thread.run("Read", A)
    assert said(thread.call("Write", A)) == [("deny", "order.violation")]
    thread.run("Read", A, facts={"complete": True})
    assert thread.call("Write", A) == ()


# --- ask and warn ----------------------------------------------------------------------------------------------------

ASK_WRITE = machine(
    "ask-write",
    key="{file_path}",
    initial="unread",
    on_unmatched="torn",
    terminal=["written"],
    transitions=[
        step("Write", "read", "written", on_violation={"action": "ask", "reason": "{file_path} was never read"}),
        step("Close", "written", "closed"),
    ],
)


def test_an_approved_ask_fires_as_if_its_state_were_listed() -> None:
    thread = Thread(ASK_WRITE)
    assert said(thread.call("Write", A)) == [("ask", "order.violation")]
    assert thread.order.size == 0
    thread.call("Write", A, call="w", approved=True)
    assert thread.end("w").moves == (Move("ask-write", "a", "written"),)
    totals = thread.order.totals()
    assert (totals["asked"], totals["transitioned"]) == (1, 1)
    thread.call("Write", B, call="v", approved=True)
    assert thread.end("v", "error").moves == (Move("ask-write", "b", "torn"),)


def test_while_an_approved_call_is_in_flight_its_target_is_possible() -> None:
    thread = Thread(ASK_WRITE)
    thread.call("Write", A, call="w", approved=True)
    assert said(thread.call("Close", A)) == [("deny", "order.in_flight")]


def test_an_approval_overrides_only_the_violated_transition_of_the_machine_that_asked() -> None:
    other = machine("other", transitions=[step("Write", "s", "t", when="error")])
    touched = MachineSet([ASK_WRITE, other]).touches("Write", A)
    overridden = engine.override(touched, {("ask-write", "a")})
    assert [touch.overrides for touch in overridden] == [(0,), ()]


def test_what_matched_only_widely_does_not_fire_when_approved() -> None:
    touched = MachineSet([ASK_WRITE]).touches("write", A)
    assert engine.override(touched, {("ask-write", "a")})[0].overrides == ()


NUDGE = machine(
    "nudge",
    key="{file_path}",
    initial="unread",
    transitions=[
        step("Write", "read", "written", on_violation={"action": "warn", "reason": "writing unread {file_path}"}),
        step("Move", "read", "moved", on_violation="warn"),
    ],
)


def test_a_warning_allows_and_reminds_afterwards() -> None:
    thread = Thread(NUDGE)
    assert said(thread.call("Write", A, call="w")) == [("warn", "order.violation")]
    reminder = Reminder("suffix_system", "user", "writing unread a", "nudge", "a", "warning")
    assert thread.end("w").reminders == (reminder,)
    assert thread.run("Write", A).reminders == (reminder,)
    totals = thread.order.totals()
    assert (totals["warned"], totals["transitioned"], totals["emitted"]) == (2, 0, 0)


def test_a_warning_without_a_reason_has_the_default_with_the_state() -> None:
    (reminder,) = Thread(NUDGE).run("Move", A).reminders
    assert reminder.content == "Tool `Move` is not permitted by state machine `nudge` from state `unread`."


def test_a_warned_call_that_was_not_run_reminds_of_nothing() -> None:
    assert Thread(NUDGE).run("Write", A, status="not_run").reminders == ()


# --- reminders -------------------------------------------------------------------------------------------------------


def _reminding(cooldown: int) -> Thread:
    emit = {"content": "check {file_path}", "cooldown_turns": cooldown}
    edit = step("Edit", "s", "s", emit=emit)
    return Thread(machine(key="{file_path}", transitions=[edit, step("Rest", "s", "s")]))


@pytest.mark.parametrize(
    ("cooldown", "issued"), [(0, [1, 1, 1, 1, 1]), (1, [1, 1, 1, 1, 1]), (2, [1, 0, 1, 0, 1]), (3, [1, 0, 0, 1, 0])]
)
def test_a_reminder_cools_down_by_ticks(cooldown: int, issued: list[int]) -> None:
    thread = _reminding(cooldown)
    assert [len(thread.run("Edit", A).reminders) for _ in issued] == issued
    assert thread.order.totals()["emitted"] == sum(issued)


def test_every_outcome_of_the_thread_is_a_tick() -> None:
    thread = _reminding(3)
    assert len(thread.run("Edit", A).reminders) == 1
    thread.run("Other", status="not_run")
    thread.run("Rest", B, run=R2, status="error")
    assert len(thread.run("Edit", A).reminders) == 1


def test_keys_and_machines_cool_down_apart() -> None:
    thread = _reminding(9)
    assert len(thread.run("Edit", A).reminders) == 1
    assert len(thread.run("Edit", B).reminders) == 1
    assert len(thread.run("Edit", A).reminders) == 0


def test_long_keys_cool_down_apart_and_are_shown_short() -> None:
    thread = _reminding(9)
    for last in "xy":
        (reminder,) = thread.run("Edit", {"file_path": "k" * 300 + last}).reminders
        assert reminder.key == "k" * 200


def test_rendered_values_are_capped_and_escaped_and_unresolved_placeholders_stay() -> None:
    rule = step("T", "t", "t", on_violation={"action": "deny", "reason": "{v} {missing}"})
    (finding,) = Thread(machine(transitions=[rule])).call("T", {"v": "\n" + "x" * 500})
    assert finding.reason == "\\x0a" + "x" * 199 + " {missing}"


def test_the_throttle_does_not_grow_without_end() -> None:
    thread = _reminding(10**6)
    touched = [thread.machines.touches("Edit", {"file_path": f"k{n}"}).touches for n in range(MAX_ISSUED + 10)]
    for number, touches in enumerate(touched):
        thread.admit(CallId(f"c{number}"), touches)
        assert len(thread.end(f"c{number}").reminders) == 1
    assert len(thread.order.issued) <= MAX_ISSUED
    assert thread.order.size == 0
    assert thread.run("Edit", {"file_path": f"k{MAX_ISSUED}"}).reminders == ()


def test_the_name_of_a_machine_may_have_slashes_and_its_reminders_are_its_own() -> None:
    emits = step("Edit", "*", "s", emit={"content": "check", "cooldown_turns": 9})
    thread = Thread(machine("a", key="{k}", transitions=[emits]), machine("a/b", key="{l}", transitions=[emits]))
    assert [r.machine for r in thread.run("Edit", {"k": "b/c"}).reminders] == ["a"]
    assert [r.machine for r in thread.run("Edit", {"l": "c"}).reminders] == ["a/b"]
    assert [r.machine for r in thread.run("Edit", {"k": "/3/a/b/c", "l": "d/e"}).reminders] == ["a", "a/b"]
    assert thread.run("Edit", {"k": "b/c", "l": "c"}).reminders == ()
    assert thread.order.reminded_of() == {"a": {"/3/a/b/c": 3, "b/c": 1}, "a/b": {"c": 2, "d/e": 3}}


# --- calls in flight -------------------------------------------------------------------------------------------------


def test_read_and_write_of_one_file_in_one_batch() -> None:
    thread = Thread(READ_BEFORE_WRITE)
    batch = [thread.call("Read", A, call="r1"), thread.call("Write", A), thread.call("Read", A), thread.call("Read", B)]
    assert [said(findings) for findings in batch] == [[], [("deny", "order.in_flight")], [], []]
    (finding,) = batch[1]
    assert finding.retry is True
    assert finding.reason == "waits for r1: Read a before writing."
    thread.end("r1")
    assert said(thread.call("Write", A)) == []  # the other read can only lead where the first one did


def test_one_confirmation_one_deletion_however_parallel() -> None:
    thread = Thread(CONFIRM_DELETE)
    thread.run("Confirm", {"id": 7})
    verdicts = [said(thread.call("Delete", {"id": n})) for n in (7, 7, 8)]
    assert verdicts == [[], [("deny", "order.in_flight")], [("deny", "order.violation")]]


def test_waiting_helps_or_does_not() -> None:
    rules = [
        step("A", "s", "t"),
        step("B", "t", "t", on_violation={"action": "deny", "reason": "A first"}),
        step("D", "u", "u"),
        step("go", "s", "u"),
    ]
    thread = Thread(machine(transitions=rules))
    thread.call("A", call="a1")
    (finding,) = thread.call("B")
    assert (finding.code, finding.reason) == ("order.in_flight", "waits for a1: A first")
    (never,) = thread.call("D")
    assert (never.code, never.retry) == ("order.violation", False)


def test_who_is_waited_for_are_calls_of_this_run_on_this_instance() -> None:
    confirming = machine(
        key="{id}", transitions=[step("Look", "*", "seen"), step("Keep", "seen", "seen"), step("Act", "s", "done")]
    )
    thread = Thread(confirming)
    thread.call("Look", {"id": 1}, call="z")
    thread.call("Look", {"id": 1}, call="b")
    thread.call("Look", {"id": 2}, call="other")
    thread.call("Look", {"id": 1}, run=R2, call="foreign")
    (finding,) = thread.call("Act", {"id": 1})
    assert finding.reason == "waits for z, b: Tool `Act` is not permitted by state machine `m` from state `s`."
    (theirs,) = Thread(confirming, order=thread.order).gate("Act", {"id": 1}, run=RunId("r3"))
    assert theirs.reason.startswith("waits for calls of other runs: ")


@pytest.mark.parametrize(("action", "outcome"), [("deny", "deny"), ("ask", "deny"), ("warn", "warn")])
def test_in_flight_is_a_denial_and_a_warning_stays_a_warning(action: str, outcome: str) -> None:
    thread = Thread(machine(transitions=[step("A", "s", "t"), step("B", "t", "t", on_violation=action)]))
    thread.call("A")
    assert said(thread.call("B")) == [(outcome, "order.in_flight")]


def test_a_thread_scoped_instance_sees_the_calls_of_other_runs() -> None:
    thread = Thread(CONFIRM_DELETE)
    thread.run("Confirm", {"id": 7})
    assert thread.call("Delete", {"id": 7}, run=R1) == ()
    assert said(thread.call("Delete", {"id": 7}, run=R2)) == [("deny", "order.in_flight")]


def test_a_call_that_was_not_run_frees_its_place() -> None:
    thread = Thread(CONFIRM_DELETE)
    thread.run("Confirm", {"id": 7})
    thread.call("Delete", {"id": 7}, call="d")
    thread.end("d", "not_run")
    assert thread.call("Delete", {"id": 7}) == ()


def test_outcomes_settle_on_the_state_they_meet() -> None:
    """Both calls are allowed from every possible state; the one that ends last has the last word."""
    thread = Thread(machine(transitions=[step("A", "*", "a"), step("B", "*", "b")]))
    thread.call("A", call="1")
    thread.call("B", call="2")
    thread.end("2")
    thread.end("1")
    assert thread.states() == {"m": {"": "a"}}


# --- scopes, limits, policies that change ----------------------------------------------------------------------------


def test_thread_state_outlives_the_run_and_run_state_does_not() -> None:
    own = machine("own", scope="run", transitions=[step("Read", "s", "t"), step("Write", "t", "t")])
    thread = Thread(READ_BEFORE_WRITE, own)
    thread.run("Read", A, run=R1)
    assert [f.machine for f in thread.call("Write", A, run=R2)] == ["own"]
    assert thread.states(R2) == {"read-before-write": {"a": "read"}}
    assert thread.states(R1) == {"read-before-write": {"a": "read"}, "own": {"": "t"}}
    assert thread.order.size == 2


def test_instances_have_a_limit_that_known_ones_do_not_meet() -> None:
    thread = Thread(READ_BEFORE_WRITE)
    thread.run("Read", A)
    known, fresh = thread.machines.touches("Read", A), thread.machines.touches("Read", B)
    assert engine.full(thread.machines, thread.order, R1, fresh, 2) is None
    assert engine.full(thread.machines, thread.order, R1, known, 1) is None
    assert engine.full(thread.machines, thread.order, R1, fresh, 1) == "the thread has 1 machine instances, 1 may be"


def test_a_key_has_a_limit_in_bytes() -> None:
    machines = MachineSet([READ_BEFORE_WRITE])
    for text, fits in [("k" * 1024, True), ("k" * 1025, False), ("ü" * 512, True), ("ü" * 513, False)]:
        touched = machines.touches("Read", {"file_path": text})
        assert (engine.full(machines, Thread().order, R1, touched, 10) is None) is fits


def test_a_key_that_grows_by_its_normalizer_has_the_same_limit() -> None:
    machines = MachineSet([machine("url", key="{url}", key_normalizer="url", transitions=[step("Get", "*", "t")])])
    touched = machines.touches("Get", {"url": "https://a.test/" + "ü" * 200})
    assert engine.full(machines, Thread().order, R1, touched, 10) is not None


def test_a_call_ends_on_its_instance_whatever_became_of_its_machine() -> None:
    thread = Thread(READ_BEFORE_WRITE)
    thread.call("Read", A, call="r")
    for machines in ([], [machine("read-before-write", scope="run", key="{file_path}", initial="unread")]):
        after = Thread(*machines, order=thread.order)
        after.touches = dict(thread.touches)
        assert after.end("r").moves == ()
        assert after.order.size == 0


def test_a_machine_whose_transitions_have_changed_is_not_moved_by_their_numbers() -> None:
    thread = Thread(machine(transitions=[step("Ask", "s", "asked"), step("Grant", "asked", "granted")]))
    thread.call("Ask", call="a")
    changed = machine(transitions=[step("Grant", "*", "granted"), step("Ask", "s", "asked")])
    after = Thread(changed, order=thread.order)
    after.touches = dict(thread.touches)
    assert after.end("a").moves == ()
    assert after.states() == {}


def test_a_number_is_one_key_however_it_is_written() -> None:
    """`1.0` is the same call to the digest of arguments; it was another instance, on which everything could be had again."""
    thread = Thread(machine(key="{id}", transitions=[step("Refund", "s", "refunded")]))
    thread.run("Refund", {"id": 1})
    for again in (1, "1", 1.0, 1e0):
        assert said(thread.gate("Refund", {"id": again})) == [("deny", "order.violation")]


@pytest.mark.parametrize("others", [{}, {"other": 1}])
def test_a_number_is_no_way_around_a_transition_however_it_is_written(others: dict[str, Any]) -> None:
    thread = Thread(machine(transitions=[step('Drop(level = "1")', "open", "open"), step("Open", "s", "open")]))
    for level in (1, "1", 1.0):
        assert said(thread.gate("Drop", {"level": level, **others})) == [("deny", "order.violation")]
    thread.run("Open")
    assert [said(thread.gate("Drop", {"level": level, **others})) for level in (1, 1.0)] == [[], [("deny", "order.violation")]]


def test_strangers_are_in_states_that_their_machine_does_not_know() -> None:
    thread = Thread(READ_BEFORE_WRITE)
    for key in ("b", "a"):
        thread.run("Read", {"file_path": key})
    bound = [step("Read", "unread", "seen"), step("Write", "read", "seen")]
    assert (
        engine.strangers(MachineSet([machine("read-before-write", initial="unread", transitions=bound)]), thread.order, R1) == ()
    )
    renamed = MachineSet([machine("read-before-write", initial="unread", transitions=bound[:1])])
    assert engine.strangers(renamed, thread.order, R1) == ("read-before-write[a]=read", "read-before-write[b]=read")
    assert engine.strangers(MachineSet([]), thread.order, R1) == ()


# --- the end of a run ------------------------------------------------------------------------------------------------


def test_what_is_unfinished_is_listed_sorted() -> None:
    own = machine("own", scope="run", terminal=["done"], transitions=[step("Begin", "s", "on"), step("End", "on", "done")])
    thread = Thread(own, READ_BEFORE_WRITE)
    for key in ("b", "a", "c\n"):
        thread.run("Read", {"file_path": key}, run=R2)
    thread.call("Read", {"file_path": "never moved"})
    thread.run("Begin", run=R2)
    unfinished = tuple(f"read-before-write[{key}]=read" for key in ("a", "b", "c\\x0a"))
    assert engine.incomplete(thread.machines, thread.order, R1) == unfinished
    assert engine.incomplete(thread.machines, thread.order, R2) == ("own[]=on", *unfinished)
    thread.run("Write", A)
    assert engine.incomplete(thread.machines, thread.order, R1) == unfinished[1:]
    assert engine.incomplete(MachineSet([]), thread.order, R1) == ()


# --- counters --------------------------------------------------------------------------------------------------------


def test_only_what_decides_a_call_is_counted() -> None:
    thread = Thread(
        machine("asks", transitions=[step("T", "t", "t", on_violation="ask")]),
        machine("denies", transitions=[step("T", "t", "t")]),
        machine("warns", transitions=[step("T", "t", "t", on_violation="warn")]),
    )
    thread.call("T")
    assert thread.order.totals() == {"asked": 0, "denied": 1, "warned": 0, "transitioned": 0, "emitted": 0}
    assert {name: counts.denied for name, counts in thread.order.by_machine.items()} == {"denies": 1}
    (violation,) = thread.order.violations
    assert (violation.machine, violation.key, violation.tool, violation.action) == ("denies", "", "T", "deny")


def test_another_stage_s_denial_counts_nothing() -> None:
    thread = Thread(machine(transitions=[step("T", "t", "t")]))
    findings = thread.gate("T")
    assert engine.count(thread.order, findings, "privilege", "deny", "T") == thread.order
    assert engine.count(thread.order, findings, "order", "deny", "T").totals()["denied"] == 1


def test_a_missing_key_is_counted_for_its_machine() -> None:
    thread = Thread(machine(key="{id}", on_missing_key="deny", transitions=[step("T", "s", "s")]))
    assert said(thread.call("T")) == [("deny", "order.missing_key")]
    assert thread.order.by_machine["m"].denied == 1


def test_the_newest_violations_are_kept() -> None:
    thread = Thread(READ_BEFORE_WRITE)
    for number in range(MAX_VIOLATIONS + 6):
        thread.call("Write", {"file_path": f"f{number}"})
    assert [v.key for v in thread.order.violations] == [f"f{n}" for n in range(6, MAX_VIOLATIONS + 6)]
    assert thread.order.totals()["denied"] == MAX_VIOLATIONS + 6


def test_an_unknown_machine_of_a_touch_moves_nothing() -> None:
    thread = Thread()
    settled = engine.settle(thread.machines, thread.order, R1, CallId("c"), (Touch("gone", "", (0,)),), "success", None, {})
    assert settled == engine.NOTHING_SETTLED
