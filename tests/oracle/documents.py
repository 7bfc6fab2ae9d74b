"""YAML by the 1.2 core schema: `on`, `off`, `yes`, `no` are text, dates are text. policy.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml


class Core(yaml.SafeLoader):
    """The 1.2 core schema's resolvers in place of PyYAML's 1.1 ones."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


for _tag, _text, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    Core.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_text})$"), [*_first, *([""] if _tag == "null" else [])]
    )


def _int(loader: Core, node: yaml.Node) -> int:
    return int(str(node.value))


def _float(loader: Core, node: yaml.Node) -> float:
    return float(str(node.value))


Core.add_constructor("tag:yaml.org,2002:int", _int)
Core.add_constructor("tag:yaml.org,2002:float", _float)


def read(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Core)
