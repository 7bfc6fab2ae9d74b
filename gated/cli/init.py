"""`gated policy init`: a first policy with scenarios, from a template or from a few answers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from gated.cli.output import NO, asking, fail, say, writing
from gated.core.lint import lint
from gated.core.order.patterns import PatternError, compile_pattern
from gated.core.policy import load
from gated.core.scenario import run_document
from gated.core.schema import policy_schema
from gated.core.starting import Answers, first_policy, first_scenarios
from gated.documents import Document, DocumentError, parse_document
from gated.shell.templates import template_names, template_text

KINDS = ("path", "url", "host", "table")


def init(
    folder: Annotated[Path, typer.Argument(help="Where to write it.")] = Path(),
    template: Annotated[str | None, typer.Option(help="Begin with a ready policy; `list` names them.")] = None,
    force: Annotated[bool, typer.Option(help="Write over files that are there.")] = False,
) -> None:
    """Write policy.yaml, scenarios.yaml and policy.schema.json: a template, or what a few questions make of it."""
    if template == "list":
        for name in template_names():
            say(name)
        return
    with asking("name a template with --template, of which `list` names them all"):
        files = _from_template(template) if template else _from_answers()
    files = {**files, "policy.schema.json": json.dumps(policy_schema(), indent=2) + "\n"}
    _verify(files)
    _write(folder, files, force)
    say(f"wrote {', '.join(escape(str(folder / name)) for name in files)}")
    policy, scenarios = (escape(shlex.quote(str(folder / name))) for name in ("policy.yaml", "scenarios.yaml"))
    for command in (f"policy check {policy}", f"policy test {scenarios}", f"up --policy {policy}"):
        say(f"  gated {command}")


def _from_template(name: str) -> dict[str, str]:
    try:
        policy, scenarios = template_text(name, "policy.yaml"), template_text(name, "scenarios.yaml")
    except OSError:
        fail(f"there is no template `{name}`: there are {', '.join(template_names())}")
    return {"policy.yaml": policy.replace("$schema=../policy", "$schema=policy"), "scenarios.yaml": scenarios}


def _write(folder: Path, files: dict[str, str], force: bool) -> None:
    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        fail(f"`{folder / there[0]}` is there already: take another folder, or --force", NO)
    with writing():
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)


def _verify(files: dict[str, str]) -> None:
    """What is written loads, has nothing for the linter to warn of, and its scenarios hold."""

    def read(name: str) -> Document:
        return parse_document(files[name], file=name)

    try:
        policy = load(read("policy.yaml"))
    except DocumentError as error:
        fail(f"these answers make no policy: {error.message}")
    for item in lint(policy):
        if item.level == "warning":
            say(f"[yellow]warning[/] {escape(item.about)}: {escape(item.message)}")
    failed = [result.scenario for result in run_document(read("scenarios.yaml"), read) if not result.ok]
    if failed:
        fail(f"these answers contradict one another: the scenario `{failed[0]}` does not hold", NO)


# --- questions -------------------------------------------------------------------------------------------------------


def _from_answers() -> dict[str, str]:
    say("A first policy: whatever you do not name is denied. Lists are separated by commas; an empty answer is none.")
    agent = typer.prompt("Name of the agent", default="assistant")
    owner = _optional("Who runs it (cannot approve its calls)")
    tools = _tools()
    asked = _some_of("Which of them must a person approve", tools)
    approvers = _list("Who approves") if asked else ()
    while asked and not set(approvers) - {owner}:
        say("somebody other than the owner must be able to approve")
        approvers = _list("Who approves")
    resources = {tool: _resources(tool) for tool in tools if compile_pattern(tool).exact_tool == tool}
    kinds = {kind for found in resources.values() for kind in found.values()}
    answers = Answers(
        agent=agent,
        owner=owner,
        tools=tools,
        asked=asked,
        approvers=approvers,
        resources={tool: found for tool, found in resources.items() if found},
        folder=_optional("Folder that paths must be in", "/workspace") if "path" in kinds else None,
        hosts=_list("Hosts or URLs that may be reached") if kinds & {"url", "host"} else (),
        databases=_list("Databases that may be read") if "table" in kinds else (),
        max_calls=max(1, typer.prompt("How many calls may a run make", default=100, type=int)),
    )
    return {"policy.yaml": first_policy(answers), "scenarios.yaml": first_scenarios(answers)}


def _list(question: str, default: str = "") -> tuple[str, ...]:
    text = typer.prompt(question, default=default, show_default=bool(default))
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _optional(question: str, default: str = "") -> str | None:
    found = _list(question, default)
    return found[0] if found else None


def _tools() -> tuple[str, ...]:
    while True:
        tools = _list("Tools it may call", "Read, search")
        try:
            for tool in tools:
                compile_pattern(tool)
        except PatternError as error:
            say(escape(str(error)))
            continue
        if tools:
            return tools
        say("an agent with no tools is denied every call: name at least one")


def _some_of(question: str, tools: tuple[str, ...]) -> tuple[str, ...]:
    while True:
        found = _list(question)
        others = [tool for tool in found if tool not in tools]
        if not others:
            return found
        say(f"`{escape(others[0])}` is not among the tools")


def _resources(tool: str) -> dict[str, str]:
    while True:
        found: dict[str, str] = {}
        for word in _list(f"Arguments of {tool} that name a path, url, host or table, as name:kind"):
            name, _, kind = word.partition(":")
            found[name.strip()] = kind.strip()
        wrong = [f"{name}:{kind}" for name, kind in found.items() if kind not in KINDS or not name]
        if not wrong:
            return found
        say(f"`{escape(wrong[0])}` is not name:kind, with one of {', '.join(KINDS)}")
