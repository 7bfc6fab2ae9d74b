"""`gated replay`, `gated log …`: what auditors do with a log."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import typer
from rich.markup import escape
from rich.progress import Progress

from gated import cloudevents
from gated.cli.help import group, single
from gated.cli.log_lines import COLUMNS, Agent, Decided, Run, Selection, Since, Tool, Until, Wanted, rows
from gated.cli.output import (
    NO,
    STDOUT,
    Json,
    Keys,
    colour,
    errors,
    fail,
    moment,
    run_async,
    say,
    say_json,
    shown_json,
    table,
    whole_file,
)
from gated.cli.progress import progressed
from gated.cli.subjects import erased_keys, register, vault_of
from gated.cli.which_log import Folder, LogFirst, LogPath, log_and, log_of
from gated.core.redaction.opened import opened_body, said_in
from gated.core.redaction.vault import Unreadable
from gated.core.replay import Difference, Replayer
from gated.events import Body, Record, ThreadId, encode, unseal
from gated.shell.custody import Copies, folder_of_keys, open_custody
from gated.shell.log.anchors import anchors_of, archived_states
from gated.shell.log.archive import Archived, archive
from gated.shell.log.following import followable
from gated.shell.log.jsonl import Imported, JsonlLog, export_lines, read_export, take_in
from gated.shell.log.open import Readable, open_log, policies_of
from gated.shell.log.sqlite import open_for_writing
from gated.units import some

app = single()
log_app = group("Look into a log, take it out, put it in.", "gated log ls")
app.add_typer(log_app, name="log")
register(log_app)

MOST = 10**9  # records that are asked for at once
MAX_TIME = 2**62  # µs, later than any record
Target = Annotated[str | None, typer.Argument(help="The file to write.", metavar="FILE", show_default=False)]
Out = Annotated[str | None, typer.Argument(help="The file to write; `-`: standard output.", metavar="FILE", show_default=False)]
MAX_POSITION = 2**62
SHOWN = 5  # records that are not replayable, in the text for people


async def threads_of(log: Readable, run: str | None) -> set[ThreadId] | None:
    """The threads that a run is on; `None`: all. A run that the log does not have ends the command."""
    if run is None:
        return None
    found = {record.thread async for _, record in log.read_all() if record.run == run}
    if not found:
        fail(f"the log has no run `{run}`", NO)
    return found


@app.command(epilog="Example: gated replay")
def replay(
    log_: LogPath = None,
    data: Folder = None,
    run: Run = None,
    strict: Annotated[bool, typer.Option(help="Records that are not replayable are a failure too (exit status 1).")] = False,
    keys: Keys = None,
    json_: Json = False,
) -> None:
    """Decide every record again, and stop at the first that comes out differently (exit status 1).

    A record that a rule would have to read redacted values for is *not replayable*: it is named, and its decisions are taken
    as they stand (exit status 0, or 1 with --strict). What was kept encrypted is read with its keys, until they are erased.
    """
    log = log_of(log_, data)

    async def work() -> tuple[Replayer, Difference | None]:
        async with open_log(log) as opened:
            known = await policies_of(opened)
            vault, erased = vault_of(log, keys), await erased_keys(opened, known.values())
            replayer = Replayer(known.get, await archived_states(opened), vault, erased)
            threads = await threads_of(opened, run)
            async for position, record in progressed(opened, "replaying"):
                if threads is not None and record.thread not in threads:
                    continue
                with followable(position, f"record {record.seq} of thread `{record.thread}`"):
                    difference = replayer.feed(record)
                if difference is not None:
                    return replayer, difference
            return replayer, None

    done, difference = run_async(work)
    if json_:
        skipped = {"not_replayable": done.skipped, "not_replayable_records": done.not_replayable}
        say_json({"ok": difference is None, "records": done.records, "difference": difference, **skipped})
    elif difference is None:
        say(f"[green]the same[/]: {some(done.records, 'record')} decided again, byte for byte")
        if done.skipped:
            say(f"[yellow]not replayable[/]: {some(done.skipped, 'record')}, for a rule would have to read what was redacted")
        for item in done.not_replayable[:SHOWN]:
            say(f"  thread {escape(item.thread)}, run {escape(item.run)}, record {item.seq}: {escape(item.why)}")
        if done.skipped > SHOWN:
            say(f"  and {done.skipped - SHOWN} more: see --json")
    else:
        say(f"[red]different[/]: thread {difference.thread}, run {difference.run}, record {difference.seq}, {difference.what}")
        say(f"stage    {difference.stage or '-'}")
        say(escape(f"recorded {json.dumps(difference.recorded, default=str)}"))
        say(escape(f"derived  {json.dumps(difference.derived, default=str)}"))
    if difference is not None or (strict and done.skipped):
        raise typer.Exit(NO)


# --- looking ---------------------------------------------------------------------------------------------------------


@log_app.command("ls", epilog="Example: gated log ls --decision deny")
def ls(
    log_: LogPath = None,
    data: Folder = None,
    run: Run = None,
    agent: Agent = None,
    tool: Tool = None,
    decision: Decided = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="At most so many records, the newest.")] = 50,
    json_: Json = False,
) -> None:
    """The records of a log, a line for each decision."""
    log = log_of(log_, data)
    selection = Selection(Wanted(run, agent, tool, decision, moment("--since", since), moment("--until", until)))

    async def work() -> deque[tuple[int, Record, Body]]:
        found = deque[tuple[int, Record, Body]](maxlen=limit)
        async with open_log(log) as opened:
            async for position, record in opened.read_all():
                if selection.takes(body := unseal(record)):
                    found.append((position, record, body))
        return found

    found = run_async(work)
    if json_:
        say_json([{"position": position, **msgspec.to_builtins(body), "hash": record.hash} for position, record, body in found])
    elif found:
        table(COLUMNS, (row for position, _, body in found for row in rows(position, body)))
    else:
        say("the log has no such records" if selection.chooses else "the log has no records")


@log_app.command("show", cls=LogFirst, epilog="Example: gated log show 17")
def show(
    log_: LogPath = None,
    position_: Annotated[str | None, typer.Argument(help="Position in the log.", metavar="POSITION", show_default=False)] = None,
    data: Folder = None,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="As it was said, where the keys of what was taken out are here.")
    ] = False,
    keys: Keys = None,
    json_: Annotated[bool, typer.Option("--json", help="On one line.")] = False,
) -> None:
    """One record whole, as JSON."""
    log, word = log_and("a position (`gated log ls` shows them)", log_, position_, data)
    if not word.isdecimal():
        fail(f"`{word}` is no position in a log: it is a number, as `gated log ls` shows them")
    position = min(int(word), MAX_POSITION)

    async def work() -> Record | None:
        async with open_log(log) as opened:
            async for found in opened.read_all(position - 1):
                return found.record if found.position == position else None
        return None

    record = run_async(work)
    if record is None:
        fail(f"the log has no record at position {word}", NO)
    body = json.loads(encode(_revealed(unseal(record), log, keys)) if reveal else record.body)
    whole = {**body, "hash": record.hash}
    if json_:
        say_json(whole)
    else:
        sys.stdout.write(shown_json(json.dumps(whole, indent=2, ensure_ascii=False)) + "\n")


def _revealed(body: Body, log: str, keys: Path | None) -> Body:
    """A record as it was said; why, where it cannot be had."""
    vault = vault_of(log, keys)
    if vault is None:
        fail("no keys are here to reveal it with: say where they are with --keys")
    try:
        said_in(body, vault)
    except Unreadable as error:
        errors.print(f"[yellow]what was said is not shown[/]: it was {error}", highlight=False)
    return opened_body(body, vault)


@log_app.command("tail", epilog="Example: gated log tail")
def tail(
    log_: LogPath = None,
    data: Folder = None,
    lines: Annotated[int, typer.Option("-n", min=0, max=MOST, help="Records to begin with.")] = 10,
    run: Run = None,
    agent: Agent = None,
    tool: Tool = None,
    decision: Decided = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Follow a log while a daemon writes it; end with Ctrl-C."""
    log = log_of(log_, data)
    selection = Selection(Wanted(run, agent, tool, decision))

    async def work() -> None:
        async with open_log(log) as opened:
            if isinstance(opened, JsonlLog):
                fail("an export does not grow: use `gated log ls`")
            begin = max(0, await opened.head() - lines)
            async for position, record in opened.tail(begin if agent is None else 0):
                if selection.takes(body := unseal(record)) and position > begin:
                    _print(position, record, body, json_lines=json_)

    try:
        run_async(work)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _print(position: int, record: Record, body: Body, *, json_lines: bool) -> None:
    if json_lines:
        say_json({"position": position, **msgspec.to_builtins(body), "hash": record.hash})
        sys.stdout.flush()
        return
    for row in rows(position, body):
        text = escape(" ".join(str(cell) for cell in row))
        say(f"[{colour(str(row[5]))}]{text}[/]")


