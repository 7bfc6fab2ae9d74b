"""`gated policy explain`: why a call got its verdict, stage by stage, and what would have allowed it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.markup import escape
from rich.table import Table

from gated import canonical, ingress, strict_json
from gated.cli.output import NO, Json, Keys, colour, draw, fail, run_async, say, say_json, short, telling
from gated.cli.progress import progressed
from gated.cli.reading import compiled, document_of
from gated.cli.subjects import vault_of
from gated.cli.which_log import Folder, LogOption, log_of
from gated.core.explain import Case, Explanation, StageReport, Way, explain, recorded_case, wanted_case
from gated.core.fold import fold
from gated.core.policy import Policy
from gated.core.redaction.vault import Vault
from gated.core.stages.semantic import DETECTORS
from gated.core.state import ThreadState
from gated.documents import Document
from gated.events import MILLION, AgentId, Record, RunId, Score, ThreadId, Wanted, unseal
from gated.shell.embedding import prepared_call
from gated.shell.log.anchors import archived_states
from gated.shell.log.following import fed
from gated.shell.log.open import open_log, policies_of
from gated.shell.policies import load_stored
from gated.units import some

COLOURS = {"ok": "green", "warn": "yellow", "ask": "yellow", "deny": "red", "off": "dim"}

PolicyOption = Annotated[Path | None, typer.Option("--policy", "-p", help="Policy file, or a folder of them.")]


def explain_call(
    log_: LogOption = None,
    data: Folder = None,
    run: Annotated[str | None, typer.Option(help="The run; with --call a recorded call, else the state to start from.")] = None,
    thread: Annotated[str | None, typer.Option(help="Its thread, where the id occurs on several.")] = None,
    call: Annotated[str | None, typer.Option(help="The recorded call's id.")] = None,
    policy: PolicyOption = None,
    agent: Annotated[str | None, typer.Option(help="Who asks; default: the run's agent, or the policy's only one.")] = None,
    tool: Annotated[str | None, typer.Option(help="The tool of a call that nobody made.")] = None,
    args: Annotated[str, typer.Option(help="Its arguments, as JSON.")] = "{}",
    cost: Annotated[float | None, typer.Option(help="Its estimated cost in USD.")] = None,
    score: Annotated[list[str] | None, typer.Option(help="What a detector says of it, as secrets=0.2; may be repeated.")] = None,
    keys: Keys = None,
    json_: Json = False,
) -> None:
    """Say what every stage finds of a call, and the smallest change that would have allowed it.

    A recorded call: --run R --call C. One that nobody made: --policy P --tool T --args JSON; with --run it is asked on the
    state that the run is in. Where a rule would have to read what was redacted, that is said.
    """
    if (call is None) == (tool is None):
        fail("name a recorded call (--run, --call) or one that nobody made (--policy, --tool, --args)")
    log = log_of(log_, data) if run is not None else log_
    document = None if policy is None else document_of(policy)
    loaded = None if document is None else compiled(document)
    with telling():
        if call is not None:
            found = _recorded(_seen(log, run, thread, keys), run, call, loaded)
        else:
            wanted = _wanted(tool or "", args, cost, score or ())
            found = _hypothetical(_seen(log, run, thread, keys), run, loaded, agent, wanted)
        explanation = explain(found)
    if json_:
        say_json({"run": found.run_id, "agent": found.agent, "at": found.at, **_plain(explanation)})
    else:
        _print(found, explanation, document)


def _compile(data: Any) -> Policy:
    """An edited policy, with the functions that are installed here."""
    text = canonical.encode(data)
    return load_stored(text, hashlib.sha256(text).hexdigest(), lenient=True)


def _wanted(tool: str, args: str, cost: float | None, scores: Sequence[str]) -> Wanted:
    try:
        given = strict_json.parse(args.encode())
    except strict_json.BadJson as error:
        fail(f"--args: {error}")
    wanted = ingress.wanted_from({"id": "explained", "tool": tool, "args": given, "parent": None, "cost_usd": cost}, 0)
    if wanted.refused is not None:
        fail(f"such a call is refused before any stage, {wanted.refused}: {wanted.why}", NO)
    return replace(wanted, scores=dict(map(_score, scores))) if scores else wanted


def _score(text: str) -> tuple[str, Score]:
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if name not in DETECTORS or not 0 <= number <= 1:
        fail(f"--score is DETECTOR=NUMBER, from 0 to 1, not `{text}`; detectors are {', '.join(DETECTORS)}")
    return name, Score(round(number * MILLION))


class _Seen(Struct):
    """Of the threads that a run is on: their records, their states at the end of the log, and the log's policies."""

    records: list[Record] = []
    states: dict[ThreadId, ThreadState] = {}
    known: dict[str, Policy] = {}
    vault: Vault | None = None

    def feed(self, record: Record) -> None:
        self.records.append(record)
        state = self.states.get(record.thread) or ThreadState(record.thread)
        self.states[record.thread] = fold(self.known, state, unseal(record), record.hash)


