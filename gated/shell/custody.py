"""What a daemon keeps beside its log: the key that it redacts with, those of subjects, the key that it seals with, where copies
of seals go, and the key that it signs verdicts with.

INVARIANT: the keys lie outside the log. Who has the log alone can neither read what was redacted nor seal another history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct
from nats.aio.client import Client
from nats.errors import Error as NatsError

from gated.core.redaction.vault import Vault
from gated.errors import GatedError
from gated.shell.keyring import Keyring
from gated.shell.keys import load_or_make, load_or_make_vault, load_or_make_verdict_signer
from gated.shell.log.sealing import EVERY, Sealing
from gated.shell.verdict_tokens import VerdictSigner

ORIGIN: Final = "gated"  # the name that checkpoints are signed under
REDACTION_KEY, SEAL_KEY, VERDICT_KEY = "redaction.key", "seal.key", "verdict.key"
SUBJECTS: Final = "subjects"  # the folder of the keys of subjects


class CopiesError(GatedError):
    """Checkpoints cannot be copied to where the settings say."""


class Copies(Struct, frozen=True):
    """Where each checkpoint goes beside the log: a file that it is appended to, standard output, a subject of the bus."""

    every: int = EVERY
    file: Path | None = None
    show: Callable[[str], None] | None = None
    subject: str | None = None


class Custody(Struct, frozen=True):
    vault: Vault
    keyring: Keyring
    sealing: Sealing
    subject: str | None = None
    signer: VerdictSigner | None = None


def open_custody(folder: Path, copies: Copies, *, sign_verdicts: bool = False) -> Custody:
    """The keys of a folder, made where they are missing. Raises `KeyFileError`, `CopiesError`."""
    if copies.file is not None:
        _try_to_append(copies.file)
    outlets = () if copies.show is None else (copies.show,)
    signer = load_or_make(folder / SEAL_KEY, ORIGIN)
    return Custody(
        load_or_make_vault(folder / REDACTION_KEY),
        Keyring(folder / SUBJECTS),
        Sealing(signer, copies.every, copies.file, outlets),
        copies.subject,
        load_or_make_verdict_signer(folder / VERDICT_KEY) if sign_verdicts else None,
    )


def _try_to_append(path: Path) -> None:
    """Now, and not at the first checkpoint, a thousand records from here."""
    try:
        path.open("ab").close()
    except OSError as error:
        raise CopiesError(f"checkpoints cannot be appended to `{path}`: {error.strerror}") from error


def publish_copies(custody: Custody, client: Client) -> None:
    """Publish each checkpoint from now on; called in the loop that the client belongs to. What is said then raises `OSError`."""
    subject, loop = custody.subject, asyncio.get_running_loop()
    if subject is None:
        return

    def say(note: str) -> None:
        try:
            asyncio.run_coroutine_threadsafe(client.publish(subject, note.encode()), loop).result(5)
        except NatsError as error:
            raise OSError(f"a checkpoint cannot be published on `{subject}`: {error or type(error).__name__}") from error

    custody.sealing.outlets.append(say)


def reading_vault(folder: Path) -> Vault | None:
    """What an auditor opens redacted values with, from a folder of keys; None where it has none. Makes nothing.

    Raises `KeyFileError`.
    """
    path = folder / REDACTION_KEY
    return load_or_make_vault(path).with_keys(Keyring(folder / SUBJECTS)) if path.is_file() else None


def folder_of_keys(log: Path) -> Path | None:
    """Where the keys of a log lie, if `gated up` or `gated serve` put them beside it."""
    return next((folder for folder in (keys_beside(log), log.parent / "keys") if folder.is_dir()), None)


def verifier_keys(log: Path) -> list[Path]:
    """The verifier keys that lie beside a log, where `gated up` and `gated serve` put them."""
    folders = (keys_beside(log), log.parent / "keys")
    return [path for folder in folders if (path := folder / f"{SEAL_KEY}.pub").is_file()]


def keys_beside(log: Path) -> Path:
    """The folder of a log's keys where nobody names another: `gated.db.keys` for `gated.db`."""
    return log.with_name(log.name + ".keys")