class Format(StrEnum):
    jsonl = "jsonl"
    cloudevents = "cloudevents"


@log_app.command("export", cls=LogFirst, epilog="Example: gated log export run.jsonl --run r1")
def export(
    log_: LogPath = None,
    target_: Out = None,
    data: Folder = None,
    run: Run = None,
    form: Annotated[
        Format, typer.Option("--format", help="`jsonl` can be verified and replayed; `cloudevents` is one event a decision.")
    ] = Format.jsonl,
    json_: Json = False,
) -> None:
    """Write the log (or the threads of one run, whole) as JSON lines that verify and replay by themselves, or as CloudEvents."""
    log, name = log_and("the file to write", log_, target_, data, file=True)
    target = Path(name)
    if target.exists() and Path(log).exists() and target.samefile(log):
        fail(f"`{target}` is the log itself: write the export to another file")

    async def work() -> tuple[int, int]:
        async with open_log(log) as opened:
            threads = await threads_of(opened, run)
            left_out = await _left_out(opened, threads) if form is Format.jsonl else 0
            async with whole_file(target) as out:
                return await _write_lines(opened, threads, form, out), left_out

    lines, left_out = run_async(work)
    if left_out:
        why = "on a thread that was archived: what follows an archive verifies with it alone"
        errors.print(f"[yellow]{some(left_out, 'record')} left out[/], {why}", highlight=False, soft_wrap=True)
    if target == STDOUT:
        return
    if json_:
        say_json({"file": name, "lines": lines, "left_out": left_out})
    else:
        say(f"{some(lines, 'line')} written to {escape(name)}")


