"""Where paths really lead: follows symbolic links on the disk that the daemon sees.

What it finds is a fact of the moment: it is recorded with the intent and given to the scope check, never asked twice.
A link made after the look is not seen, nor are hard links and mounts: whoever needs that needs a sandbox.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from typing import Final

import anyio
import structlog
from anyio import to_thread

from gated.core.links import follow
from gated.core.turn import Unfollowed
from gated.events import CallId

PATIENCE: Final = 5.0  # seconds that a disk may take to say where the paths of a message lead

log = structlog.get_logger("gated.paths")


def follow_links(path: str) -> str:
    """The real path of an absolute path, also where its last names do not exist yet.

    Raises OSError for a loop of links, and for what the daemon may not look at. (`os.path.realpath` answers something in both
    cases.)
    """
    return follow(path, _read_link)


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


async def links_of(unfollowed: Sequence[Unfollowed]) -> dict[CallId, dict[str, str]]:
    """Where the paths lead, by call, looked up in a thread. What a disk does not say in time is left out, and so denied."""

    def look() -> dict[CallId, dict[str, str]]:
        return {item.call: resolutions(item.paths) for item in unfollowed}

    with anyio.move_on_after(PATIENCE):
        return await to_thread.run_sync(look, abandon_on_cancel=True)
    log.warning("a disk does not say where paths lead: what names them is denied", calls=[item.call for item in unfollowed])
    return {}
