"""Tickets as a terminal shows them. What agents wrote is text: escaped, never markup, and nothing of it hidden silently."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gated.cli.output import told_apart
from gated.core.order.templates import escape_text
from gated.units import some

Line = dict[str, Any]

UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))
AGENT: Final = 16  # characters that an agent's name may take in a list
NAME: Final = 30  # characters that a tool's name may take in a list
ENDS: Final = {  # what a state means for the agent, where no verdict says more
    "rejected": "the agent is told",
    "expired": "nobody answered in time, so it is denied",
    "cancelled": "its run has ended",
}
SHORT: Final = 76  # characters of JSON that stay on one line


def became(said: Line) -> str:
    """What an answer came to, in words: of the ticket, and of its calls, which are decided again. `said` is the gate's word."""
    details = said.get("details", {})
    by = f" by {escape_text(details['answer']['by'], NAME)}" if "answer" in details else ""
    if said["state"] == "pending":
        return f"is answered{by} and still waits: others must answer too"
    verdicts = details.get("verdicts", ())
    came = ENDS.get(said["state"]) or "; ".join(dict.fromkeys(_verdict(verdict, said["ticket"]) for verdict in verdicts))
    state = "edited" if said["state"] == "superseded" else said["state"]
    return f"is {state}{by}" + (f": {came}" if came else "")


def _verdict(verdict: Line, ticket: str) -> str:
    tool = f"`{escape_text(verdict['tool'], NAME)}`"
    if verdict["decision"] == "allow":
        if verdict.get("execute") is False:
            return f"{tool} does not run, the agent gets the result that was given"
        return f"{tool} may run now" + (" with the edited arguments" if verdict.get("edited") else "")
    if verdict["decision"] == "deny":
        return f"{tool} is denied all the same: {escape_text(verdict['reason'], 400)}"
    again = verdict.get("ticket", ticket)
    return f"{tool} still waits" + (f", for ticket {again}" if again != ticket else "")


def listing(lines: Sequence[Line], *, selected: int | None = None, width: int | None = None) -> Table:
    """A line a ticket. With `selected`, for a person at the keyboard: without the ids that commands need."""
    ids = selected is None
    drawn = Table(box=None, pad_edge=False, header_style="bold", expand=True, width=width, show_edge=False)
    longest = max((len(line["ticket"]) for line in lines), default=0) if ids else 1
    agents = told_apart((line["agent"] for line in lines), AGENT)
    drawn.add_column("ticket" if ids else " ", no_wrap=True, width=longest)
    drawn.add_column("left", justify="right", no_wrap=True, width=4)
    drawn.add_column("agent", no_wrap=True, width=max(map(len, ("agent", *agents.values()))))
    drawn.add_column("call", no_wrap=True, overflow="ellipsis", ratio=3)
    drawn.add_column("why", no_wrap=True, overflow="ellipsis", ratio=2)
    for number, line in enumerate(lines):
        chosen = number == selected
        style = "reverse" if chosen else ""
        mark = line["ticket"] if ids else (">" if chosen else " ")
        drawn.add_row(mark, time_left(line), _plain(agents[line["agent"]]), _call(line), _plain(why(line)), style=style)
    return drawn


