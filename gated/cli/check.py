"""`gated policy check`: does a policy load, can everything in it work, and does it fit the threads that are there."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from gated.cli.folded import folded
from gated.cli.output import NO, Json, console, run_async, say, say_json
from gated.cli.reading import POLICY, PolicyArgument, compiled, document_of
from gated.cli.which_log import Folder, LogOption, log_of
from gated.core.lint import Advice, lint, threads
from gated.documents import Document


def check(
    policy: PolicyArgument = POLICY,
    log_: LogOption = None,
    data: Folder = None,
    strict: Annotated[bool, typer.Option(help="Warnings are failures too (exit status 1).")] = False,
    json_: Json = False,
) -> None:
    """Load a policy and say what in it can never work; with --log or --data, also which machine instances on the log's threads
    are in states that its machines do not have. Exit status 2: it does not load."""
    document = document_of(policy)
    loaded = compiled(document)
    found = lint(loaded)
    if log_ or data:
        log = log_of(log_, data)
        states, _, _ = run_async(lambda: folded(log, None))
        found += threads(loaded, list(states.values()))
    warnings = sum(item.level == "warning" for item in found)
    if json_:
        findings = [_placed(document, item) for item in found]
        say_json({"policy": loaded.digest, "agents": sorted(loaded.agents), "findings": findings})
    else:
        for item in found:
            _print(document, item)
        agents = f"{len(loaded.agents)} agent{'s' * (len(loaded.agents) != 1)}"
        say(f"[green]loads[/]: {agents}, {warnings} warning{'s' * (warnings != 1)}, policy {loaded.digest}")
    if strict and warnings:
        raise typer.Exit(NO)


def _placed(document: Document, item: Advice) -> dict[str, Any]:
    file, line = document.file_of(item.path), document.line(item.path)
    return {"level": item.level, "file": file, "line": line, "about": item.about, "message": item.message}


def _print(document: Document, item: Advice) -> None:
    mark = "[yellow]warning[/]" if item.level == "warning" else "[cyan]advice[/]"
    place = f"{document.file_of(item.path)}:{document.line(item.path)}"
    text = f"{escape(place)}: {mark} {escape(item.about)}: {escape(item.message)}"
    console.print(text, highlight=False, soft_wrap=True)
