"""Plain data as YAML that `parse_document` reads as the same data: text is quoted unless it can only be text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_/-]*")
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
# What YAML does not take as it is: control characters, line breaks of its older version, what is no character.
_UNSAFE: Final = re.compile("[^\\x20-\\x7e\\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
WIDTH: Final = 110


def write_yaml(data: Mapping[str, Any]) -> str:
    """Blocks for mappings, one line for what fits on one."""
    return "\n".join(_mapping(data, 0)) + "\n"


def _mapping(data: Mapping[str, Any], indent: int) -> Iterator[str]:
    for key, value in data.items():
        head = f"{' ' * indent}{_scalar(key)}:"
        flow = write_flow(value)
        if indent and _is_small(value, indent) and len(head) + len(flow) < WIDTH:
            yield f"{head} {flow}"
        elif isinstance(value, dict) and value:
            yield head
            yield from _mapping(value, indent + 2)
        elif isinstance(value, list | tuple) and value:
            yield head
            yield from (f"{' ' * (indent + 2)}- {write_flow(item)}" for item in value)
        else:
            yield f"{head} {flow}"


def _is_small(value: Any, indent: int) -> bool:
    """What is one thing to a reader, so one line: something deep inside, or a mapping of plain values."""
    if not isinstance(value, dict) or indent >= 4 or len(value) <= 1:
        return True
    return not any(isinstance(item, dict | list | tuple) for item in value.values())


def write_flow(value: Any) -> str:
    """On one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {write_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(write_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    text = json.dumps(value, ensure_ascii=not isinstance(value, str))
    return _UNSAFE.sub(lambda match: f"\\U{ord(match[0]):08x}", text)
