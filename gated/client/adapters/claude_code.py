"""Claude Code and the Claude Agent SDK: their hooks as questions to the gate.

The host knows `allow`, `deny` and `ask`, and takes a hook that fails for no objection. So every verdict is one of `DECISIONS`,
whatever cannot be decided is `deny`, and the command ends with status 0 and an answer or with 2, which blocks.
`ask` is never said: it would let whoever sits at the host answer in the place of the policy's approvers.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from gated.client.adapters import call_id, for_model, text_of
from gated.client.calls import Outcome, content_of
from gated.client.errors import GateError, Refused
from gated.client.gate import Gate
from gated.client.run import Wait

Event = dict[str, Any]
Answer = dict[str, Any]

OnAllow = Literal["allow", "pass"]

DECISIONS: Final = ("allow", "deny", "ask")  # the host's words; any other is none to it
SILENT: Final[Answer] = {}  # no opinion: the host's own permissions decide


async def answer(gate: Gate, event: Event, *, wait: Wait = False, on_allow: OnAllow = "pass") -> Answer:
    """What the host is told on one of its events; its session is the run, its `tool_use_id` the call.

    On an allow the host's own permissions still hold (`pass`), or are satisfied (`allow`). Raises `GateError` for events
    after a tool that the gate does not take; never for the question before one.
    """
    name, session = event.get("hook_event_name"), str(event.get("session_id"))
    if name == "PreToolUse":
        return await _before(gate, session, event, wait, on_allow)
    run = gate.run(run=session, resume=True)
    match name:
        case "PostToolUse":
            return _reminding(name, await run.report(_call(event), "success", content=content_of(event.get("tool_response"))))
        case "PostToolUseFailure":
            return _reminding(name, await run.report(_call(event), "error", content=content_of(event.get("error"))))
        case "PermissionDenied":
            await run.report(_call(event), "not_run", content="the host's own permissions denied it")
        case "SessionEnd":
            await run.finish()
    return SILENT


async def _before(gate: Gate, session: str, event: Event, wait: Wait, on_allow: OnAllow) -> Answer:
    tool, args = str(event.get("tool_name", "")), event.get("tool_input")
    try:
        if not isinstance(args, dict):
            raise Refused("ingress.args", "`tool_input` is no object")
        run = gate.run(run=session, resume=True)
        admitted = await run.admit(tool, args, call=_call(event), wait=wait)
    except GateError as error:
        return decision("deny", for_model(error))
    if not admitted.execute:
        return decision(
            "deny", f"A person answered in the tool's place, so it did not run. The result: {text_of(admitted.result)}"
        )
    if admitted.verdict.args is not None:
        return decision("allow", "A person edited the arguments.", dict(admitted.args))
    return decision("allow", "The gate allows it.") if on_allow == "allow" else SILENT


def _reminding(event: str, outcome: Outcome) -> Answer:
    """The reminders that came with an outcome, as what the host adds to the model's context."""
    if not outcome.reminders:
        return SILENT
    text = "\n".join(reminder.content for reminder in outcome.reminders)
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}


def decision(word: str, reason: str, changed: dict[str, Any] | None = None) -> Answer:
    """The host's form of a decision. Raises `ValueError` for a word that it does not know."""
    if word not in DECISIONS:
        raise ValueError(f"the host does not know `{word}`: it would run the tool")
    said: Answer = {"hookEventName": "PreToolUse", "permissionDecision": word, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": said if changed is None else {**said, "updatedInput": changed}}


def _call(event: Event) -> str:
    call = call_id(event.get("tool_use_id"))
    if call is None:
        raise Refused("ingress.id", f"`tool_use_id` is `{event.get('tool_use_id')}`, which cannot be the id of a call")
    return call


def callback(gate: Gate, *, wait: Wait = False, on_allow: OnAllow = "pass") -> Callable[[Any, Any, Any], Awaitable[Answer]]:
    """For the SDK: `hooks={event: [HookMatcher(hooks=[callback(gate)])] for event in ("PreToolUse", "PostToolUse", …)}`."""

    async def hook(event: Any, tool_use_id: Any, context: Any) -> Answer:
        return await answer(gate, {"tool_use_id": tool_use_id, **event}, wait=wait, on_allow=on_allow)

    return hook


def parse(text: str) -> Event:
    """An event as the command gets it. Raises `ValueError`."""
    try:
        event = json.loads(text)
    except ValueError as error:
        raise ValueError(f"what the host sent is no JSON: {error}") from error
    if not isinstance(event, dict):
        raise ValueError("the event is no JSON object")
    return event
