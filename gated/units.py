"""Units as people write them: durations and US dollars of the policy file, and how many of something there are."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import Final

SECOND: Final = 1_000_000  # µs

MAX_USD: Final = 10**12

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_USD: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d{1,3})?", re.ASCII)
_EXACT: Final = Context(prec=100)  # more digits than an amount can have

_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION: Final = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s)?", re.ASCII)


def parse_duration(value: str | int) -> int:
    """`15m`, `61s`, `1h30m`, `2d`, or whole seconds, as µs. Raises `ValueError`."""
    if isinstance(value, bool):
        raise ValueError(f"`{value}` is not a duration: write one like `15m` or `90s`")
    if isinstance(value, int):
        seconds = value
    else:
        match = _DURATION.fullmatch(value)
        if match is None or not value:
            raise ValueError(f"`{value}` is not a duration: write one like `15m`, `90s` or `1h30m`")
        seconds = sum(int(n) * size for n, size in zip(match.groups(), _UNITS.values(), strict=True) if n)
    if not 0 <= seconds <= 10_000_000_000:
        raise ValueError(f"`{value}` is out of range for a duration")
    return seconds * SECOND


def format_duration(us: int) -> str:
    """The shortest way to write it in whole seconds: `15m`, `1m1s`, `0s`."""
    left, text = us // SECOND, ""
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def rfc3339(at: int) -> str:
    """Microseconds since 1970 as `2026-01-02T03:04:05.000006Z`."""
    seconds, micro = divmod(at, SECOND)
    return f"{_to_the_second(seconds)}.{micro:06d}Z"


@lru_cache(maxsize=64)
def _to_the_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat().removesuffix("+00:00")


def parse_usd(value: float | int | str) -> int:
    """US dollars as micro-dollars, rounded up, exact in decimals. Raises `ValueError` for NaN, infinity, below zero."""
    text = repr(value) if isinstance(value, float) else str(value)
    if len(text) > 64 or _USD.fullmatch(text) is None:
        raise ValueError(f"`{text[:64]}` is not an amount of US dollars")
    amount = _EXACT.create_decimal(text)
    if not 0 <= amount <= MAX_USD:
        raise ValueError(f"`{text}` is not an amount of US dollars from 0 to {MAX_USD}")
    return int(_EXACT.multiply(amount, Decimal(1_000_000)).to_integral_value(ROUND_CEILING, _EXACT))


def format_usd(microusd: int) -> str:
    """Micro-dollars as the shortest exact decimal of US dollars: `2.5`, `0.000001`, `10`."""
    whole, rest = divmod(abs(microusd), 1_000_000)
    text = f"{whole}.{rest:06}".rstrip("0").rstrip(".")
    return f"-{text}" if microusd < 0 else text


def some(number: int, what: str) -> str:
    """`1 record`, `2 records`, `1,024 records`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