async def _left_out(log: Readable, threads: set[ThreadId] | None) -> int:
    """How many records an export cannot hold; where these are all that there are of a run, the command ends."""
    anchors = await anchors_of(log)
    if anchors is None:
        return 0
    gone = anchors.heads.keys()
    if threads is not None and gone >= threads:
        fail("the run's thread was archived, and what the log has of it verifies with its archive alone: export that", NO)
    wanted = gone if threads is None else gone & threads
    return sum([record.thread in wanted async for _, record in log.read_all()])


async def _write_lines(log: Readable, threads: set[ThreadId] | None, form: Format, out: anyio.AsyncFile[bytes]) -> int:
    lines = 0
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("exporting", total=await log.head())
        async for line in _exported(log, threads, form):
            await out.write(line)
            progress.advance(task)
            lines += 1
    return lines


async def _exported(log: Readable, threads: set[ThreadId] | None, form: Format) -> AsyncIterator[bytes]:
    if form is Format.jsonl:
        async for line in export_lines(log, threads):
            yield line
        return
    async for _, record in log.read_all():
        if threads is None or record.thread in threads:
            for line in cloudevents.lines(record):
                yield line


@log_app.command("archive", cls=LogFirst, epilog="Example: gated log archive 2026-q1.jsonl --before 2026-04-01T00:00:00Z")
def archive_(
    log_: LogPath = None,
    target_: Target = None,
    data: Folder = None,
    before: Annotated[str | None, typer.Option(help="Only threads whose last record is older (RFC 3339).")] = None,
    json_: Json = False,
) -> None:
    """Move threads whose runs have all ended out of a log, a SQLite file that no daemon is writing, into a new .jsonl file.

    Both verify afterwards; the log keeps the threads' last hashes as anchors.
    """
    log, target = map(Path, log_and("the file to write", log_, target_, data, file=True))
    if target == STDOUT:
        fail("an archive is a file of its own, which nobody may lose: name it")
    at = moment("--before", before)

    async def work() -> Archived:
        folder = folder_of_keys(log)
        custody = None if folder is None else await anyio.to_thread.run_sync(open_custody, folder, Copies())
        return await archive(log, target, MAX_TIME if at is None else at, None if custody is None else custody.sealing)

    done = run_async(work)
    if json_:
        say_json(done)
    elif done.threads:
        moved = f"{some(done.threads, 'thread')} with {some(done.records, 'record')}"
        say(f"{moved} moved to {escape(str(target))}, {some(done.kept, 'record')} kept")
    else:
        say("no thread has finished that is not the newest, which stays: nothing to archive")


@log_app.command("import", epilog="Example: gated log import run.jsonl audit.db")
def import_(
    source: Annotated[Path, typer.Argument(help="A .jsonl export.")],
    target: Annotated[Path, typer.Argument(help="The SQLite log to append to; made where it is missing.")],
    json_: Json = False,
) -> None:
    """Append an export to a log, whole or not at all; every record must continue its thread's chain."""

    async def work() -> Imported:
        export = await read_export(source)  # before the log is made that it goes into
        if not await anyio.Path(target).exists():
            export.must_know(())
        opened = await open_for_writing(target)
        try:
            return await take_in(opened, export)
        finally:
            await opened.close()

    done: Imported = run_async(work)
    if json_:
        say_json(done)
        return
    say(f"{some(done.records, 'record')} appended to {escape(str(target))}")
    if done.foreign_checkpoints:
        say(f"[yellow]{some(done.foreign_checkpoints, 'checkpoint')} left out[/]: behind other records they seal nothing")
