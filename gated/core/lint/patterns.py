"""Patterns that look as if they compared numbers, restrictions by texts that write one, and globs over the primary argument of
tools that have several.

Patterns compare no numbers, so the first are globs that hardly any call matches, and the second are passed by `"01"`; the
primary argument of calls with several arguments is all of them, so the third match exactly what nobody meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from gated.core.lint.advice import Advice, Subject
from gated.core.order.fields import Every, Step
from gated.core.order.patterns import Condition, Pattern, compile_pattern
from gated.strict_json import Path

LISTS: Final = frozenset({"allowed_tools", "forbidden_tools", "approval_required"})
_COMPARISON: Final = re.compile(r"[^(]*\(\s*(?P<field>[A-Za-z_][\w.]*)\s*(?P<op>[<>]=?|==)\s*(?P<value>[^)]*?)\s*\)")


def comparisons(subject: Subject) -> Iterator[Advice]:
    for where, text in _patterns(subject.data, ()):
        found = _COMPARISON.fullmatch(text)
        if found is not None:
            test = f"args.{found['field']} {found['op']} {found['value']}"
            message = f"`{text}` compares nothing: it is a glob over the text of the arguments; a contract compares, `{test}`"
            yield Advice(where, message)


def numbers(subject: Subject) -> Iterator[Advice]:
    for where, text in _patterns({key: part for key, part in subject.data.items() if key != "tools"}, ()):
        pattern = compile_pattern(text)
        open_ones = [c for c in pattern.numbers if not _is_typed(subject, pattern, c)] if "allowed_tools" not in where else []
        if open_ones:
            field = open_ones[0].text.partition(" ")[0]
            past = (
                f"`{text}` compares text: the number is meant however it is written, and a text such as `01` or `1.0` gets past"
            )
            yield Advice(where, f"{past}; say in the tool's `schema` what type `{field}` is", "advice")


def _is_typed(subject: Subject, pattern: Pattern, condition: Condition) -> bool:
    """Whether every tool that it may be about says of what type the argument is, so that no text is taken for a number."""
    tools = [tool for tool in subject.policy.entry.tools if pattern.matches_wide_name(tool)]
    return bool(tools) and all(_says(subject.schema(tool), condition.steps) for tool in tools)


def _says(schema: Any, steps: tuple[Step, ...]) -> bool:
    for step in steps:
        if not isinstance(schema, dict):
            return False
        if isinstance(step, str):
            schema = (schema.get("properties") or {}).get(step)
        else:
            schema = schema.get("additionalProperties") if step is Every.VALUE else schema.get("items")
    return isinstance(schema, dict) and not schema.keys().isdisjoint(("type", "enum", "const"))


def positionals(subject: Subject) -> Iterator[Advice]:
    schemas = {tool: schema for tool in subject.policy.entry.tools if (schema := subject.schema(tool)) is not None}
    for where, text in _patterns({key: part for key, part in subject.data.items() if key != "tools"}, ()):
        pattern = compile_pattern(text)
        tool = next((tool for tool in schemas if pattern.positional and pattern.matches_name(tool)), None)
        properties = schemas[tool].get("properties") or {} if tool is not None else {}
        if len(properties) > 1:
            names = ", ".join(f"`{key}`" for key in properties)
            message = f"`{text}` looks at the only argument, and `{tool}` has {names}: name the one that is meant"
            yield Advice(where, f'{message}, as in `{tool}({next(iter(properties))} ~ "…")`', "advice")


def _patterns(part: Any, where: Path) -> Iterator[tuple[Path, str]]:
    """Every pattern of tools in the document, with its place."""
    if isinstance(part, list):
        for position, item in enumerate(part):
            yield from _patterns(item, (*where, position))
    for key, value in part.items() if isinstance(part, dict) else ():
        if key == "on" or key in LISTS:
            several = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
            yield from (((*where, key, *(() if at is None else (at,))), text) for at, text in several if isinstance(text, str))
        else:
            yield from _patterns(value, (*where, key))
