"""The file format, what does not compile and where, and which instances a call bears on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from core.order.harness import READ_BEFORE_WRITE, machine, step
from gated.core.order.machines import Continuation, MachineEntry, MachineError, check_continuation, compile_machine
from gated.core.order.touching import NOTHING_TOUCHED, MachineSet
from gated.events import Touch

MINIMAL: dict[str, Any] = {"name": "m", "initial": "s", "transitions": [{"on": "T", "from": "s", "to": "t"}]}


def test_defaults_are_those_of_the_page() -> None:
    entry = msgspec.convert(MINIMAL, MachineEntry)
    assert (entry.scope, entry.key, entry.key_normalizer, entry.on_missing_key) == ("thread", "", "none", "ignore")
    assert (entry.strict, entry.on_unmatched, entry.terminal, entry.mode) == (False, None, (), "enforce")
    transition = compile_machine(entry).transitions[0]
    assert (transition.status, transition.action, transition.emit) == ("success", "deny", None)
    emit = machine(transitions=[step("T", "s", "t", emit={"content": "x"})]).transitions[0].emit
    assert emit is not None
    assert (emit.target, emit.role, emit.cooldown_turns) == ("suffix_system", "user", 0)
    assert Continuation().max_continuations == 25
    assert "{summary}" in Continuation().message


@pytest.mark.parametrize("when", ["any", "success", "error"])
def test_a_plain_when_is_a_status(when: str) -> None:
    assert machine(transitions=[step("T", "s", "t", when=when)]).transitions[0].status == when
    assert machine(transitions=[step("T", "s", "t", when={"status": when})]).transitions[0].status == when


@pytest.mark.parametrize(
    "broken",
    [
        {"scope": "global"},
        {"key_normalizer": "upper"},
        {"on_missing_key": "warn"},
        {"mode": "shadow"},
        {"colour": "red"},
        {"initial": ""},
        {"name": ""},
        {"strict": "yes"},
        {"transitions": [step("T", "s", "t", whenn="any")]},
        {"transitions": [step("T", "s", "t", when="never")]},
        {"transitions": [step("T", "s", "t", when={"state": "success"})]},
        {"transitions": [step("T", "s", "t", on_violation="block")]},
        {"transitions": [step("T", "s", "t", on_violation={"action": "deny", "text": "no"})]},
        {"transitions": [step("T", "s", "t", emit={"content": "x", "target": "user"})]},
        {"transitions": [step("T", "s", "t", emit={"content": "x", "role": "system"})]},
        {"transitions": [step("T", "s", "t", emit={"content": "x", "cooldown_turns": -1})]},
        {"transitions": [step("T", "s", "t", emit={"target": "system"})]},
        {"transitions": [step("T", 7, "t")]},
        {"transitions": [{"on": "T", "from": "s"}]},
        {"transitions": [{"from": "s", "to": "t"}]},
    ],
)
def test_wrong_values_and_unknown_keys_do_not_decode(broken: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**MINIMAL, **broken}, MachineEntry)


FIRST = step("T", "s", "t")


@pytest.mark.parametrize(
    ("broken", "path", "word"),
    [
        ({"key": "{a"}, ("key",), "{a"),
        ({"key": "{}"}, ("key",), "{}"),
        ({"initial": "*"}, ("initial",), "`*`"),
        ({"on_unmatched": "*"}, ("on_unmatched",), "`*`"),
        ({"terminal": ["t", "done"]}, ("terminal", 1), "`done`"),
        ({"terminal": ["*"]}, ("terminal", 0), "`*`"),
        ({"transitions": [FIRST, step("T()", "s", "t")]}, ("transitions", 1, "on"), "T()"),
        ({"transitions": [FIRST, step("/T(/", "s", "t")]}, ("transitions", 1, "on"), "T("),
        ({"transitions": [FIRST, step("T", "s", "*")]}, ("transitions", 1, "to"), "`*`"),
        ({"transitions": [FIRST, step("T", [], "t")]}, ("transitions", 1, "from"), "`from`"),
        (
            {"transitions": [FIRST, step("T", "s", "t", when={"content": "{a"})]},
            ("transitions", 1, "when", "content"),
            "{a",
        ),
        (
            {"transitions": [FIRST, step("T", "s", "t", when={"facts": "complete"})]},
            ("transitions", 1, "when", "facts"),
            "complete",
        ),
        (
            {"transitions": [FIRST, step("T", "s", "t", emit={"content": "a } b"})]},
            ("transitions", 1, "emit", "content"),
            "a } b",
        ),
        (
            {"transitions": [FIRST, step("T", "s", "t", on_violation={"reason": "{"})]},
            ("transitions", 1, "on_violation", "reason"),
            "{",
        ),
    ],
)
def test_a_mistake_names_its_place_and_the_text(broken: dict[str, Any], path: tuple[str | int, ...], word: str) -> None:
    with pytest.raises(MachineError) as caught:
        compile_machine(msgspec.convert({**MINIMAL, **broken}, MachineEntry))
    assert caught.value.path == path
    assert word in str(caught.value)


def test_a_state_that_only_on_unmatched_reaches_is_reached() -> None:
    assert machine(on_unmatched="flaky", terminal=["flaky"], transitions=[FIRST]).terminal == {"flaky"}


def test_a_continuation_knows_one_placeholder() -> None:
    assert msgspec.convert({"message": "Finish: {summary}"}, Continuation).message == "Finish: {summary}"
    for message in ("Finish: {sumary}", "Finish {", "{summary}}"):
        with pytest.raises(MachineError) as caught:
            check_continuation(Continuation(message=message))
        assert caught.value.path == ("message",)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"max_continuations": -1}, Continuation)


# --- which instances a call bears on ---------------------------------------------------------------------------------


def test_a_touch_has_the_normal_key_and_the_transitions_that_match() -> None:
    machines = MachineSet([READ_BEFORE_WRITE])
    touched = machines.touches("Read", {"file_path": "./a/../b.rs"})
    assert touched.touches == (Touch("read-before-write", "b.rs", exact=(0,)),)
    assert machines.touches("Write", {"file_path": "b.rs"}).touches[0].emits == ("Wrote b.rs",)


def test_a_call_that_no_machine_watches_touches_nothing() -> None:
    machines = MachineSet([READ_BEFORE_WRITE])
    assert machines.touches("Browse", {"file_path": "a"}) is NOTHING_TOUCHED
    assert machines.touches("Read", {"path": "a"}) is NOTHING_TOUCHED
    assert MachineSet([]).touches("Read", {}) is NOTHING_TOUCHED


def test_wide_matches_are_kept_apart() -> None:
    machines = MachineSet([machine(transitions=[step("Bash(rm *)", "ok", "ok"), step("Bash", "s", "ok")])])
    assert machines.touches("Bash", {"command": "rm x"}).touches[0].exact == (0, 1)
    with_junk = machines.touches("Bash", {"command": "rm x", "junk": 1}).touches[0]
    assert (with_junk.exact, with_junk.wide) == ((1,), (0,))
    shouted = machines.touches("BASH", {"command": "RM x"}).touches[0]
    assert (shouted.exact, shouted.wide) == ((), (0, 1))


def test_globs_regexes_and_strict_machines_watch_every_tool() -> None:
    machines = MachineSet(
        [
            machine("glob", transitions=[step("mcp__*", "s", "t")]),
            machine("regex", transitions=[step("/mcp__(a|b)/", "s", "t")]),
            machine("strict", strict=True, transitions=[step("Plan", "s", "t")]),
            machine("exact", transitions=[step("mcp__a", "s", "t")]),
        ]
    )
    assert [t.machine for t in machines.touches("mcp__a", {}).touches] == ["glob", "regex", "strict", "exact"]
    assert [t.machine for t in machines.touches("mcp__c", {}).touches] == ["glob", "strict"]
    assert machines.touches("Browse", {}).touches == (Touch("strict", ""),)


def test_one_call_has_its_own_key_for_each_machine() -> None:
    template = {"key": "{p}", "transitions": [step("T", "s", "t")]}
    machines = MachineSet(
        [
            machine("raw", **template),
            machine("path", key_normalizer="path", **template),
            machine("all", **{**template, "key": ""}),
        ]
    )
    assert [t.key for t in machines.touches("T", {"p": "a/../B"}).touches] == ["a/../B", "B", ""]


@pytest.mark.parametrize(("action", "outcome"), [("deny", "deny"), ("ask", "ask")])
def test_a_missing_key_is_a_finding_where_the_machine_says_so(action: str, outcome: str) -> None:
    loose = MachineSet([machine(key="{id}", on_missing_key=action, transitions=[step("T", "s", "t")])])
    (finding,) = loose.touches("T", {}).findings
    assert (finding.outcome, finding.code, finding.machine, finding.key) == (outcome, "order.missing_key", "m", None)
    assert loose.touches("Other", {}) is NOTHING_TOUCHED
    strict = MachineSet([machine(key="{id}", on_missing_key=action, strict=True, transitions=[step("T", "s", "t")])])
    assert [f.code for f in strict.touches("Other", {}).findings] == ["order.missing_key"]


def test_a_missing_key_is_ignored_by_default() -> None:
    ignoring = MachineSet([machine(key="{id}", strict=True, transitions=[step("T", "s", "t")])])
    assert ignoring.touches("T", {}) is NOTHING_TOUCHED
    assert ignoring.touches("Other", {}) is NOTHING_TOUCHED
