"""Which rules of a policy must read the arguments of a tool's calls, or the results that came of them.

What was redacted before it was recorded cannot be read again: a verdict that rests on it is not replayable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gated.core.order.fields import Step
from gated.core.order.machines import Machine, Transition
from gated.core.order.patterns import Pattern
from gated.core.policy import Policy, Profile
from gated.core.scope import Scope
from gated.core.stages.contracts import Contract

Names = frozenset[str] | None
"""Arguments by their names, at the top of a call; None: whichever there are."""

NONE: Final[Names] = frozenset()
_MARK: Final = re.compile(r"\[redacted \w+ [0-9a-f]+\]")


def reads_arguments(policy: Policy, profile: Profile, tool: str, hidden: Names = None) -> str | None:
    """The first rule that reads one of the `hidden` arguments of the tool's calls, in words; None where the rest decides."""
    return next((rule for rule, read in _readers(policy, profile, tool, hidden) if meet(read, hidden)), None)


def quotes_arguments(profile: Profile, tool: str, hidden: Names) -> str | None:
    """The first machine whose reasons or reminders quote one of the hidden arguments: no verdict, but a text, rests on it."""
    if "order" not in dict(profile.stages):
        return None
    return next((f"a text of machine `{m.name}`" for m in profile.machines.machines if meet(_quoted_by(m, tool), hidden)), None)


def unread(policy: Policy, profile: Profile, tool: str, args: Mapping[str, Any]) -> str | None:
    """Which rule would have to read what was redacted of a call's arguments."""
    hidden = hidden_in(args)
    rule = None if hidden == NONE else reads_arguments(policy, profile, tool, hidden)
    return None if rule is None else f"{rule} reads the arguments, which were redacted"


def meet(read: Names, hidden: Names) -> bool:
    """Whether one of the hidden arguments is read."""
    if read is None or hidden is None:
        return read != NONE and hidden != NONE
    return not read.isdisjoint(hidden)


def _readers(policy: Policy, profile: Profile, tool: str, hidden: Names) -> Iterator[tuple[str, Names]]:
    stages = dict(profile.stages)
    if tool in policy.schemas:
        yield f"the schema of `{tool}`", None
    if "privilege" in stages:
        rules = profile.privilege
        patterns = (*rules.forbidden_patterns, *rules.allowed_patterns, *rules.approvals)
        yield from ((f"the pattern `{pattern.text}`", _read_by(pattern, tool)) for pattern in patterns)
        if not rules.scope.is_off:
            yield "`data_scope`", _read_by_scope(rules.scope, tool, hidden)
    if "order" in stages:
        yield from ((f"machine `{machine.name}`", _read_by_machine(machine, tool)) for machine in profile.machines.machines)
    if "contracts" in stages:
        for contract in profile.contracts.about(tool):
            yield f"contract `{contract.entry.name}`", _read_by_contract(contract, tool)
    if "semantic" in stages and policy.semantic is not None:
        for detector in policy.semantic.detectors:  # what it said is recorded; whom it is asked about is not
            yield f"the detector `{detector.name}`", _all(_read_by(pattern, tool) for pattern in detector.patterns or ())


def _all(names: Iterable[Names]) -> Names:
    found: frozenset[str] = frozenset()
    for some in names:
        if some is None:
            return None
        found |= some
    return found


def _read_by(pattern: Pattern, tool: str) -> Names:
    """A restriction matches names in any case, so its arguments are read for any spelling of the name."""
    name = pattern.exact_tool
    named = pattern.matches_name(tool) if name is None else name.casefold() == tool.casefold()
    return pattern.reads if named else NONE


def _read_by_scope(scope: Scope, tool: str, hidden: Names) -> Names:
    """Every argument but those that are declared `none`."""
    return None if hidden is None else frozenset(name for name in hidden if not scope.spares(tool, name))


def _first(path: tuple[Step, ...]) -> Names:
    return frozenset((path[0],)) if path and isinstance(path[0], str) else None


def _watching(machine: Machine, tool: str) -> list[Transition]:
    return [t for t in machine.transitions if t.on.exact_tool is None or t.on.exact_tool.casefold() == tool.casefold()]


def _read_by_machine(machine: Machine, tool: str) -> Names:
    watching = _watching(machine, tool)
    key = map(_first, machine.key.paths) if watching or machine.entry.strict else ()
    return _all((*(transition.on.reads for transition in watching), *key))


def _quoted_by(machine: Machine, tool: str) -> Names:
    texts = [text for t in _watching(machine, tool) for text in (t.emit_text, t.reason) if text is not None]
    return _all(_first(path) for text in texts for path in text.paths)


def keyed_by(machine: Machine, hidden: Names) -> bool:
    """Whether one of the hidden arguments is in the machine's key."""
    return meet(_all(map(_first, machine.key.paths)), hidden)


def _read_by_contract(contract: Contract, tool: str) -> Names:
    needed = () if contract.require is None else contract.require.expression.reads
    fields = [fields for root, fields in needed if root == "args" and contract.on.matches_name(tool)]
    return _all((_read_by(contract.on, tool), *(None if named is None else frozenset(named) for named in fields)))


def reads_results(machine: Machine, content: bool, facts: bool) -> bool:
    """Whether a move of the machine may rest on what a tool answered: on its `content`, on its `facts`."""
    return any((content and t.content is not None) or (facts and t.facts is not None) for t in machine.transitions)


def is_redacted(value: Any) -> bool:
    """Whether something in a value was taken out before it was recorded: `{redacted: kind, sha256: keyed digest}`, or a key."""
    if isinstance(value, dict):
        return set(value) == {"redacted", "sha256"} or any(_MARK.search(key) or is_redacted(value[key]) for key in value)
    return isinstance(value, list | tuple) and any(map(is_redacted, value))


def hidden_in(args: Mapping[str, Any]) -> Names:
    """The arguments that something was taken out of; None where that may be any, since a name itself was."""
    if set(args) == {"redacted", "sha256"} or any(map(_MARK.search, args)):
        return None
    return frozenset(name for name, value in args.items() if is_redacted(value))
