"""Key templates, reasons, and the normal forms of keys. order.md, Keys."""

from __future__ import annotations

import re

import ada_url

from oracle.values import Json, parse_field, plainly, resolve, shown, text_of

PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


def check_template(template: str) -> None:
    if re.search(r"[{}]", PLACEHOLDER.sub("", template)) or any(not f for f in PLACEHOLDER.findall(template)):
        raise ValueError(f"bad template `{template}`")
    for field in PLACEHOLDER.findall(template):
        if any(kind.startswith("any") for kind, _ in parse_field(field)):
            raise ValueError(f"bad template `{template}`")


def render_key(template: str, args: Json) -> str | None:
    """None when a placeholder does not resolve: the machine does not apply to this call."""
    check_template(template)
    if any(not resolve(args, parse_field(f)) for f in PLACEHOLDER.findall(template)):
        return None
    return PLACEHOLDER.sub(lambda m: _key_text(resolve(args, parse_field(m[1]))[0]), template)


def _key_text(value: Json) -> str:
    """1 and 1.0 are one value, so one instance."""
    return (plainly(value) or [text_of(value)])[0]


def render_text(template: str, args: Json) -> str:
    """In reasons and reminders an unresolved placeholder stays as written; values are capped and escaped."""

    def value(match: re.Match[str]) -> str:
        try:
            found = resolve(args, parse_field(match[1]))
        except ValueError:
            return match[0]
        return shown(text_of(found[0])) if found else match[0]

    return PLACEHOLDER.sub(value, template)


def normalise(how: str, key: str) -> str:
    if how == "trim":
        return key.strip()
    if how == "lowercase":
        return key.lower()
    if how == "path":
        return normal_path(key)
    return normal_url(key) if how == "url" else key


def normal_path(path: str) -> str:
    """Backslashes to slashes, `.` and `..` collapsed, empty is `.`, a leading `..` kept."""
    path = path.replace("\\", "/")
    rooted, kept = path.startswith("/"), list[str]()
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            kept.append(part)
        elif kept and kept[-1] != "..":
            kept.pop()
        elif not rooted:
            kept.append("..")
    return "/" + "/".join(kept) if rooted else "/".join(kept) or "."


def normal_url(text: str) -> str:
    """Trimmed, WHATWG-normalised, fragment dropped; what is no URL stays as trimmed."""
    trimmed = text.strip()
    try:
        return str(ada_url.URL(trimmed).href).split("#", 1)[0]
    except ValueError:
        return trimmed
