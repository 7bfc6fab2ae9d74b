"""Where paths really lead: follows symbolic links on the disk that the daemon sees.

What it finds is a fact of the moment: it is recorded with the intent and given to the scope check, never asked twice.
A link made after the look is not seen, nor are hard links and mounts: whoever needs that needs a sandbox.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Final

MOST_LINKS: Final = 40


def follow_links(path: str) -> str:
    """The real path of an absolute path, also where its last names do not exist yet.

    Each `..` is taken after the links before it, as the kernel does. Raises OSError for a loop of links, and for what
    the daemon may not look at. (`os.path.realpath` answers something in both cases.)
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
            target = _read_link(f"{real}/{name}")
            if target is None:
                real = f"{real}/{name}"
                continue
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, "too many symbolic links", path)
            real = "" if target.startswith("/") else real
            pending += target.split("/")[::-1]
    return real or "/"


def _read_link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # there, and no link
            return None
        raise


def resolutions(paths: Iterable[str]) -> dict[str, str]:
    """What to record for `Scope.check`. A path that cannot be followed is left out, and the check denies it."""
    found: dict[str, str] = {}
    for path in paths:
        try:
            found[path] = follow_links(path)
        except (OSError, ValueError):
            continue
    return found
