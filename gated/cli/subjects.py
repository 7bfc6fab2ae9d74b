"""`gated log subjects`, `gated log erase`: whose data a log keeps encrypted, and how it is erased.

A daemon that runs is told on the bus, as by any operator, and does it itself; where none runs, the command does it in its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer
from msgspec import Struct, UnsetType
from rich.markup import escape

from gated.cli.operator import Creds, Name, Nats, Operator, Place, checked_id, name_of, operate
from gated.cli.output import CANNOT, NO, Authority, Json, Keys, console, fail, run_async, say, say_json, table
from gated.cli.passwords import NoPassword, PasswordFile
from gated.cli.which_log import Folder, LogPath, log_of
from gated.core.policy import Policy
from gated.core.redaction.vault import Vault
from gated.events import DataErased, Sender, unseal
from gated.shell.custody import Copies, folder_of_keys, open_custody, reading_vault
from gated.shell.erasing import Erased, erase, places_of
from gated.shell.keys import KeyFileError
from gated.shell.log import LogLocked
from gated.shell.log.open import SCHEMES, Readable, open_log, policies_of
from gated.shell.log.sqlite import open_for_writing
from gated.units import some
from gated.wire import Erase

CLUSTER_KEYS: Final = Path("gated.keys")
SECONDS: Final = 15.0


def folder_of(log: str, keys: Path | None) -> Path | None:
    """The folder of a log's keys: as given, or where `gated up`, `gated serve` and the workers of a cluster put it."""
    if keys is not None:
        return keys if keys.is_dir() else fail(f"there is no folder of keys `{keys}`")
    if log.startswith(SCHEMES):
        return CLUSTER_KEYS if CLUSTER_KEYS.is_dir() else None
    return folder_of_keys(Path(log))


def vault_of(log: str, keys: Path | None) -> Vault | None:
    """What opens the redacted values of a log, where its keys are here and may be read."""
    folder = folder_of(log, keys)
    try:
        return None if folder is None else reading_vault(folder)
    except KeyFileError as error:
        if keys is None:
            return None  # somebody else's, who only lets the log be read
        raise error


async def erased_keys(log: Readable, policies: Iterable[Policy]) -> frozenset[str]:
    """The ids of the keys that are gone, as the log says; looked for only where a policy keeps anything."""
    if all(policy.redactor.subject is None for policy in policies):
        return frozenset()
    found: set[str] = set()
    async for _, stored in log.read_all():
        if b'"data_erased"' in stored.body:
            found.update(key for d in unseal(stored).decisions if isinstance(d, DataErased) for key in d.keys)
    return frozenset(found)


# --- whose data there is ---------------------------------------------------------------------------------------------


class Kept(Struct):
    """What a log holds of one subject. `erased`: as often as its key was."""

    subject: str
    runs: int
    records: int
    erased: int


def subjects(log_: LogPath = None, data: Folder = None, json_: Json = False) -> None:
    """Whose data the log keeps encrypted (`redact: {store: encrypted}`), and what of it was erased."""
    log = log_of(log_, data)

    async def work() -> list[Kept]:
        runs: dict[str, set[tuple[str, str]]] = {}
        found: dict[str, Kept] = {}
        async with open_log(log) as opened:
            async for _, stored in opened.read_all():
                body = unseal(stored)
                if not isinstance(body.subject, UnsetType):
                    kept = found.setdefault(body.subject, Kept(body.subject, 0, 0, 0))
                    kept.records += 1
                    runs.setdefault(body.subject, set()).add((body.thread, body.run))
                for decision in body.decisions:
                    if isinstance(decision, DataErased) and decision.subject in found:
                        kept = found[decision.subject]
                        kept.erased = max(kept.erased, len(decision.keys))
        for name, places in runs.items():
            found[name].runs = len(places)
        return [found[name] for name in sorted(found)]

    made = run_async(work)
    if json_:
        say_json(made)
    elif made:
        table(("subject", "runs", "records", "erased"), ((k.subject, k.runs, k.records, k.erased or "-") for k in made))
    else:
        say("nothing is kept encrypted here: `redact: {store: encrypted}` of a policy does that")


# --- erasing ---------------------------------------------------------------------------------------------------------


class _Asked(Struct, frozen=True):
    """What is to be erased, in which log, and by whom."""

    log: str
    subject: str
    reason: str
    name: str
    folder: Path | None


