"""Tool-order machines after the call, reminders, and the end of a run. order.md, After the call."""

from __future__ import annotations

from typing import Any

from oracle import order, patterns
from oracle.globs import glob_matches
from oracle.history import Entry, Run, Thread
from oracle.order import Watch
from oracle.values import shown, text_of

DEFAULT_CONTINUATION = {"max_continuations": 25, "message": "Finish the protocol work: {summary}"}


def advance(thread: Thread, admitted: Entry, status: str, content: Any, facts: Any, at: int) -> list[dict[str, Any]]:
    """Moves every machine that watched the call; the reminders that go out. `not_run` moves nothing."""
    if status == "not_run":
        return []
    reminders = []
    for watch in admitted.data["watches"]:
        if not watch.wide:
            continue
        state = order.current(thread, admitted.run, watch)
        listing = watch.listing(state)
        fired = next((i for i in listing if _fits(watch.transition(i).get("when"), status, content, facts)), None)
        if fired is not None:
            _move(thread, admitted, watch, state, watch.transition(fired)["to"], at)
            reminders += _emit(thread, admitted, watch, fired, at)
        elif listing and watch.machine.get("on_unmatched") is not None:
            _move(thread, admitted, watch, state, watch.machine["on_unmatched"], at)
        elif not listing:
            reminders += _warning(watch, state, admitted.data["tool"])
    return reminders


def _fits(when: Any, status: str, content: Any, facts: Any) -> bool:
    """Nothing said, and a mapping with no status: success only."""
    if when is None or isinstance(when, str):
        return (when or "success") in ("any", status)
    if when.get("status", "success") not in ("any", status):
        return False
    if "content" in when and not glob_matches(when["content"], text_of(content)):
        return False
    return "facts" not in when or all(patterns.condition_holds(c, facts or {}) for c in patterns.conditions(when["facts"]))


def _move(thread: Thread, admitted: Entry, watch: Watch, state: str, to: str, at: int) -> None:
    """Staying is no transition."""
    if to == state:
        return
    scope = order.scope_of(watch.machine, admitted.run)
    thread.note("moved", admitted.run, admitted.call, at, machine=watch.name, key=watch.key, scope=scope, to=to)
    count(thread, admitted.run, "transitioned", watch.name, at)


def count(thread: Thread, run: str, metric: str, machine: str, at: int) -> None:
    thread.note("counted", run, None, at, metric=metric, machine=machine)


def _emit(thread: Thread, admitted: Entry, watch: Watch, fired: int, at: int) -> list[dict[str, Any]]:
    """Issued again only when `tick - last >= cooldown_turns`; the tick grows by one with every outcome of the thread.

    ambiguous: an observed machine. "Recorded and not acted on": it sends no reminders.
    """
    content = watch.emits[fired]
    if content is None or watch.observed:
        return []
    emit = watch.transition(fired)["emit"]
    tick = len([e for e in thread.log if e.kind == "settled"])
    last = [e for e in thread.log if e.kind == "reminded" and (e.data["machine"], e.data["key"]) == (watch.name, watch.key)]
    if last and tick - last[-1].data["tick"] < emit.get("cooldown_turns", 0):
        return []
    thread.note("reminded", admitted.run, admitted.call, at, machine=watch.name, key=watch.key, tick=tick)
    count(thread, admitted.run, "emitted", watch.name, at)
    return [_reminder(watch, content, "transition", emit.get("target", "suffix_system"), emit.get("role", "user"))]


def _warning(watch: Watch, state: str, tool: str) -> list[dict[str, Any]]:
    """When no matching transition lists the state and the violated one says `warn`."""
    chosen = order.violated(watch)
    if watch.observed or order.action_of(watch.transition(chosen)) != "warn":
        return []
    default = f"Tool `{tool}` is not permitted by state machine `{watch.name}` from state `{state}`."
    return [_reminder(watch, watch.texts[chosen] or default, "warning", "suffix_system", "user")]


def _reminder(watch: Watch, content: str, reason: str, target: str, role: str) -> dict[str, Any]:
    return {"target": target, "role": role, "content": content, "machine": watch.name, "key": watch.key, "reason": reason}


def instances(thread: Thread, *scopes: str | None) -> dict[str, dict[str, str]]:
    """The state of every instance that ever moved, of a run or (None) of the thread."""
    found: dict[str, dict[str, str]] = {}
    for entry in thread.log:
        if entry.kind == "moved" and entry.data["scope"] in scopes:
            found.setdefault(entry.data["machine"], {})[entry.data["key"]] = entry.data["to"]
    return found


def steering(thread: Thread, run: Run) -> str | None:
    """The message of a forced continuation, when the run's end is to be steered. What is observed never steers."""
    rules = {**DEFAULT_CONTINUATION, **run.policy.doc.get("continuation", {})}
    if not run.policy.enabled(run.agent, order.STAGE) or run.policy.observed(run.agent, order.STAGE):
        return None
    if len(thread.of("steered", run.id)) >= int(str(rules["max_continuations"])):
        return None
    unfinished = []
    for machine in run.policy.machines(run.agent):
        if machine.get("terminal") and machine.get("mode") != "observe":
            for key, state in instances(thread, order.scope_of(machine, run.id)).get(machine["name"], {}).items():
                if state not in machine["terminal"]:
                    unfinished.append(f"{machine['name']}[{shown(key)}]={state}")
    return str(rules["message"]).replace("{summary}", ", ".join(sorted(unfinished))) if unfinished else None
