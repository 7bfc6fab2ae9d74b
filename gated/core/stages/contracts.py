"""contracts: pre- and postconditions of calls, as expressions of a policy's author.

`on` matches widely, since a contract restricts. What cannot be evaluated, or is not a boolean, denies, whatever `otherwise`
says. A postcondition is checked when the outcome comes; its breach is recorded and, with `on_breach: fail`, fails the run.
Codes: `contracts.require` `contracts.ensure` `contracts.error`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from gated.core.call import Call
from gated.core.expressions import (
    CALL_NAMES,
    ENSURE_NAMES,
    EvaluationError,
    ExpressionError,
    compile_expression,
)
from gated.core.names import Label
from gated.core.order.patterns import Pattern, PatternError, compile_pattern
from gated.core.runview import Reading, View
from gated.events import Finding, Status

STAGE: Final = "contracts"


class ContractEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of `contracts:` in the policy file."""

    name: Label
    on: str
    require: str | None = None
    otherwise: Literal["deny", "ask", "warn"] = "deny"
    reason: str | None = None
    ensure: str | None = None
    on_breach: Literal["record", "fail"] = "record"
    mode: Literal["enforce", "observe"] = "enforce"


class ContractError(ValueError):
    """A mistake in a contract; `path` leads to it inside the list."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


class Contract(Struct, frozen=True):
    entry: ContractEntry
    on: Pattern
    require: Reading | None
    ensure: Reading | None


class AtOnce(Struct, frozen=True):
    """Where `all_hold` is true, so is every precondition of the tool but those of the `others`: half of what an evaluation
    costs does not depend on what is evaluated. Where it is anything else, each says by itself what is wrong."""

    all_hold: Reading
    others: tuple[Contract, ...]


class ContractSet:
    """Contracts, found by tool name."""

    __slots__ = ("_anywhere", "_at_once", "_by_tool", "_ensured", "all", "any", "recent")

    def __init__(self, contracts: Sequence[Contract]) -> None:
        self.all = tuple(contracts)
        self.any = bool(contracts)
        read = [r.expression for c in contracts for r in (c.require, c.ensure) if r is not None]
        self.recent = any(root == "recent" for expression in read for root, _ in expression.reads)
        self._anywhere = tuple(c for c in contracts if c.on.exact_tool is None)
        names = {c.on.exact_tool.casefold() for c in contracts if c.on.exact_tool is not None}
        self._by_tool = {
            name: tuple(c for c in contracts if c.on.exact_tool is None or c.on.exact_tool.casefold() == name) for name in names
        }
        self._ensured = {name: any(c.ensure is not None for c in about) for name, about in self._by_tool.items()}
        self._at_once = {name: _at_once(name, about) for name, about in self._by_tool.items()}

    def at_once(self, tool: str) -> AtOnce | None:
        """The preconditions of the tool that one evaluation clears; None: each is evaluated by itself."""
        return self._at_once.get(tool.casefold())

    def about(self, tool: str) -> tuple[Contract, ...]:
        return self._by_tool.get(tool.casefold(), self._anywhere)

    def ensures(self, tool: str) -> bool:
        """Whether an outcome of the tool may have a postcondition."""
        known = self._ensured.get(tool.casefold())
        return any(contract.ensure is not None for contract in self._anywhere) if known is None else known


def compile_contracts(entries: Sequence[ContractEntry]) -> ContractSet:
    """Raises `ContractError` with the path of the mistake inside the list."""
    found: dict[str, Contract] = {}
    for position, entry in enumerate(entries):
        if entry.name in found:
            raise ContractError(f"contract `{entry.name}` is declared twice", position, "name")
        _refuse_idle(entry, position)
        try:
            on = compile_pattern(entry.on)
        except PatternError as error:
            raise ContractError(str(error), position, "on") from error
        require = _expression(entry.require, CALL_NAMES, position, "require")
        ensure = _expression(entry.ensure, ENSURE_NAMES, position, "ensure")
        found[entry.name] = Contract(entry, on, require, ensure)
    return ContractSet(tuple(found.values()))


def _at_once(tool: str, about: Sequence[Contract]) -> AtOnce | None:
    joined = [c for c in about if c.require is not None and not c.on.needs_args and c.on.matches_wide_name(tool)]
    if len(joined) < 2:
        return None
    text = " && ".join(
        f"({c.require.expression.text}\n)" for c in joined if c.require is not None
    )  # a comment ends with its line
    try:
        expression = compile_expression(text, CALL_NAMES)
    except ExpressionError:  # together they are too long or too deep
        return None
    return None if expression.doubt else AtOnce(Reading(expression), tuple(c for c in about if c not in joined))


def _refuse_idle(entry: ContractEntry, position: int) -> None:
    """A setting that cannot have an effect is a mistake."""
    if entry.require is None and entry.ensure is None:
        raise ContractError(f"contract `{entry.name}` has neither `require` nor `ensure`", position)
    if entry.require is None and entry.otherwise != "deny":
        raise ContractError(f"contract `{entry.name}` has `otherwise` and no `require`", position, "otherwise")
    if entry.ensure is None and entry.on_breach == "fail":
        raise ContractError(f"contract `{entry.name}` has `on_breach` and no `ensure`", position, "on_breach")


def _expression(text: str | None, names: Any, position: int, field: str) -> Reading | None:
    try:
        return None if text is None else Reading(compile_expression(text, names))
    except ExpressionError as error:
        raise ContractError(str(error), position, field) from error


def check(rules: ContractSet, view: View, call: Call) -> tuple[Finding, ...]:
    """Preconditions: what does not hold, or cannot be evaluated."""
    found: list[Finding] = []
    at_once = rules.at_once(call.tool)
    for contract in at_once.others if at_once is not None and _clears(at_once, view, call) else rules.about(call.tool):
        require = contract.require
        if require is None or not contract.on.matches_wide(call.tool, call.args):
            continue
        try:
            if not require.test(view, call.tool, call.args):
                reason = contract.entry.reason or f"contract `{contract.entry.name}` does not hold: {require.expression.text}"
                found.append(_finding(contract, contract.entry.otherwise, "contracts.require", reason))
        except EvaluationError as error:
            reason = f"contract `{contract.entry.name}` cannot be evaluated: {error}"
            found.append(_finding(contract, "deny", "contracts.error", reason))
    return tuple(found)


def _clears(at_once: AtOnce, view: View, call: Call) -> bool:
    try:
        return at_once.all_hold.test(view, call.tool, call.args)
    except EvaluationError:
        return False


def ensure(
    rules: ContractSet,
    view: View,
    tool: str,
    args: Mapping[str, Any],
    status: Status,
    content: Any,
    facts: Mapping[str, Any],
) -> tuple[Finding, ...]:
    """Postconditions that do not hold; one that cannot be evaluated does not."""
    result = {"status": status, "content": content, "facts": facts}
    found: list[Finding] = []
    for contract in rules.about(tool):
        reading = contract.ensure
        if reading is None or not contract.on.matches_wide(tool, args):
            continue
        try:
            holds, why = reading.expression.test({**reading.values(view, tool, args), "result": result}), reading.expression.text
        except EvaluationError as error:
            holds, why = False, str(error)
        if not holds:
            said = contract.entry.reason if contract.require is None else None
            reason = said or f"postcondition of `{contract.entry.name}` does not hold: {why}"
            found.append(_finding(contract, "warn", "contracts.ensure", reason))
    return tuple(found)


def fails_run(rules: ContractSet, findings: Sequence[Finding], tool: str) -> bool:
    """Whether one of these breaches ends the run."""
    broken = {finding.contract for finding in findings if finding.authoritative}
    return any(c.entry.name in broken and c.entry.on_breach == "fail" for c in rules.about(tool))


def _finding(contract: Contract, outcome: Literal["deny", "ask", "warn"], code: str, reason: str) -> Finding:
    name, enforced = contract.entry.name, contract.entry.mode == "enforce"
    return Finding(STAGE, outcome, code, reason, authoritative=enforced, contract=name)
