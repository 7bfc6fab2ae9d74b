"""The data scope of one call. decisions.md §5, Data scope."""

from __future__ import annotations

import re
from typing import Any

from oracle import endpoints, paths
from oracle.resources import Item, is_pathlike, is_resource, items
from oracle.spellings import clean, forms, parse_url, trimmed
from oracle.values import Json

METADATA_ADDRESS = "169.254.169.254"
TABLE = re.compile(r"([A-Za-z0-9_$-]+)\.([A-Za-z0-9_$-]+)")


def outside(rules: dict[str, Any], selectors: dict[str, str], args: Json) -> str | None:
    """The first resource outside the scope in its normal form; None when there is none.

    Any forbidden pattern comes before all that allows.
    """
    texts = [item for item in items(selectors, args) if item.kind != "none"]
    for item in texts:
        if is_forbidden(rules, item):
            return normal_form(rules, item)
    for item in texts:
        if not _allowed(rules, item):
            return normal_form(rules, item)
    return None


def is_forbidden(rules: dict[str, Any], item: Item) -> bool:
    """Searched, case folded, raw and canonical; the canonical form of a relative path is joined to `base_path`."""
    unwanted = [p.casefold() for p in rules.get("forbidden_patterns", [METADATA_ADDRESS])]
    found = forms(item.text)
    if item.kind == "path" or is_pathlike(clean(item.text)):
        found |= {paths.joined(rules, item.text), paths.joined(rules, clean(item.text))}
    return any(pattern in form.casefold() for pattern in unwanted for form in found)


def _allowed(rules: dict[str, Any], item: Item) -> bool:
    entries, text = rules.get("allowed_api_endpoints") or [], item.text
    if item.kind == "url":
        return endpoints.allows_url(entries, text)
    if item.kind == "host":
        return endpoints.allows_host(entries, trimmed(text))
    if item.kind == "table":
        return _allows_table(rules, text)
    if item.kind == "path":
        return _allows_path(rules, text)
    return not is_resource(text) or _undeclared_allowed(rules, entries, text)


def _undeclared_allowed(rules: dict[str, Any], entries: list[str], text: str) -> bool:
    """As a path only in form (b), as a table only with exactly one dot, as a host only without `/ \\ ? #`."""
    if re.match(r"[/\\]{2}", trimmed(text)) or re.match(r"[/\\]{2}", clean(text)):
        return False  # outside every scope
    return (
        endpoints.allows_url(entries, text)
        or (not re.search(r"[/\\?#]", text) and endpoints.allows_host(entries, trimmed(text)))
        or (text.count(".") == 1 and _allows_table(rules, text))
        or (is_pathlike(clean(text)) and _allows_path(rules, text))
    )


def _allows_path(rules: dict[str, Any], text: str) -> bool:
    """Whatever a tool drops or decodes before it opens it."""
    return all(paths.allows_path(rules, form) for form in (text, trimmed(text), clean(text)))


def _allows_table(rules: dict[str, Any], text: str) -> bool:
    """The database allowed and its table list empty or holding the table. A list that is absent is empty."""
    names = TABLE.fullmatch(text)
    if names is None or names[1] not in (rules.get("allowed_databases") or []):
        return False
    tables = (rules.get("allowed_tables") or {}).get(names[1]) or []
    return not tables or names[2] in tables


def normal_form(rules: dict[str, Any], item: Item) -> str:
    """How the reason names a resource."""
    url = parse_url(item.text)
    if item.kind != "path" and url is not None:
        return str(url.href)
    pathlike = item.kind == "path" or (item.kind is None and is_pathlike(clean(item.text)))
    return paths.joined(rules, item.text) if pathlike else item.text
