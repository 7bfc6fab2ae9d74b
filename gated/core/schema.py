"""The JSON Schema of the policy file: its form from the structs that read it, its words from `schema_words`."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from gated.core.policy_file import PolicyEntry
from gated.core.schema_words import WORDS

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
END: Final = r"$(?!\n)"  # Python's `$` also matches before a last line break; that of a JSON Schema does not


def policy_schema() -> dict[str, Any]:
    """Complete: every key with a description, every choice with its values; what the policy refuses it mostly refuses too."""
    made = json.loads(json.dumps(msgspec.json.schema(PolicyEntry)))
    for name, definition in made["$defs"].items():
        for key, rule in definition.get("properties", {}).items():
            definition["properties"][key] = _described(rule, WORDS.get((name, key)))
        definition.pop("title", None)
    return {"$schema": DIALECT, "title": "gated policy", "description": "What agents may do.", **_plain(made)}


def _described(rule: dict[str, Any], words: str | None) -> dict[str, Any]:
    """Defaults of whole parts are left out: each key of the part has its own."""
    if isinstance(rule.get("default"), dict | list) and rule["default"]:
        rule = {key: value for key, value in rule.items() if key != "default"}
    return rule if words is None else {"description": words} | rule | {"description": words}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.replace(END, "$") if isinstance(value, str) else value
