"""`gated verify`: every hash, sequence and chain of a log, its sealed checkpoints, and a head that was kept elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct
from rich.markup import escape

from gated.cli.help import single
from gated.cli.output import NO, Json, fail, run_async, say, say_json
from gated.cli.progress import progressed
from gated.cli.which_log import Folder, LogPath, log_of
from gated.core.chain import Damage, merkle_root, wrong_policy
from gated.core.checkpoint import Checkpoint, CheckpointError, Key, SealedChecker, Unsigned, parse_key, split_notes
from gated.core.checkpoint import verify as verify_note
from gated.core.known import policy_named, without_policy
from gated.shell.custody import verifier_keys
from gated.shell.log import LogDamaged
from gated.shell.log.anchors import anchors_of
from gated.shell.log.open import Readable, open_log
from gated.units import some

app = single()

KeyFiles = Annotated[
    list[Path] | None, typer.Option("--key", help="A verifier key (`seal.key.pub`); those beside the log are known.")
]


class Verified(Struct, frozen=True, kw_only=True):
    """What was checked, and the first damage. `unverified` checkpoints are of the log and no key for them is known."""

    ok: bool
    records: int
    threads: int
    root: str
    checkpoints: int
    unverified: int
    archived: int
    damage: Damage | None


@app.command(epilog="Example: gated verify --checkpoint /mnt/elsewhere/checkpoints")
def verify(
    log_: LogPath = None,
    data: Folder = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Checkpoints kept elsewhere, or what `verify --json` said before: they show a cut tail."),
    ] = None,
    since: Annotated[
        Path | None, typer.Option(help="Checkpoints of an earlier check: what lies before the last of them is not hashed again.")
    ] = None,
    key: KeyFiles = None,
    json_: Json = False,
) -> None:
    """Check every hash, sequence, chain and signature, and the policies; the first bad position is named (exit status 1)."""
    log = log_of(log_, data)
    keys = _keys(log, key or ())
    kept = [] if checkpoint is None else _kept(checkpoint, keys)
    start = None if since is None else _last(since, _kept(since, keys))

    async def work() -> Verified:
        try:
            async with open_log(log) as opened:
                return await _verified(opened, keys, kept, start)
        except LogDamaged as error:  # not even readable as what it was
            return _unreadable(error)

    found: Verified = run_async(work)
    if json_:
        say_json(found)
    else:
        _print(found)
    if not found.ok:
        raise typer.Exit(NO)


async def _verified(log: Readable, keys: Sequence[Key], kept: list[Checkpoint | Unsigned], start: Checkpoint | None) -> Verified:
    """The log's own checkpoints are read first: a daemon may add to both while they are checked."""
    own: list[Checkpoint | Unsigned] = []
    notes, held = await log.checkpoints(), await log.policies()
    damage = wrong_policy(held)
    for position, note in ((made.position, made.note) for made in notes if keys):
        try:
            own.append(verify_note(note, keys))
        except CheckpointError as error:
            damage = damage or Damage(position, "", 0, f"its checkpoint is not to be believed: {error}")
    anchors = await anchors_of(log)
    checker = SealedChecker([*own, *kept], start, anchors)
    if damage is None:
        async for position, record in progressed(log, "verifying"):
            damage = checker.feed(position, record)
            known = start is not None and checker.chain.records <= start.records
            if damage is None and not known and (digest := policy_named(record)) not in held:
                held = await log.policies()  # a daemon may have added it meanwhile
                if digest not in held:
                    damage = Damage(position, record.thread, record.seq, without_policy(digest))
            if damage is not None:
                break
    damage = damage or checker.finish()
    heads = checker.chain.heads
    return Verified(
        ok=damage is None,
        records=checker.chain.records,
        threads=len(heads),
        root=merkle_root(heads).hex(),
        checkpoints=len(own) + len(kept),
        unverified=0 if keys else len(notes),
        archived=checker.chain.archived,
        damage=damage,
    )


def _unreadable(error: LogDamaged) -> Verified:
    damage = Damage(error.position, "", 0, error.why)
    return Verified(ok=False, records=0, threads=0, root="", checkpoints=0, unverified=0, archived=0, damage=damage)


def _print(found: Verified) -> None:
    if found.damage is None:
        say(f"[green]intact[/]: {some(found.records, 'record')} in {some(found.threads, 'thread')}, root {found.root}")
    elif found.damage.thread:
        damage = found.damage
        where = f"position {damage.position}, thread {escape(damage.thread)}, record {damage.seq}"
        say(f"[red]damaged[/]: {where}: {escape(damage.what)}")
    else:
        say(f"[red]damaged[/]: position {found.damage.position}: {escape(found.damage.what)}")
    if found.archived:
        are = "is" if found.archived == 1 else "are"
        say(f"{found.archived:,} of the records {are} in an archive; what was sealed before they went is checked there")
    if found.checkpoints:
        say(f"{some(found.checkpoints, 'checkpoint')} checked")
    if found.unverified:
        left = some(found.unverified, "checkpoint")
        say(f"[yellow]{left} not checked[/]: name the key that they are signed with, --key seal.key.pub")


# --- what people hand over -------------------------------------------------------------------------------------------


def _keys(log: str, files: Sequence[Path]) -> list[Key]:
    found: list[Key] = []
    for file in [*files, *verifier_keys(Path(log))]:
        try:
            said = [parse_key(line) for line in file.read_text().splitlines() if line.strip()]
            if not said:
                raise CheckpointError("no key stands in it")
            found += said
        except (OSError, UnicodeDecodeError, CheckpointError) as error:
            fail(f"cannot read the key `{file}`: {error}")
    return found


def _kept(file: Path, keys: Sequence[Key]) -> list[Checkpoint | Unsigned]:
    """Signed notes, which a known key must have signed, or the JSON that `verify` prints."""
    try:
        text = file.read_text()
        if text.lstrip().startswith("{"):
            said: Any = json.loads(text)
            return [Unsigned(int(said["records"]), bytes.fromhex(said["root"]))]
        notes = split_notes(text)
        if not notes:
            fail(f"`{file}` holds no checkpoint: nothing would be compared with it")
        if not keys:
            fail(f"`{file}` holds signed checkpoints: name the key that they are signed with, --key seal.key.pub")
        return [verify_note(note, keys) for note in notes]
    except CheckpointError as error:
        fail(f"`{file}`: {error}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail(f"`{file}` holds neither checkpoints nor what `gated verify --json` prints: {error}")


def _last(file: Path, kept: list[Checkpoint | Unsigned]) -> Checkpoint:
    signed = [made for made in kept if isinstance(made, Checkpoint)]
    if not signed:
        fail(f"`{file}` holds no signed checkpoint to begin at")
    return max(signed, key=lambda made: made.records)
