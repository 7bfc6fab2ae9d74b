"""Contracts: those that are never asked, those that can never be evaluated, and those that take a map for a list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gated.core.lint.advice import Advice, Subject, may_meet
from gated.core.order.patterns import compile_pattern

_RUN_OVER: Final = re.compile(r"\bargs\.(\w+)\.(all|exists|exists_one|filter|map)\(")


def rules(subject: Subject) -> Iterator[Advice]:
    profiles = list(subject.profiles())
    on = [profile for _, profile, stages in profiles if "contracts" in stages]
    for position, entry in enumerate(subject.policy.entry.contracts):
        place = ("contracts", position)
        if profiles and not on:
            yield Advice(place, f"contract `{entry.name}` does nothing: no agent has the stage contracts among its `checks`")
        elif profiles and not any(may_meet(profile, compile_pattern(entry.on)) for profile in on):
            yield Advice((*place, "on"), f"contract `{entry.name}` is dead: no agent may call what `{entry.on}` matches")
        if entry.mode == "observe":
            yield Advice((*place, "mode"), f"contract `{entry.name}` is only observed", "advice")
        yield from _run_over(subject, position)
    yield from _undecidable(subject)


def _run_over(subject: Subject, position: int) -> Iterator[Advice]:
    """Arguments that a macro runs over, where nothing says that they are lists: of a map it looks at the keys alone."""
    entry = subject.policy.entry.contracts[position]
    schema = subject.schema(compile_pattern(entry.on).exact_tool or "") or {}
    for name, macro in dict(_RUN_OVER.findall(entry.require or "")).items():
        said = (schema.get("properties") or {}).get(name)
        if f"type(args.{name})" in (entry.require or "") or (isinstance(said, dict) and said.get("type") == "array"):
            continue
        what = f"`{macro}` looks at the keys alone where `args.{name}` is a map: write `type(args.{name}) == list && …`"
        yield Advice(("contracts", position, "require"), what, "advice")


def _undecidable(subject: Subject) -> Iterator[Advice]:
    """Contracts that are certain not to evaluate, whatever the call."""
    contracts = next((profile.contracts.all for _, profile, _ in subject.profiles()), ())
    for position, contract in enumerate(contracts):
        for field, reading in (("require", contract.require), ("ensure", contract.ensure)):
            if reading is not None and reading.expression.doubt:
                message = (
                    f"contract `{contract.entry.name}` can never be evaluated, so it does not hold: {reading.expression.doubt}"
                )
                yield Advice(("contracts", position, field), message)
