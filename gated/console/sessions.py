"""Who is logged in, kept on the server: the browser holds a random name of its session and nothing else.

INVARIANT: only a digest of that name is kept here. A session ends after an hour without use and twelve in all, with its person,
and when the person's password changes. The console's restart ends all of them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from gated.console.people import Person

IDLE: Final = 3600.0  # seconds
WHOLE: Final = 12 * 3600.0
ANONYMOUS: Final = 900.0
MOST: Final = 5000  # sessions in memory, log-in pages that were never used among them
SEEN: Final = 1000
WINDOW: Final = 60.0  # seconds in which failed attempts count
PER_NAME: Final = 5
PER_ADDRESS: Final = 30


class Session:
    """One browser. `person` is nobody until they have logged in."""

    def __init__(self, now: float) -> None:
        self.person: Person | None = None
        self.csrf = secrets.token_urlsafe(32)
        self.began = self.used = now
        self.notices: list[tuple[str, str]] = []  # (kind, text) for the next page
        self.draft: dict[str, Any] = {}  # what only the next step of something needs: an OIDC log-in, an edit
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()

    def saw(self, ticket: str, digest: str) -> None:
        """The person opened the full view of what a ticket asks."""
        self._seen[ticket, digest] = None
        while len(self._seen) > SEEN:
            self._seen.popitem(last=False)

    def has_seen(self, ticket: str, digest: str) -> bool:
        return (ticket, digest) in self._seen

    def tell(self, kind: str, text: str) -> None:
        """Something to say on the next page: `done`, `no` or `note`."""
        self.notices = [*self.notices[-4:], (kind, text)]

    def told(self) -> list[tuple[str, str]]:
        said, self.notices = self.notices, []
        return said


class Sessions:
    """Sessions by the digest of their name. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def begin(self, person: Person | None = None) -> tuple[str, Session]:
        """A new session and its name, which leaves only for the browser."""
        name, session = secrets.token_urlsafe(32), Session(self._clock())
        session.person = person
        self._sessions[_digest(name)] = session
        while len(self._sessions) > MOST:
            self._sessions.popitem(last=False)
        return name, session

    def find(self, name: str | None, *, uses: bool = True) -> Session | None:
        """The session of that name, unless it is over. A page that keeps itself up to date does not use it."""
        key = _digest(name) if name else b""
        session = self._sessions.get(key)
        if session is None:
            return None
        if self._over(session):
            del self._sessions[key]
            return None
        if uses:
            session.used = self._clock()
            self._sessions.move_to_end(key)
        return session

    def end(self, name: str | None) -> None:
        if name:
            self._sessions.pop(_digest(name), None)

    def of(self, person: str) -> int:
        """How many sessions a person has. Those that are over are dropped."""
        for key in [key for key, session in self._sessions.items() if self._over(session)]:
            del self._sessions[key]
        return sum(session.person is not None and session.person.name == person for session in self._sessions.values())

    def _over(self, session: Session) -> bool:
        now, idle = self._clock(), IDLE if session.person is not None else ANONYMOUS
        return now - session.used > idle or now - session.began > WHOLE


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "replace")).digest()


class Attempts:
    """Failed log-ins: after five a minute for a name, or thirty from an address, the next must wait."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def wait(self, name: str, address: str) -> float:
        """Seconds until another attempt is heard; 0: now."""
        now = self._clock()
        waits = [0.0]
        for key, most in ((("name", name), PER_NAME), (("address", address), PER_ADDRESS)):
            recent = self._recent(key, now)
            if len(recent) >= most:
                waits.append(recent[-most] + WINDOW - now)
        return max(waits)

    def _recent(self, key: tuple[str, str], now: float) -> list[float]:
        return [at for at in self._failed.get(key, ()) if now - at < WINDOW]

    def failed(self, name: str, address: str) -> None:
        now = self._clock()
        for key in (("name", name), ("address", address)):
            self._failed[key] = [*self._recent(key, now), now]
            self._failed.move_to_end(key)
        while len(self._failed) > MOST:
            self._failed.popitem(last=False)

    def succeeded(self, name: str, address: str) -> None:
        """The name starts anew; of the address only this attempt is taken back, since others use it too."""
        self._failed.pop(("name", name), None)
        if self._failed.get(("address", address)):
            self._failed["address", address].pop()
