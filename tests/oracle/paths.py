"""Paths inside the allowed ones, lexically. decisions.md §5, Paths."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from oracle.resources import DRIVE, is_urllike
from oracle.spellings import ESCAPE, has_control, parse_url
from oracle.templates import normal_path


def allows_path(rules: dict[str, Any], text: str) -> bool:
    """The value as written and its form with percent-escapes decoded once must both be inside."""
    decoded = unquote(text, errors="replace")
    return not ESCAPE.search(decoded) and all(_inside(rules, form) for form in (text, decoded))


def _inside(rules: dict[str, Any], text: str) -> bool:
    if re.match(r"[/\\]{2}", text) or has_control(text) or parse_url(text) is not None or is_urllike(text):
        return False
    if text.startswith("~") or "$" in text or re.match(DRIVE, text):
        return False
    full = joined(rules, text)
    return full.startswith("/") and any(_below(full, normal_path(allowed)) for allowed in rules.get("allowed_paths") or [])


def _below(path: str, allowed: str) -> bool:
    """With component boundaries: `/workspace-evil` is not inside `/workspace`."""
    return path == allowed or path.startswith(allowed.rstrip("/") + "/")


def joined(rules: dict[str, Any], text: str) -> str:
    """The normal form; relative ones join `base_path`."""
    base = rules.get("base_path")
    relative = not text.startswith(("/", "\\"))
    return normal_path(f"{base}/{text}" if relative and base else text)
