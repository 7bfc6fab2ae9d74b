"""Which rules of a policy must read the arguments of a tool's calls, or the results that came of them.

What was redacted before it was recorded cannot be read again: a verdict that rests on it is not replayable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gated.core.order.machines import Machine
from gated.core.order.patterns import Pattern
from gated.core.policy import Policy, Profile


def reads_arguments(policy: Policy, profile: Profile, tool: str) -> str | None:
    """The first rule that reads the arguments of the tool's calls, in words; None where the name alone decides."""
    return next(_readers(policy, profile, tool), None)


def _readers(policy: Policy, profile: Profile, tool: str) -> Iterator[str]:
    stages = dict(profile.stages)
    if tool in policy.schemas:
        yield f"the schema of `{tool}`"
    if "privilege" in stages:
        rules = profile.privilege
        patterns = (*rules.forbidden_patterns, *rules.allowed_patterns, *rules.approvals)
        yield from (f"the pattern `{pattern.text}`" for pattern in patterns if _reads(pattern, tool))
        if not rules.scope.is_off:
            yield "`data_scope`"
    if "order" in stages:
        yield from (f"machine `{machine.name}`" for machine in profile.machines.machines if _machine_reads(machine, tool))
    if "contracts" in stages:
        for contract in profile.contracts.about(tool):
            needs = contract.require is not None and any(root == "args" for root, _ in contract.require.reads)
            if _reads(contract.on, tool) or (needs and contract.on.matches_name(tool)):
                yield f"contract `{contract.entry.name}`"
    if "semantic" in stages and policy.semantic is not None:
        for detector in policy.semantic.detectors:  # what it said is recorded; whom it is asked about is not
            if any(_reads(pattern, tool) for pattern in detector.patterns or ()):
                yield f"the detector `{detector.name}`"


def _reads(pattern: Pattern, tool: str) -> bool:
    """A restriction matches names in any case, so its arguments are read for any spelling of the name."""
    name = pattern.exact_tool
    named = pattern.matches_name(tool) if name is None else name.casefold() == tool.casefold()
    return pattern.needs_args and named


def _machine_reads(machine: Machine, tool: str) -> bool:
    watching = [t.on for t in machine.transitions if t.on.exact_tool is None or t.on.exact_tool.casefold() == tool.casefold()]
    return any(on.needs_args for on in watching) or bool((watching or machine.entry.strict) and machine.key.fields)


def reads_results(machine: Machine) -> bool:
    """Whether a move of the machine may rest on what a tool answered."""
    return any(t.content is not None or t.facts is not None for t in machine.transitions)


def is_redacted(value: Any) -> bool:
    """Whether something in a value was taken out before it was recorded: `{redacted: kind, sha256: keyed digest}`."""
    if isinstance(value, dict):
        return set(value) == {"redacted", "sha256"} or any(map(is_redacted, value.values()))
    return isinstance(value, list | tuple) and any(map(is_redacted, value))
