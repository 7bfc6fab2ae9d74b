"""The keys of subjects (`redact: {store: encrypted}`): one file each, outside the log, and a note of each that was erased.

`<holder>.key` is a key in hex; `<holder>.erased` says which keys of the holder are gone, by whose word, and whether the log knows
it. The note is made durable before the key goes, and what it names is no key from then on: a crash between the two leaves no key
that still opens something, and no erasure that nobody will hear of.
INVARIANT: every change is made under the folder's lock, so that processes may share it; a key is durable before it is used.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gated.core.redaction.subjects import KEY_BYTES, Held, KeysAtHand, SubjectKey
from gated.events import Sender
from gated.shell import faults
from gated.shell.keys import KeyFileError, read_private, sync_folder, write_new
from gated.shell.log import LogUnavailable

KEY, ERASED, LOCK, NAME = ".key", ".erased", "lock", "name"
CACHE: Final = 10_000  # subjects whose keys stay in memory


class Erasure(Struct, frozen=True, omit_defaults=True):
    """What `<holder>.erased` says. `told`: the log holds the event wherever it held data."""

    subject: str
    by: Sender
    keys: tuple[str, ...]
    reason: str = ""
    told: bool = False


class _File(NamedTuple):
    """By which a file is known to be the one that was read."""

    inode: int
    changed: int


class Keyring:
    """The keys of one folder. `at_hand` are those that decisions know; whoever decides asks for others by `supply`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.at_hand = KeysAtHand()
        self._read_as: dict[str, tuple[_File | None, ...]] = {}

    # --- for decisions -----------------------------------------------------------------------------------------------

    def supply(self, holder: str, *, make: bool) -> None:
        """Put what the disk says of a holder at hand. Raises `LogUnavailable` where the folder cannot be used now."""
        try:
            if make and self._load(holder).key is None:
                self._make(holder)
            before, held = self._files(holder), self._load(holder)
        except KeyFileError as error:
            raise LogUnavailable(str(error)) from error
        except OSError as error:
            raise self._unusable(error) from error
        if len(self._read_as) >= CACHE:
            self.at_hand.held.clear()
            self._read_as.clear()
        self.at_hand.held[holder], self._read_as[holder] = held, before

    def is_current(self) -> bool:
        """Whether the keys that were used last are still those of the disk: another process may have erased one."""
        stale = [holder for holder in self.at_hand.used if self._read_as.get(holder) != self._files(holder)]
        for holder in stale:
            self.at_hand.held.pop(holder, None)
        return not stale

    def name(self) -> str:
        """What this folder is known by, wherever it is mounted. Raises `LogUnavailable` where it cannot be written."""
        try:
            with self._locked():
                write_new(self.folder / NAME, secrets.token_hex(16).encode() + b"\n")
            return read_private(self.folder / NAME).decode().strip()
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> LogUnavailable:
        return LogUnavailable(f"the keys of subjects in `{self.folder}` cannot be used: {error.strerror}")

    def find(self, holder: str, *, to_seal: bool) -> Held:
        """What the disk says now: for reading outside of decisions. Makes no key."""
        return self._load(holder)

    # --- erasing -----------------------------------------------------------------------------------------------------

    def erase(self, holder: str, asked: Erasure) -> tuple[str, ...]:
        """Erase the key of a holder, if there is one. The ids of all keys that it ever had; whoever calls tells the log.

        Raises `OSError` where nothing could be said for certain: then it is asked again.
        """
        with self._locked():
            known, key = self._note(holder), self._raw(holder)
            if key is not None:
                gone = dict.fromkeys((*(known.keys if known else ()), SubjectKey(key).id))
                known = replace(asked, keys=tuple(gone), told=False)
                self._write_note(holder, known)
                faults.point("condemned")
                self._unlink(holder)
                faults.point("destroyed")
        self.at_hand.held.pop(holder, None)
        return () if known is None else known.keys

    def untold(self) -> list[tuple[str, Erasure]]:
        """The erasures that the log may not know of. A key that a crash left behind its note goes now."""
        if not self.folder.is_dir():
            return []
        with self._locked():
            for path in self.folder.glob(f"*{ERASED}"):
                self._bury(path.stem)
        notes = [(path.stem, self._note(path.stem)) for path in sorted(self.folder.glob(f"*{ERASED}"))]
        return [(holder, note) for holder, note in notes if note is not None and not note.told]

    def told(self, holder: str) -> None:
        """The log knows of the erasure, wherever it held data."""
        with self._locked():
            note = self._note(holder)
            if note is not None and not note.told:
                self._write_note(holder, replace(note, told=True))

    # --- files -------------------------------------------------------------------------------------------------------

    def _path(self, holder: str, ending: str) -> Path:
        return self.folder / f"{holder}{ending}"

    def _files(self, holder: str) -> tuple[_File | None, ...]:
        return tuple(_file(self._path(holder, ending)) for ending in (KEY, ERASED))

    def _load(self, holder: str) -> Held:
        note = self._note(holder)
        erased = () if note is None else note.keys
        raw = self._raw(holder)
        key = None if raw is None else SubjectKey(raw)
        return Held(None if key is None or key.id in erased else key, erased)

    def _make(self, holder: str) -> None:
        """A new key. One that was condemned just before a crash goes first."""
        with self._locked():
            self._bury(holder)
            write_new(self._path(holder, KEY), secrets.token_bytes(KEY_BYTES).hex().encode() + b"\n")

    def _bury(self, holder: str) -> None:
        raw, note = self._raw(holder), self._note(holder)
        if raw is not None and note is not None and SubjectKey(raw).id in note.keys:
            self._unlink(holder)

    def _raw(self, holder: str) -> bytes | None:
        path = self._path(holder, KEY)
        try:
            key = bytes.fromhex(read_private(path).decode())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise KeyFileError(path, f"is not a key of {KEY_BYTES} bytes in hex") from error
        if len(key) != KEY_BYTES:
            raise KeyFileError(path, f"is not a key of {KEY_BYTES} bytes in hex")
        return key

    def _note(self, holder: str) -> Erasure | None:
        path = self._path(holder, ERASED)
        try:
            return msgspec.json.decode(path.read_bytes(), type=Erasure)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise KeyFileError(path, f"is no note of an erasure: {error}") from error

    def _write_note(self, holder: str, note: Erasure) -> None:
        path = self._path(holder, ERASED)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        write_new(draft, msgspec.json.encode(note) + b"\n")
        draft.replace(path)
        sync_folder(self.folder)

    def _unlink(self, holder: str) -> None:
        self._path(holder, KEY).unlink(missing_ok=True)
        sync_folder(self.folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _file(path: Path) -> _File | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return _File(found.st_ino, found.st_mtime_ns)