def listed(lines: Sequence[Line]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The same as a table with every cell whole: its columns and rows."""
    columns = ("ticket", "left", "agent", "call", "why")
    return columns, [(line["ticket"], time_left(line).plain, line["agent"], _call(line, None).plain, why(line)) for line in lines]


def time_left(line: Line) -> Text:
    """Until the ticket expires: `42s`, `14m`, `3h`; red once it is about to."""
    seconds = max(0, int(datetime.fromisoformat(line["expires_at"]).timestamp() - time.time()))
    unit, size = next(((unit, size) for unit, size in UNITS if seconds >= size), ("s", 1))
    return Text(f"{seconds // size}{unit}", style="bold red" if line["soon"] else "")


def why(line: Line) -> str:
    """Who has approved so far, whether people could not be told, and the reasons."""
    reasons = "; ".join(ask["reason"] for ask in line["asks"])
    names = ", ".join(dict.fromkeys(answer["by"] for answer in line["answers"]))
    untold = "(undelivered) " if line.get("undelivered") else ""
    return untold + (f"({names} approved) {reasons}" if names else reasons)


def whole(line: Line) -> list[str]:
    """A ticket with all that is needed to answer it, as lines of markup."""
    head = f"[bold]{escape(line['ticket'])}[/]  agent {_safe(line['agent'])}  run {_safe(line['run'])}"
    if line["thread"] != line["run"]:
        head += f"  thread {_safe(line['thread'])}"
    lines = [head, f"opened {_second(line['opened_at'])}  expires {_second(line['expires_at'])}", f"answers  {who(line)}"]
    if line.get("task"):
        lines.append(f"task  {_safe(line['task'])}")
    lines += [f"[yellow]asks[/]  {_safe(a['code'])}: {_safe(a['reason'])}" for a in line["asks"]]
    for answer in line["answers"]:
        note = f": {_safe(answer['note'])}" if answer.get("note") else ""
        lines.append(f"[green]{_safe(answer['by'])}[/] {_safe(answer['decision'])}d at {_second(answer['at'])}{note}")
    if line.get("undelivered"):
        lines.append(f"[red]nobody could be told over[/]  {_safe(', '.join(line['undelivered']))}")
    if line.get("history"):
        done = ", ".join(f"{tool} x{count}" for tool, count in sorted(line["history"].items()))
        lines.append(f"allowed so far in this run  {_safe(done)}")
    for call in line.get("calls", ()) if isinstance(line.get("calls"), list) else ():
        lines += ["", f"[bold]{_safe(call['tool'])}[/]  [dim]{call['args_sha256']}[/]", *_arguments(call["args"])]
    return lines


def ended(line: Line) -> str:
    """How a ticket that is no longer open ended, and by whom."""
    answers = ", ".join(f"{answer['decision']} by {answer['by']} at {_second(answer['at'])}" for answer in line["answers"])
    return f"ticket `{line['ticket']}` is {line['state']}: {answers or 'nobody answered'}"


def who(line: Line) -> str:
    """Who may answer, in words."""
    return "; ".join(dict.fromkeys(_rule(rule, escalated=line["escalated"]) for rule in line["rules"]))


def _rule(rule: dict[str, Any], *, escalated: bool) -> str:
    names = rule.get("approvers", ())
    if rule.get("anyone"):
        text = "anyone may answer"
    elif rule.get("stages"):
        text = "in turn " + ", then ".join(_names(stage) for stage in rule["stages"])
    else:
        quorum = rule.get("quorum", 1)
        alone = quorum == 1 and len(names) == 1 and names[0].startswith("user:")
        text = _names(names) if alone else f"{quorum} of {_names(names)}"
    if escalated and rule.get("escalate_to"):
        text += f", or {_names(rule['escalate_to'])}"
    return text + (f" (not {_names(rule['excluded'])})" if rule.get("excluded") and not rule.get("self_approval") else "")


def _names(names: Sequence[str]) -> str:
    return ", ".join(_safe(name) for name in names)


def _arguments(args: Any) -> list[str]:
    return [escape(escape_text(line, len(line))) for line in _pretty(args, "").splitlines()]


def _pretty(value: Any, indent: str) -> str:
    """JSON for reading: what is short on one line, what is long on a line for each of its parts."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) + len(indent) <= SHORT or not value or not isinstance(value, dict | list):
        return text
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {_pretty(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"
    if any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _pretty(item, inner) for item in value) + f"\n{indent}]"
    return text  # a list of plain values: the terminal wraps it


def _call(line: Line, name: int | None = NAME) -> Text:
    more = f" and {line['calls'] - 1} more" if isinstance(line["calls"], int) and line["calls"] > 1 else ""
    return Text.assemble((escape_text(line["tool"], name or len(line["tool"])), "bold"), f" {preview(line)}{more}")


def preview(line: Line) -> str:
    """The arguments as lists show them: in part, and how much of them is hidden."""
    hidden = line.get("hidden_bytes", line["args_bytes"])  # a gate of before does not say
    return f"{line['preview']} +{some(hidden, 'byte')}" if hidden else str(line["preview"])


def _plain(text: str) -> Text:
    return Text(escape_text(text, 400))


def _safe(text: str) -> str:
    return escape(escape_text(str(text), 4000))


def _second(at: str) -> str:
    return f"{at[:10]} {at[11:19]}Z"
