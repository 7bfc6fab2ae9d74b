"""What a run looks like to an expression; `when` of approval rules; barriers by expression."""

from __future__ import annotations

from typing import Any, Final

import pytest
from immutables import Map
from msgspec.structs import replace

from gated.core.expressions import CALL_NAMES, EvaluationError, ExpressionError, compile_expression
from gated.core.runview import Reading, View, compile_barrier, compile_when
from gated.events import Phase

VIEW: Final = View(
    agent="payer",
    phase=Phase.PLANNING,
    step_count=3,
    counts=Map({"pay": 2, "note": 1}),
    cost_microusd=300_000,
    task="pay the bills",
    labels={"team": "books"},
    failed=False,
    recent=(("note", "success", "d1"), ("pay", "error", "d2")),
    at=1_700_000_000_000_000,
)


def holds(text: str, tool: str = "pay", **args: Any) -> bool:
    expression = compile_expression(text, CALL_NAMES)
    return Reading(expression).test(VIEW, tool, args)


@pytest.mark.parametrize(
    "text",
    [
        "run.phase == 'PLANNING'",
        "run.step_count == 3",
        "run.counts.pay == 2 && run.counts['note'] == 1",
        "run.cost_usd == 0.3 && type(run.cost_usd) == double",
        "run.task.contains('bills') && run.labels.team == 'books'",
        "!run.failed",
        "recent[size(recent) - 1] == {'tool': 'pay', 'status': 'error', 'args_sha256': 'd2'}",
        "at == 1700000000000000 && agent == 'payer' && tool == 'pay'",
        "size(run) == 7 && 'phase' in run",
        "args.x == 1 && 'x' in args",
    ],
)
def test_every_name_has_its_value(text: str) -> None:
    assert holds(text, x=1)


@pytest.mark.parametrize(
    "text",
    [
        "run.counts.refund < 3",
        "run.counts['refund'] == 0",
        "run.counts.pay == 2 && run.counts.refund == 0",
        "run.counts[tool] == 0",
        "run.counts[tool] == 0 && run.counts.pay == 2",
        "run.counts[tool] == 0 && run.counts.wire == 0 && run.counts.pay == 2",
        "!('never' in run.counts)",
    ],
)
def test_a_tool_that_never_ran_counts_zero_where_it_is_named(text: str) -> None:
    assert holds(text, tool="refund")


def test_a_tool_that_nobody_named_is_a_missing_key() -> None:
    with pytest.raises(EvaluationError, match="nope"):
        holds("run.counts[args.which] == 0", tool="refund", which="nope")


def test_only_what_is_named_is_made() -> None:
    expression = compile_expression("run.counts.pay < 3 && run.failed == false", CALL_NAMES)
    assert Reading(expression).values(VIEW, "pay", {}) == {"run": {"counts": {"pay": 2}, "failed": False}}


@pytest.mark.parametrize(
    ("text", "args", "applies"),
    [
        ("double(args.amount) >= 1000.0", {"amount": 1000}, True),
        ("double(args.amount) >= 1000.0", {"amount": "1000"}, True),
        ("double(args.amount) >= 1000.0", {"amount": 999.99}, False),
        ("double(args.amount) >= 1000.0", {"amount": "much"}, True),
        ("double(args.amount) >= 1000.0", {}, True),
        ("args.amount", {"amount": 0}, True),
        ("args.note == 'x'", {"note": "x\0"}, True),
        ("run.counts[tool] > 1", {}, True),
        ("agent == 'other'", {}, False),
        ("args.env == 'prod'", {"env": "prod"}, True),
        ("args.env == 'prod'", {"env": ["prod"]}, None),
        ("args.env != 'prod'", {"env": ["prod"]}, None),
        ("args.env == 'prod' || agent == 'payer'", {"env": 5}, True),
    ],
)
def test_when_counts_as_true_where_it_cannot_be_evaluated(text: str, args: dict[str, Any], applies: bool | None) -> None:
    assert compile_when(text).applies(VIEW, "pay", args) is applies


def test_when_knows_only_its_names() -> None:
    for text in ("recent.size() > 1", "at > 1", "result.status == 'error'", "run.stepcount > 1"):
        with pytest.raises(ExpressionError, match="does not exist"):
            compile_when(text)


def test_a_barrier_is_a_finite_number() -> None:
    calm = compile_barrier("run.failed ? -1.0 : 1.0")
    assert (calm.value(VIEW), calm.value(replace(VIEW, failed=True))) == (1.0, -1.0)
    assert compile_barrier("5 - run.step_count").value(VIEW) == 2
    assert compile_barrier("1.0 - run.cost_usd").value(VIEW) == pytest.approx(0.7)
    assert compile_barrier("double(3 - run.counts.wire)").value(VIEW) == 3.0
    assert compile_barrier("9007199254740993").value(VIEW) == 9007199254740993


@pytest.mark.parametrize("text", ["run.failed", "1.0 / 0.0", "run.labels.nope == 'x' ? 1 : 2", "run.counts['pay'] / 0"])
def test_a_barrier_that_is_no_finite_number_raises(text: str) -> None:
    with pytest.raises(EvaluationError):
        compile_barrier(text).value(VIEW)


@pytest.mark.parametrize("text", ["true", "'1'", "[1]", "run.step_count > 1", "null"])
def test_what_can_never_be_a_number_is_no_barrier(text: str) -> None:
    with pytest.raises(ExpressionError, match="a barrier must be a number"):
        compile_barrier(text)


def test_a_barrier_knows_no_call() -> None:
    with pytest.raises(ExpressionError, match=r"`args\.x`"):
        compile_barrier("args.x")


def test_what_a_barrier_reads() -> None:
    assert compile_barrier("size(recent)").reads("recent")
    assert not compile_barrier("run.step_count").reads("recent")
