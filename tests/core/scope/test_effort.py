"""How much looking a call may cost: hostile ones are denied early, the largest ordinary ones are looked at whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gated.core.scope import DataScope, Resources, ScopeFinding, compile_scope
from gated.core.scope.check import TOO_MUCH
from gated.core.scope.effort import Effort, TooMuch

SCOPE = compile_scope(
    DataScope(allowed_paths=["/workspace"], base_path="/workspace", allowed_api_endpoints=["https://api.example.com"]),
    {"search": Resources(args={"folders[*]": "path", "patterns[*]": "path"})},
)
RESOLVING = compile_scope(
    DataScope(allowed_paths=["/workspace"], base_path="/workspace", resolve=True),
    {"search": Resources(args={"folders[*]": "path", "patterns[*]": "path"})},
)


def check(args: Mapping[str, Any]) -> ScopeFinding:
    return SCOPE.check("search", args)


def test_every_unit_is_spent_once() -> None:
    effort = Effort(2)
    effort.spend(1)
    effort.spend(1)
    with pytest.raises(TooMuch):
        effort.spend(1)


@pytest.mark.parametrize("text", ["é@" * 300_000, "//[" * 300_000, "%e9a" * 200_000, "http://" * 140_000])
def test_a_text_of_nothing_but_hosts_or_escapes_is_denied(text: str) -> None:
    assert check({"note": text}).denied == TOO_MUCH


@pytest.mark.parametrize("step", ["a/", "é/", "%61/"])
def test_paths_that_multiply_are_denied(step: str) -> None:
    folders = [f"/workspace/{number}/{step * 400}" for number in range(99)]
    args = {"folders": folders, "patterns": [f"{number}x/{step * 400}" for number in range(99)]}
    assert check(args).denied == TOO_MUCH
    assert RESOLVING.paths_to_resolve("search", args) == ()
    assert RESOLVING.check("search", args, {}).denied is not None


def test_ordinary_calls_of_the_largest_size_are_looked_at_whole() -> None:
    code = "    total += row['price']  # as in shop.example.com, 50% of ./prices\n// more\n" * 12_000
    assert check({"note": f"def run():\n{code}"}).denied is None
    assert check({"note": "\n".join(f"user{number}@example.com" for number in range(40_000))}).denied is None
    assert check({"rows": [f"é{number}: 5% off" for number in range(9_990)]}).denied is None
    assert check({"rows": [f"https://api.example.com/items/{number}" for number in range(3_000)]}).denied is None
    assert check({"folders": ["/workspace/src"], "patterns": [f"src/{number}.py" for number in range(9_000)]}).denied is None


def test_the_last_of_many_paths_is_looked_at_too() -> None:
    patterns = [f"src/{number}.py" for number in range(5_000)]
    outside = {"folders": ["/workspace/src"], "patterns": [*patterns, "../../etc/passwd"]}
    assert check(outside).denied is not None
    assert check({"rows": [*(f"é{number}: 5% off" for number in range(9_000)), "http://169.254.169.254/"]}).denied is not None
