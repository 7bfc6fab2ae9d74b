"""What `check` says of machines that load and cannot do what they were written for."""

from __future__ import annotations

from typing import Any

import pytest

from core.order.harness import READ_BEFORE_WRITE, machine, step
from gated.core.order.lint import calls_to_terminal, distances, lint
from gated.core.order.machines import Machine


def messages(one: Machine) -> list[str]:
    return [message for _, message in lint([one])]


def test_a_sound_machine_has_no_findings() -> None:
    rules = [step("Read", ["s", "read", "written"], "read"), step("Write", "read", "written")]
    assert messages(machine(terminal=["written"], transitions=rules)) == []


def test_findings_name_their_machine_in_order() -> None:
    assert [name for name, _ in lint([machine("b"), machine("a"), READ_BEFORE_WRITE])] == ["b", "a", "read-before-write"]


def test_states_that_cannot_be_reached() -> None:
    rules = [step("T", "s", "t"), step("U", "island", "shore"), step("V", ["shore", "t"], "t")]
    assert messages(machine(transitions=rules)) == [
        "no way leads from `s` to the state `shore`",
        "no way leads from `s` to the state `island`",
        "transition 2 (`U`) can never fire: nothing reaches a state that it lists",
    ]


def test_an_approved_ask_is_a_way() -> None:
    asking = machine(terminal=["t"], transitions=[step("T", "never", "t", on_violation="ask")])
    assert messages(asking) == ["no way leads from `s` to the state `never`"]
    assert calls_to_terminal(asking) == 1


def test_on_unmatched_is_a_way() -> None:
    rules = [step("T", "s", "s"), step("U", "odd", "s")]
    assert messages(machine(on_unmatched="odd", transitions=rules)) == []


SHADOW = "transition 2 (`T`) can never fire: transition 1 (`T`) comes first for the same calls"


@pytest.mark.parametrize(
    ("first", "second", "dead"),
    [
        ({}, {}, True),
        ({"when": "any"}, {"when": {"status": "error", "content": "x"}}, True),
        ({}, {"when": {"content": "x"}}, True),
        ({"when": {"content": "x"}}, {"when": {"content": "x", "facts": 'a = "b"'}}, True),
        ({"when": {"content": "x"}}, {"when": {"content": "y"}}, False),
        ({"when": {"content": "x"}}, {}, False),
        ({"when": {"facts": 'a = "b"'}}, {}, False),
        ({"when": "error"}, {}, False),
        ({}, {"when": "any"}, False),
        ({"from": "*"}, {}, True),
        ({"from": "t"}, {}, False),
        ({}, {"from": ["s", "t"]}, False),
        ({}, {"from": ["s", "unreached"]}, True),
    ],
)
def test_a_transition_behind_one_that_takes_all_its_calls(first: dict[str, Any], second: dict[str, Any], dead: bool) -> None:
    rules = [step("T", "s", "t") | first, step("T", "s", "u") | second, step("Go", "s", "t"), step("Go", "t", "u")]
    assert (SHADOW in messages(machine(transitions=rules))) is dead


@pytest.mark.parametrize(
    ("first", "second", "dead"),
    [
        ("T", "T(a)", True),
        ("T(*)", "T(a)", True),
        ("mcp__*", "mcp__x(a)", True),
        ("T(a)", "T", False),
        ("T(a)", "T(a)", True),
        ("mcp__*", "other", False),
        ("T", "mcp__*", False),
        ("*", "mcp__*", True),
        ("*", "/mcp__.*/(a)", True),
        ("mcp__*", "mcp__a*", False),
        ('T(a ~ "*")', 'T(a = "x")', True),
        ('T(a~"**")', 'T(b = "x", a !~ "y")', True),
        ('T(a ~ "x")', 'T(b = "y", a  ~ "x")', True),
        ('T(a ~ "*", b = "x")', 'T(a = "x")', False),
        ('T(a ~ "*")', 'T(b = "x")', False),
        ('T(a ~ "*")', "T(a)", False),
        ('T(a != "*")', 'T(a = "x")', False),
        ('T(a ~ "")', 'T(a = "x")', False),
    ],
)
def test_patterns_that_take_another_s_calls(first: str, second: str, dead: bool) -> None:
    found = messages(machine(transitions=[step(first, "s", "t"), step(second, "s", "s")]))
    assert any("transition 2" in message and "can never fire" in message for message in found) is dead


def test_several_transitions_may_take_a_call_s_states_between_them() -> None:
    rules = [step("T", "s", "t"), step("T", "t", "s"), step("T", "*", "s")]
    assert [m.split(":")[0] for m in messages(machine(transitions=rules))] == ["transition 3 (`T`) can never fire"]


def test_several_transitions_may_take_the_ends_of_a_call_between_them() -> None:
    rules = [step("T", "s", "t"), step("T", "s", "u", when="error"), step("T", "s", "v", when="any")]
    (message,) = [m for m in messages(machine(transitions=rules)) if "never fire" in m]
    assert message == "transition 3 (`T`) can never fire: transition 1 (`T`) and transition 2 (`T`) come first for the same calls"
    for other in ({"content": "x"}, {"status": "error", "content": "x"}):
        rules[1] = step("T", "s", "u", when=other)
        assert not any(message.startswith("transition 3") for message in messages(machine(transitions=rules)))


def test_a_machine_that_never_ends() -> None:
    endless = machine(terminal=["t"], transitions=[step("T", "island", "t"), step("U", "t", "island")])
    assert "none of its terminal states can be reached: every run that touches it is steered at its end" in messages(endless)
    assert calls_to_terminal(endless) is None


def test_a_dead_end() -> None:
    rules = [step("Go", "s", "t"), step("Fall", "s", "pit")]
    assert messages(machine(terminal=["t"], transitions=rules)) == [
        "no way leads from the state `pit` to a terminal one: a run that gets there is steered at its end"
    ]
    assert messages(machine(transitions=rules)) == []


def test_the_agent_s_words_in_a_system_prompt() -> None:
    (message,) = messages(READ_BEFORE_WRITE)
    assert "transition 2" in message
    assert "`{file_path}`" in message
    for emit in ({"content": "done"}, {"content": "done", "target": "system"}, {"content": "{a}", "target": "session"}):
        assert messages(machine(transitions=[step("T", "s", "t", emit=emit)])) == []


def test_a_machine_without_transitions() -> None:
    assert messages(machine()) == ["it has no transitions: it does nothing"]
    assert messages(machine(strict=True)) == ["it has no transitions: every call is denied"]


def test_distances_are_the_least_calls() -> None:
    rules = [step("A", "s", "t"), step("B", "t", "u"), step("C", ["s", "u"], "u"), step("D", "u", "v")]
    one = machine(terminal=["v"], transitions=rules)
    assert distances(one) == {"s": 0, "t": 1, "u": 1, "v": 2}
    assert distances(one, "u") == {"u": 0, "v": 1}
    assert calls_to_terminal(one) == 2
