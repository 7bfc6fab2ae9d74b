"""Who may log in: a file of people with argon2id hashes, written by `gated users` and by the page of the first start.

INVARIANT: a person's name is their name on the bus (`approver:<name>`); the file gives nobody a right that the policy does not.
A password is never stored and never compared as text. A name that is not in the file costs as much time as a wrong password.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from argon2.low_level import Type, hash_secret_raw
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from msgspec import Struct
from msgspec.structs import replace

from gated import ingress
from gated.errors import GatedError

SHORTEST: Final = 12
LONGEST: Final = 1024

_HASHER: Final = PasswordHasher()


class PeopleError(GatedError):
    """What is wrong with the file of people, or with what should go into it, and how to mend it."""


class Person(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`hash` is an argon2id hash, or empty for who logs in with `oidc` only: the value of the configured claim.

    An `auditor` sees every ticket and run, and may answer no more for it. `bus` is the password of their user of the bus,
    sealed under their own: the console learns it from them, when they log in.
    """

    name: str
    hash: str = ""
    auditor: bool = False
    oidc: str = ""
    bus: str = ""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    users: tuple[Person, ...] = ()


class People:
    """The people of a file, read again whenever it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[tuple[int, int, int], dict[str, Person]] | None = None

    def all(self) -> dict[str, Person]:
        """By name. Raises `PeopleError`."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise PeopleError(f"`{self.path}` cannot be read: {error.strerror}") from error
        version = (found.st_mtime_ns, found.st_ino, found.st_size)
        if self._read is None or self._read[0] != version:
            self._read = (version, _load(self.path))
        return self._read[1]

    def find(self, name: str) -> Person | None:
        return self.all().get(name)

    def find_oidc(self, value: str) -> Person | None:
        """The one person with this value of the configured claim."""
        found = [person for person in self.all().values() if person.oidc and person.oidc == value]
        return found[0] if len(found) == 1 else None

    def put(self, person: Person, *, new: bool = False) -> None:
        """Add a person or change them. Raises `PeopleError`, also where `new` and the name is taken."""
        if not ingress.is_id(person.name):
            raise PeopleError(f"`{person.name}` cannot be a name on the bus: use 1-128 of A-Z a-z 0-9 _ -")
        with self._locked() as people:
            if new and person.name in people:
                raise PeopleError(f"there is a user `{person.name}` already: change the password with `gated users passwd`")
            if person.oidc and any(p.oidc == person.oidc and p.name != person.name for p in people.values()):
                raise PeopleError(f"another user has `{person.oidc}` for OIDC already")
            people[person.name] = person

    def put_first(self, person: Person) -> bool:
        """Add a person where there is nobody yet; False where somebody was quicker."""
        with self._locked() as people:
            if people:
                return False
            people[person.name] = person
        return True

    def remove(self, name: str) -> None:
        with self._locked() as people:
            if people.pop(name, None) is None:
                raise PeopleError(f"there is no user `{name}`: the users are {', '.join(sorted(people)) or 'none'}")

    def set_password(self, name: str, password: str, bus: str = "") -> None:
        """Give a person another password, and seal that of the bus under it, where one was or is given."""
        with self._locked() as people:
            if name not in people:
                raise PeopleError(f"there is no user `{name}`: add one with `gated users add`")
            if people[name].bus and not bus:
                raise PeopleError(f"the bus password of `{name}` is sealed under the old one: give it again with --bus-password")
            people[name] = replace(people[name], hash=hash_of(password), bus=seal(bus, password) if bus else "")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, Person]]:
        """The people, to be changed; written whole at the end of the block, one writer at a time."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise PeopleError(f"`{self.path}` cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            people = dict(_load(self.path)) if self.path.exists() else {}
            yield people
            _write(self.path, _File(tuple(people[name] for name in sorted(people))))
        finally:
            os.close(handle)


def _load(path: Path) -> dict[str, Person]:
    try:
        return {person.name: person for person in msgspec.json.decode(path.read_bytes(), type=_File).users}
    except OSError as error:
        raise PeopleError(f"`{path}` cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise PeopleError(f"`{path}` is damaged: {error}; mend it, or remove it and add the users again") from error


def _write(path: Path, file: _File) -> None:
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    text = msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n"
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    new.replace(path)


# --- passwords -----------------------------------------------------------------------------------------------------------


def hash_of(password: str) -> str:
    """Raises `PeopleError` for a password that is too short to be one."""
    if len(password) < SHORTEST:
        raise PeopleError(f"a password has at least {SHORTEST} characters")
    if len(password) > LONGEST:
        raise PeopleError(f"a password has at most {LONGEST} characters")
    return _HASHER.hash(password)


def verified(person: Person | None, password: str) -> bool:
    """Whether it is the person's password. Slow on purpose: run it in a thread."""
    known = person.hash if person is not None and person.hash else _nobody()
    try:
        matches = len(password) <= LONGEST and _HASHER.verify(known, password)
    except (Argon2Error, InvalidHashError):
        return False
    return matches and person is not None and bool(person.hash)


@cache
def _nobody() -> str:
    return _HASHER.hash(secrets.token_urlsafe(24))


def seal(secret: str, password: str) -> str:
    """A secret that only the password opens."""
    salt, nonce = secrets.token_bytes(16), secrets.token_bytes(12)
    return base64.b64encode(salt + nonce + _cipher(password, salt).encrypt(nonce, secret.encode(), None)).decode()


def unseal(sealed: str, password: str) -> str | None:
    """What was sealed; None where it was under another password, or is damaged. Slow on purpose, like `verified`."""
    try:
        raw = base64.b64decode(sealed, validate=True)
        return _cipher(password, raw[:16]).decrypt(raw[16:28], raw[28:], None).decode()
    except (InvalidTag, ValueError, Argon2Error):
        return None


def _cipher(password: str, salt: bytes) -> ChaCha20Poly1305:
    key = hash_secret_raw(password.encode(), salt, time_cost=3, memory_cost=65_536, parallelism=4, hash_len=32, type=Type.ID)
    return ChaCha20Poly1305(key)