def erase_(
    log_: LogPath = None,
    subject: Annotated[
        str | None, typer.Option(help="Whose data, as `gated log subjects` names it: `thread:T`, `run:T/R`, `label:customer=42`.")
    ] = None,
    thread: Annotated[str | None, typer.Option(help="The same as --subject thread:T.")] = None,
    label: Annotated[str | None, typer.Option(help="The same as --subject label:NAME=VALUE; the value may be personal.")] = None,
    reason: Annotated[str, typer.Option(help="Why; it stands in the log.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: it cannot be undone.")] = False,
    keys: Keys = None,
    name: Name = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the running gate; default: where the log is, or .gated.")] = None,
    nats: Nats = None,
    password_file: PasswordFile = None,
    password: NoPassword = None,
    creds: Creds = None,
    tls_ca: Authority = None,
    json_: Json = False,
) -> None:
    """Erase the key of a subject, and with it all that is sealed under it, here and in every copy of the log.

    The chain still verifies; the erasure is an event in every run that held data of the subject. Calls that wait for people with
    arguments under the key are denied. Copies of the folder of keys are yours to erase. Exit status 1: nothing of it is kept.
    """
    log = log_of(log_, data if log_ is None else None)
    wish = _subject(subject, thread, label)
    folder = folder_of(log, keys)
    url = nats or (log if log.startswith(SCHEMES[1:]) else None)
    who, role = name_of(name, url)
    who = checked_id(who if role == "operator" else "local", "operator")  # others read the log there, and erase nothing
    place = Place(who, data or Path(log).parent, url, password_file, creds, tls_ca)

    async def work() -> Erased:
        asked, places = await _found(log, wish, reason, who, folder)
        if not yes:
            _confirm(asked.subject, len(places))
        try:
            if not log.startswith(SCHEMES) and nats is None:
                return await _here(asked)
        except LogLocked:
            pass  # by the daemon, which is told instead
        return await _on_the_bus(asked, place, places)

    done: Erased = run_async(work)
    if json_:
        say_json(done)
    elif done.runs:
        say(f"the data of {escape(done.subject)} is erased: {some(len(done.keys), 'key')}, told in {some(done.runs, 'run')}")
    else:
        say(f"the data of {escape(done.subject)} was erased already")
    if not done.runs:
        raise typer.Exit(NO)


def _subject(subject: str | None, thread: str | None, label: str | None) -> str:
    given = [text for text in (subject, thread and f"thread:{thread}", label and f"label:{label}") if text]
    if len(given) != 1:
        fail("say whose data: one of --subject, --thread, --label")
    return given[0]


async def _found(log: str, wish: str, reason: str, name: str, folder: Path | None) -> tuple[_Asked, list[tuple[str, str]]]:
    """The subject by the name that it has in the log, and the runs that hold data of it. Ends the command where none do."""
    vault = None if folder is None else reading_vault(folder)
    async with open_log(log) as opened:
        names = {wish: None}
        if vault is not None:
            policies = (await policies_of(opened)).values()
            names.update(dict.fromkeys(policy.redactor.text(wish, vault) for policy in policies))
        for subject in names:
            places = await places_of(opened, subject)
            if places:
                return _Asked(log, subject, reason, name, folder), [(str(thread), str(run)) for thread, run in places]
    fail(f"nothing is kept of `{wish}`: `gated log subjects {log}` says of whom there is", NO)


def _confirm(subject: str, runs: int) -> None:
    if not console.is_terminal:
        fail("this cannot be undone: say --yes if you mean it", NO)
    told = f"Erase the key of `{subject}`, and with it what {some(runs, 'run')} keep of it? This cannot be undone."
    if not typer.confirm(told):
        raise typer.Exit(NO)


async def _here(asked: _Asked) -> Erased:
    """No daemon runs: the log and the keys are this command's meanwhile. Raises `LogLocked` where one does."""
    if asked.folder is None:
        fail(f"the keys of `{asked.log}` are not where `gated` puts them: say where with --keys")
    custody = await anyio.to_thread.run_sync(open_custody, asked.folder, Copies())
    opened = await open_for_writing(Path(asked.log), custody.sealing)
    try:
        by = Sender("operator", asked.name)
        done = await erase(opened, custody.keyring, custody.vault, asked.subject, by, asked.reason)
        return done if done.keys else fail(f"no key of `{asked.subject}` is in `{asked.folder}`: nothing was erased")
    finally:
        await opened.close()


async def _on_the_bus(asked: _Asked, place: Place, places: list[tuple[str, str]]) -> Erased:
    """Tell the daemon once for each run that holds data, and wait until the log says so."""
    said = Erase(subject=asked.subject, reason=asked.reason)
    async with open_log(asked.log) as opened, operate(place) as operator:
        before = await opened.head()
        waiting = {where: await operator.tell(*where, said) for where in places}
        keys: dict[str, None] = {}
        told = 0
        with anyio.move_on_after(SECONDS):
            while waiting:
                refused = [where for where, message in waiting.items() if _already(operator, message)]
                async for position, stored in opened.read_all(before):
                    before = position
                    made = [d for d in unseal(stored).decisions if isinstance(d, DataErased) and d.subject == asked.subject]
                    if made and (stored.thread, stored.run) in waiting:
                        del waiting[(stored.thread, stored.run)]
                        told += 1
                    keys.update((key, None) for d in made for key in d.keys)
                for where in refused:
                    waiting.pop(where, None)
                await anyio.sleep(0.05)
        if waiting:
            fail(f"it is stored on the bus, and not told yet in {some(len(waiting), 'run')}: it is once the gate runs", CANNOT)
        return Erased(asked.subject, tuple(keys), told)


def _already(operator: Operator, message: str) -> bool:
    """Whether the daemon says that it was erased before. Another refusal ends the command."""
    refusal = operator.refusal(message)
    if refusal is not None and "erased already" not in refusal:
        fail(refusal, NO)
    return refusal is not None


def register(app: typer.Typer) -> None:
    """Put the commands under `gated log`."""
    app.command("subjects", epilog="Example: gated log subjects")(subjects)
    app.command("erase", epilog="Example: gated log erase --label customer=42 --reason 'asked by letter'")(erase_)
