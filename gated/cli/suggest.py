"""`gated policy suggest`: an allow-list and scopes out of recorded runs.

INVARIANT: what was redacted goes into no suggestion, whether its keys are here or not: a policy is copied and kept, and no
erasure reaches it. The keys only let the suggestion be held against what was said.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from gated.cli.output import NO, Json, Keys, errors, fail, run_async, say_json, short, writing
from gated.cli.progress import progressed
from gated.cli.subjects import vault_of
from gated.cli.which_log import Folder, LogOption, log_of
from gated.core.policy import Policy, load
from gated.core.suggest import Watch, suggest
from gated.core.whatif import Compared, WhatIf
from gated.documents import parse_document, write_yaml
from gated.shell.log.anchors import archived_states
from gated.shell.log.following import fed
from gated.shell.log.open import open_log, policies_of
from gated.units import some

SHOWN = 20

HEAD = """\
# Suggested from {calls} in {runs}. It allows what ran, and nothing else; budgets are the most that one run took, and
# half as much again. Machines, contracts, approvals and patterns are yours to add. Read it before you use it.
"""


def suggest_policy(
    log_: LogOption = None,
    data: Folder = None,
    agent: Annotated[list[str] | None, typer.Option(help="Only this agent; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the policy to this file, not to standard output.")] = None,
    keys: Keys = None,
    json_: Json = False,
) -> None:
    """Make a policy of recorded runs, and say what it would have denied of them (on standard error).

    What was redacted stays out of it. Calls for which it would have to read that are counted as not replayable.
    """
    log = log_of(log_, data)
    watch, known = _watched(log)
    made = suggest(watch, known, agent or ())
    if not made["agents"]:
        fail("the log holds no call that was allowed" + (f" of {', '.join(agent)}" if agent else ""), NO)
    calls, runs = sum(map(len, watch.calls.values())), len(watch.runs)
    head = HEAD.format(calls=f"{calls} call{'s' * (calls != 1)}", runs=f"{runs} recorded run{'s' * (runs != 1)}")
    text = head + write_yaml(made)
    policy = load(parse_document(text, file="suggested.yaml"))
    found = _compared(log, policy, keys)
    if json_:
        say_json({"policy": made, "digest": policy.digest, **_counts(found), "denied": _denied(found), "freed": _freed(found)})
        return
    if out is None:
        sys.stdout.write(text)
    else:
        with writing():
            out.write_text(text)
    _report(found, out)


def _watched(log: str) -> tuple[Watch, dict[str, Policy]]:
    async def work() -> tuple[Watch, dict[str, Policy]]:
        watch = Watch()
        async with open_log(log) as opened:
            async for _ in fed(opened, progressed(opened, "reading"), watch.feed):
                pass
            return watch, await policies_of(opened)

    found: tuple[Watch, dict[str, Policy]] = run_async(work)
    return found


def _compared(log: str, policy: Policy, keys: Path | None) -> list[Compared]:
    """What the suggestion says of the log's calls, and of people's approvals of them, of the agents it is about."""

    async def work() -> list[Compared]:
        found: list[Compared] = []
        async with open_log(log) as opened:
            whatif = WhatIf(policy, await archived_states(opened), vault_of(log, keys))
            async for compared in fed(opened, progressed(opened, "deciding"), whatif.feed):
                found += [item for item in compared if item.what != "finish" and item.agent in policy.agents]
        return found

    compared: list[Compared] = run_async(work)
    return compared


def _counts(found: list[Compared]) -> dict[str, int]:
    allowed = [item for item in found if item.recorded.decision == "allow"]
    outcomes = Counter(item.outcome for item in allowed)
    return {"allowed": len(allowed), "still_allowed": outcomes["unchanged"], "not_replayable": outcomes["not_replayable"]}


def _denied(found: list[Compared]) -> list[Compared]:
    """What ran and would not."""
    return [item for item in found if item.recorded.decision == "allow" and item.outcome in ("flipped", "void")]


def _freed(found: list[Compared]) -> list[Compared]:
    """What was denied, or asked for, and would now simply run: what a rule said that is not suggested again."""
    return [i for i in found if i.recorded.decision != "allow" and i.derived is not None and i.derived.decision == "allow"]


def _report(found: list[Compared], out: Path | None) -> None:
    counts = _counts(found)
    where = f" in {out}" if out is not None else ""
    _tell(f"the policy{where} allows {counts['still_allowed']:,} of {some(counts['allowed'], 'recorded call')} that ran")
    if counts["not_replayable"]:
        blind = some(counts["not_replayable"], "call")
        _tell(f"[yellow]not replayable[/]: {blind}, for it would have to read what was redacted")
    _list("[red]it would have denied[/]", _denied(found), lambda item: item.derived.reason if item.derived else item.why)
    _list("[yellow]it lets through what was not allowed[/]", _freed(found), lambda item: item.recorded.reason)


def _list(title: str, items: list[Compared], why: Any) -> None:
    if items:
        _tell(f"{title}: {len(items)}")
    for item in items[:SHOWN]:
        _tell(f"  {escape(item.run)} {escape(item.call)} {escape(item.tool)}: {escape(short(str(why(item) or ''), 160))}")
    if len(items) > SHOWN:
        _tell(f"  and {len(items) - SHOWN} more: --json lists them all")


def _tell(text: str) -> None:
    errors.print(text, highlight=False, soft_wrap=True)
