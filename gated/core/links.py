"""Where paths really lead: following symbolic links, and giving what was found to the observation that named the paths.

Pure: who can look at a disk (or a scenario, at its mapping) says what each link is. What was found is recorded with the call, so
that a replay reads the record and not the disk.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from gated.events import CallId, CanIAsked, IntentsReceived, Observation, ResolutionReceived

MOST_LINKS: Final = 40

Said = TypeVar("Said", bound=Observation)


def follow(path: str, read_link: Callable[[str], str | None]) -> str:
    """The real path of an absolute path, also where its last names do not exist yet. `read_link` is None for what is no link.

    Each `..` is taken after the links before it, as the kernel does. Raises `OSError` for a loop of links, `ValueError` for
    a relative path.
    """
    if not path.startswith("/"):
        raise ValueError(f"`{path}` is no absolute path; join it to a folder first")
    real, links = "", 0
    pending = path.split("/")[::-1]
    while pending:
        name = pending.pop()
        if name == "..":
            real = real.rpartition("/")[0]
        elif name not in ("", "."):
            target = read_link(f"{real}/{name}")
            if target is None:
                real = f"{real}/{name}"
                continue
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, "too many symbolic links", path)
            real = "" if target.startswith("/") else real
            pending += target.split("/")[::-1]
    return real or "/"


def with_links(said: Said, found: Mapping[CallId, Mapping[str, str]]) -> Said:
    """The observation with where the paths of its calls lead. What was said before stays."""
    match said:
        case IntentsReceived() | CanIAsked():
            calls = tuple(
                replace(wanted, links={**(wanted.links or {}), **found[wanted.id]})
                if wanted.id is not None and wanted.id in found and wanted.refused is None
                else wanted
                for wanted in said.calls
            )
            return replace(said, calls=calls)
        case ResolutionReceived():
            merged = {call: {**said.links.get(call, {}), **links} for call, links in found.items()}
            return replace(said, links={**said.links, **merged})
    return said
