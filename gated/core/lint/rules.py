"""Contracts: those that are never asked, and those that can never be evaluated."""

from __future__ import annotations

from collections.abc import Iterator

from gated.core.lint.advice import Advice, Subject, may_meet
from gated.core.order.patterns import compile_pattern


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
    yield from _undecidable(subject)


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
