"""Contracts: those that are never asked, and those that can never be evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gated.core.lint.advice import Advice, Subject, may_meet
from gated.core.order.patterns import compile_pattern

_ARGUMENT: Final = r"(args(?:\.\w+)+)"
# An argument that a rule forbids some values of, and whose type it does not ask for.
_NEGATED: Final = re.compile(rf"^(?!.*\btype\()(?:.*!\(\s*{_ARGUMENT}\s+in\b|.*{_ARGUMENT}\s*!=)", re.DOTALL)


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
        if entry.require is not None and (said := _NEGATED.search(entry.require)) is not None:
            yield Advice((*place, "require"), _of_another_type(said[1] or said[2]), "advice")
    yield from _undecidable(subject)


def _of_another_type(argument: str) -> str:
    """In CEL values of two types are unequal, and that is no error."""
    return (
        f"`{argument}` of another type is in no list and equal to nothing, so the negation holds: say what its type must be, "
        f"as in `type({argument}) == string && …`"
    )


def _undecidable(subject: Subject) -> Iterator[Advice]:
    """Contracts that are certain not to evaluate, whatever the call."""
    contracts = next((profile.contracts.all for _, profile, _ in subject.profiles()), ())
    for position, contract in enumerate(contracts):
        for field, expression in (("require", contract.require), ("ensure", contract.ensure)):
            if expression is not None and expression.doubt:
                message = f"contract `{contract.entry.name}` can never be evaluated, so it does not hold: {expression.doubt}"
                yield Advice(("contracts", position, field), message)
