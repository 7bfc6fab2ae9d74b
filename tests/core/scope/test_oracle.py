"""The data scope against the slow oracle: hosts, URLs, paths and tables in many spellings, allowed by both or by neither."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given

from core.gate_of_core import CoreGate
from oracle import scope
from oracle.scopes import policy_with, scopes, thrown_scope

BLOCKS = range(100 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 2)
BLOCK = 1000

Case = tuple[dict[str, Any], dict[str, str], dict[str, Any]]


def allows(case: Case) -> bool:
    rules, selectors, args = case
    gate = CoreGate(policy_with(rules, selectors))
    (verdict,) = gate.intents("t", "r", "a", [{"id": "c", "tool": "f", "args": args}], at=1)
    assert verdict["code"] in (None, "privilege.data_scope")
    return verdict["code"] is None


@given(scopes())
def test_the_scope_allows_what_the_oracle_allows(case: Case) -> None:
    assert allows(case) is (scope.outside(*case) is None)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_scope_allows_what_the_oracle_allows_of_thrown_cases(block: int) -> None:
    cases = [thrown_scope(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)]
    assert [case for case in cases if allows(case) is not (scope.outside(*case) is None)] == []


@pytest.mark.parametrize(
    ("text", "allowed"), [("2852039166:80", False), ("16777216:1", False), ("12:30", True), ("24:7", True), ("2852039166", True)]
)
def test_a_number_with_a_port_is_an_address_where_no_clock_shows_it(text: str, allowed: bool) -> None:
    case = {"forbidden_patterns": ["elsewhere"]}, dict[str, str](), {"v": text}
    assert allows(case) is allowed
    assert (scope.outside(*case) is None) is allowed