def _seen(log: str | None, run: str | None, thread: str | None, keys: Path | None) -> _Seen:
    if log is None or run is None:
        return _Seen()

    async def work() -> _Seen:
        async with open_log(log) as opened:
            gone = await archived_states(opened)  # what they say later can only be read with the archive
            mine = {record.thread async for _, record in opened.read_all() if record.run == run and record.thread not in gone}
            threads = {found for found in mine if thread in (None, found)}
            if len(threads) > 1:
                fail(f"run `{run}` is on several threads: say which with --thread, of {', '.join(sorted(threads))}", NO)
            seen = _Seen(known=await policies_of(opened), vault=vault_of(log, keys))

            def feed(record: Record) -> None:
                if record.thread in threads:
                    seen.feed(record)

            async for _ in fed(opened, progressed(opened, "reading"), feed):
                pass
            return seen

    found: _Seen = run_async(work)
    return found


def _recorded(seen: _Seen, run: str | None, call: str, policy: Policy | None) -> Case:
    if run is None:
        fail("a recorded call is named by --run and --call")
    found = recorded_case(seen.records, seen.known, run, call, policy, _compile, seen.vault)
    if found is None:
        fail(f"the log has no verdict on call `{call}` of run `{run}`", NO)
    return found


def _hypothetical(seen: _Seen, run: str | None, policy: Policy | None, agent: str | None, wanted: Wanted) -> Case:
    known, state = seen.known, _state(seen, run)
    current = None if state is None or run is None else state.runs[RunId(run)]
    if policy is None and current is not None:
        policy = known[current.policy]
    if policy is None:
        fail("say which policy with --policy, or which run with --run")
    who = agent or (None if current is None else current.agent) or _only_agent(policy)
    run_id = RunId(run or "explained")
    wanted = prepared_call(wanted, policy)
    asks = AgentId(who)
    return wanted_case(policy, asks, wanted, state=state, run_id=run_id, known=known, compile=_compile, vault=seen.vault)


def _state(seen: _Seen, run: str | None) -> ThreadState | None:
    """The thread of a run, as it is at the end of the log."""
    if run is None:
        return None
    if not seen.states:
        fail(f"the log has no run `{run}`", NO)
    (state,) = seen.states.values()
    if RunId(run) not in state.runs:
        fail(f"run `{run}` was never opened", NO)
    return state


def _only_agent(policy: Policy) -> str:
    if len(policy.agents) != 1:
        fail(f"the policy has {some(len(policy.agents), 'agent')}: say who asks with --agent")
    return str(next(iter(policy.agents)))


# --- showing ---------------------------------------------------------------------------------------------------------


def _plain(explanation: Explanation) -> dict[str, Any]:
    return {
        "verdict": explanation.verdict,
        "recorded": explanation.recorded,
        "policy": explanation.policy,
        "stages": explanation.stages,
        "ways": explanation.ways,
        "unread": explanation.unread,
    }


def _print(case: Case, explanation: Explanation, document: Document | None) -> None:
    verdict, plea = explanation.verdict, case.draft.plea
    shown = escape(short(json.dumps(plea.args, ensure_ascii=False), 200))
    say(f"[{colour(verdict.decision)}]{verdict.decision}[/] {escape(plea.tool)} {shown} of {escape(case.agent)}")
    recorded = explanation.recorded
    if recorded is not None and recorded.decision != verdict.decision:
        approved = f"people approved it (ticket {recorded.ticket})" if recorded.ticket else "nothing stood against it"
        say(f"[yellow]the log says {recorded.decision}[/]: {escape(recorded.reason or approved)}")
    if explanation.unread is not None:
        say(f"[yellow]not certain[/]: {escape(explanation.unread)}")
    _grid([row for report in explanation.stages for row in _stage_rows(report)])
    if explanation.ways:
        say("What would have allowed it, the smallest change first:")
        _grid([row for number, way in enumerate(explanation.ways, 1) for row in _way_rows(number, way, document)])
    if verdict.decision != "allow" and not explanation.ways:
        say("No change was found that allows it.")


def _grid(rows: list[tuple[str, str, str]]) -> None:
    drawn = Table.grid(padding=(0, 2))
    for _ in range(3):
        drawn.add_column(overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    draw(drawn)


def _stage_rows(report: StageReport) -> list[tuple[str, str, str]]:
    notes = [note for note, holds in (("observed only", report.observed), ("not reached", not report.asked)) if holds]
    note = f" [dim]({', '.join(notes)})[/]" if notes and report.findings else ""
    lines = [escape(f"{finding.code}: {finding.reason}") for finding in report.findings] or [""]
    head = (f"  [{COLOURS[report.says]}]{report.says}[/]", report.stage, lines[0] + note)
    return [head, *(("", "", line) for line in lines[1:])]


def _way_rows(number: int, way: Way, document: Document | None) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for position, change in enumerate(way.changes):
        known = document is not None and change.kind == "policy"
        place = f"{document.file_of(change.path)}:{document.line(change.path)}" if document is not None and known else ""
        rows.append((f"  {number}." if position == 0 else "  and", escape(change.text), f"[dim]{escape(place)}[/]"))
    return rows
