"""Paths and the folders an agent may touch, compared without looking at a disk.

A path is read in every spelling a tool may read it in (as written, unescaped once, tidied), and every reading must be
inside. What a shell, Windows or a URL parser would take elsewhere is outside, wherever it points.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gated.core.scope.effort import LONGEST
from gated.core.scope.rules import ScopeError
from gated.core.scope.spelling import CONTROL, ESCAPE, badly_escaped, tidy, unescape
from gated.core.scope.urls import SCHEME

_VARIABLE: Final = re.compile(r"\$|%[A-Za-z_][A-Za-z0-9_()]*%")
# Of `{a,b}`: an alternative that begins anew or is only dots, so that the text is not the path it expands to. Of `{a..b}`: ends
# between which a dot or a slash may stand.
_BRACES: Final = re.compile(
    r"[{,]\s*(?:[/\\~]|\.{1,2}\s*(?:[},/\\]|\Z))|\{(?![0-9A-Za-z]\.\.[0-9A-Za-z][.}])[^{}]\.\.[^{}](?:\.\.[+-]?[0-9]+)?\}"
)
_TWO_SLASHES: Final = re.compile(r"[/\\]{2}")
# A path that every reader reads alike and that is its own normal form: names of ASCII letters, digits, `_`, `-` and dots,
# none of them only dots. A relative one begins with a name that has a letter which no spelling of an address has.
_NAME: Final = r"\.?[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_PLAIN: Final = re.compile(rf"(?:(?=[0-9A-FXa-fx.-]*[G-WYZg-wyz_]){_NAME}|/{_NAME})(?:/{_NAME})*")


def normal(path: str) -> str:
    """Absolute, `.` and `..` collapsed, one slash between names. Not `posixpath.normpath`: that keeps a double slash
    at the front, and some versions cut at a NUL."""
    names: list[str] = []
    for name in path.replace("\\", "/").split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return "/" + "/".join(names)


def is_relative(path: str) -> bool:
    return not path.startswith(("/", "\\"))


def readings(path: str) -> tuple[str, ...]:
    """As written and unescaped once, each also with every name tidied: a tool may do either without the other."""
    unescaped = unescape(path)
    if unescaped.isascii() and unescaped.isprintable() and " " not in unescaped:
        return (path,) if path == unescaped else (path, unescaped)
    return tuple(dict.fromkeys((path, unescaped, _tidied(path), _tidied(unescaped))))


def _tidied(path: str) -> str:
    return "/".join(name.strip() for name in tidy(path).replace("\\", "/").split("/"))


def fault(path: str) -> str | None:
    """Why this reading is outside every scope, whatever the scope, or None."""
    start = path.lstrip()
    if CONTROL.search(path):
        return "holds a control character"
    if _TWO_SLASHES.match(start):
        return "begins with two slashes"
    if start.startswith("~") or _VARIABLE.search(path):
        return "begins with `~` or names a variable"
    if "{" in path and _BRACES.search(path):
        return "holds an alternative in braces that leaves its folder"
    if SCHEME.match(start):
        return "begins with a drive letter or a scheme"
    return None


class Refusal(NamedTuple):
    """`shown` is the path in its normal form, or as it is written where it has none."""

    shown: str
    why: str


class Paths:
    """The allowed folders of a scope, and the folder that relative paths start from."""

    def __init__(self, allowed: Iterable[str], base: str | None) -> None:
        self._base = None if base is None else self._folder("base_path", base, None)
        self._roots = tuple(self._folder("allowed_paths", path, self._base) for path in allowed)
        self._inside = tuple(root if root == "/" else f"{root}/" for root in self._roots)

    @staticmethod
    def _folder(key: str, path: str, base: str | None) -> str:
        why = fault(path) or ("holds a percent-escape" if ESCAPE.search(path) else None)
        if why:
            raise ScopeError(f"{key}: `{path}` {why} and could never match; write a plain path from the root")
        if is_relative(path) and base is None:
            raise ScopeError(f"{key}: `{path}` is relative; write it from the root, or give an absolute `base_path`")
        return normal(path if base is None or not is_relative(path) else f"{base}/{path}")

    def located(self, reading: str) -> str | None:
        """The absolute path as a file system would be asked for it, dots and all; None where there is no base."""
        if not is_relative(reading):
            return reading.replace("\\", "/")
        return None if self._base is None else f"{self._base}/{reading}".replace("\\", "/")

    def holds(self, path: str) -> bool:
        return f"{path}/".startswith(self._inside)

    def plainly_inside(self, path: str) -> str | None:
        """The folder form (with a slash at the end) of a path that needs no reading and is inside, or None: not known.

        INVARIANT: it contains every spelling of the path that `forbidden.spellings` makes.
        """
        if len(path) > LONGEST or _PLAIN.fullmatch(path) is None:
            return None
        if path[0] == "/":
            whole = f"{path}/"
        elif self._base is None:
            return None
        else:
            whole = f"{self._base}/{path}/"
        return whole if whole.startswith(self._inside) else None

    def refuse(self, path: str) -> Refusal | None:
        """Why the path is not inside the allowed folders by its name, or None."""
        if len(path) > LONGEST:
            return Refusal(path, f"is longer than {LONGEST} characters")
        unescaped = unescape(path)
        if ESCAPE.search(unescaped) or badly_escaped(path, unescaped):
            return Refusal(path, "is still escaped after unescaping once")
        escapes = len(ESCAPE.findall(path))
        written = (path, _tidied(path)) if escapes else ()  # the readings that keep their escapes
        for reading in readings(path):
            why = fault(reading)
            if why is None and len(ESCAPE.findall(reading)) > (escapes if reading in written else 0):
                why = "is still escaped after folding full-width characters"
            if why is not None:
                return Refusal(reading, why)
            located = self.located(reading)
            if located is None:
                return Refusal(reading, "is relative, and the scope has no `base_path`")
            if not self.holds(normal(located)):
                return Refusal(normal(located), "is outside the allowed paths")
        return None

    def locations(self, path: str) -> tuple[str, ...]:
        """Every reading of the path as an absolute path, dots and all; none of a path that is too long to be one."""
        if len(path) > LONGEST:
            return ()
        located = map(self.located, readings(path))
        return tuple(dict.fromkeys(spot for spot in located if spot is not None))

    def refuse_links(self, located: Iterable[str], resolved: Mapping[str, str]) -> Refusal | None:
        """Why, by what was recorded of its links, a location is not inside; one with no record is not."""
        for path in located:
            real = resolved.get(path, "")
            if not real.startswith("/"):
                return Refusal(normal(path), "has no recorded resolution of its symbolic links")
            if not self.holds(normal(real)):
                return Refusal(normal(real), "is outside the allowed paths, reached by a symbolic link")
        return None
