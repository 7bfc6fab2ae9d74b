"""Durations and dollars: exact both ways."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.units import MAX_USD, SECOND, format_duration, format_usd, parse_duration, parse_usd, some


@pytest.mark.parametrize(
    ("text", "seconds", "normal"),
    [
        ("15m", 900, "15m"),
        ("1m", 60, "1m"),
        ("61s", 61, "1m1s"),
        ("1h", 3600, "1h"),
        ("1h30m", 5400, "1h30m"),
        ("90m", 5400, "1h30m"),
        ("2d", 172_800, "2d"),
        ("1d2h3m4s", 93_784, "1d2h3m4s"),
        ("0s", 0, "0s"),
        (301, 301, "5m1s"),
    ],
)
def test_durations(text: str | int, seconds: int, normal: str) -> None:
    assert parse_duration(text) == seconds * SECOND
    assert format_duration(seconds * SECOND) == normal


@pytest.mark.parametrize(
    "value", ["", "15", "m", "1.5h", "-1s", "1m1h", "1 m", "15M", "1m ", "\u0661s", "1s\n", -1, True, 10**11, "9" * 30 + "s"]
)
def test_what_is_no_duration(value: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(value)


@given(st.integers(0, 10**9))
def test_durations_there_and_back(seconds: int) -> None:
    assert parse_duration(format_duration(seconds * SECOND)) == seconds * SECOND


@pytest.mark.parametrize(
    ("value", "microusd"),
    [
        (0.1, 100_000),
        (2.50, 2_500_000),
        (10, 10_000_000),
        (0, 0),
        (-0.0, 0),
        ("0.02", 20_000),
        ("1e-3", 1_000),
        (1e-7, 1),
        (5e-324, 1),
        ("0.0000011", 2),
        ("0.1000000000000000000000000000000000001", 100_001),
        (0.1 + 0.2, 300_001),
        (MAX_USD, MAX_USD * 10**6),
    ],
)
def test_dollars(value: float | int | str, microusd: int) -> None:
    assert parse_usd(value) == microusd


def test_two_costs_fit_their_sum() -> None:
    assert parse_usd(0.10) + parse_usd(0.20) == parse_usd(0.30)
    assert sum(parse_usd(0.1) for _ in range(10)) == parse_usd(1)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        -1,
        -0.01,
        "-0.01",
        "NaN",
        "Infinity",
        "",
        "1_0",
        " 1",
        "\uff11",
        "1e",
        "$1",
        True,
        None,
        10**13,
        1e300,
        "1e999",
        "9" * 65,
        "1." + "0" * 150 + "1",
    ],
)
def test_what_is_no_amount(value: Any) -> None:
    with pytest.raises(ValueError, match="not an amount of US dollars"):
        parse_usd(value)


@given(st.floats(0, 1e12) | st.integers(0, MAX_USD) | st.decimals(0, 10**12, places=9).map(str))
def test_dollars_are_rounded_up_exactly(value: float | int | str) -> None:
    assert parse_usd(value) == ceil(Fraction(str(value)) * 10**6)


def test_the_decimal_context_of_the_caller_does_not_matter() -> None:
    with localcontext() as context:
        context.prec, context.rounding = 2, ROUND_CEILING
        assert parse_usd("1234.567891") == 1_234_567_891


@pytest.mark.parametrize(
    ("microusd", "text"), [(2_500_000, "2.5"), (1, "0.000001"), (10_000_000, "10"), (0, "0"), (-100_000, "-0.1")]
)
def test_dollars_are_written_short(microusd: int, text: str) -> None:
    assert format_usd(microusd) == text


@given(st.integers(0, MAX_USD * 10**6))
def test_dollars_there_and_back(microusd: int) -> None:
    assert parse_usd(format_usd(microusd)) == microusd
    assert Decimal(format_usd(microusd)) * 10**6 == microusd


@pytest.mark.parametrize(("number", "text"), [(0, "0 records"), (1, "1 record"), (2, "2 records"), (1024, "1,024 records")])
def test_of_one_thing_there_is_one(number: int, text: str) -> None:
    assert some(number, "record") == text
