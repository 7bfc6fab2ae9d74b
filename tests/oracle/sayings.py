"""What agents, runners, operators and approvers say to a gate, before ids and times are filled in."""

from __future__ import annotations

from typing import Any

from oracle.dice import Dice, Doc
from oracle.parts import ARGS, TOOLS

Said = dict[str, Any]
PLACES = (("t1", "r1"), ("t1", "r2"), ("t1", "r3"), ("t2", "r1"))
PEOPLE = ("bob", "bob", "cy", "cy", "dee", "ana", "a", "eve")
COSTS = (0, 0.01, 0.02, 0.05)
SECOND = 1_000_000
DETECTORS = ("secrets", "exfiltration", "injection", "drift", "judge")
MALFORMED_ID = "no id"
LAST = "the run that was last spoken of"
PAUSES = (0, 0, 0, 0, 0, SECOND, SECOND, 20 * SECOND, 31 * SECOND, 61 * SECOND)


def kinds(flags: frozenset[str]) -> list[str]:
    """Each as often as it is to be drawn."""
    if "asking" in flags:
        return ["intents"] * 6 + ["resolve"] * 16 + ["outcome"] * 3 + ["advance"]
    if "beside" in flags:
        return ["intents"] * 10 + ["resolve"] * 10 + ["outcome"] * 5 + ["start", "start", "finish"]
    found = ["intents"] * 14 + ["outcome"] * 10 + ["finish", "finish", "start"]
    found += ["bind"] * 4 if "rebinding" in flags else []
    return found + (["resolve"] * 8 if "approvals" in flags else []) + (["advance"] * 2 if "time" in flags else [])


def saying(dice: Dice, kind: str, flags: frozenset[str]) -> Said:
    if kind == "finish" and dice.one_in(3):
        kind = "abort"
    pause = dice.pick(PAUSES) if "time" in flags else SECOND
    if kind == "advance":
        return {"op": kind, "pause": pause + SECOND}
    said: Said = {"op": kind, "pause": pause, "place": dice.pick([None, None, None, None, 0, 1, 2, 3])}
    if "strangers" in flags and dice.one_in(20):
        said["agent"] = dice.pick(["a", "b", "c", "nobody"])
    if kind in ("outcome", "resolve"):
        said["back"] = dice.pick([0, 0, 0, 1, 1, 2, 3, 5])
    said["body"] = BODIES[kind](dice, flags)
    return said


def _intents(dice: Dice, flags: frozenset[str]) -> Doc:
    body: Doc = {"calls": [_call(dice, flags) for _ in range(dice.pick((1, 1, 1, 1, 2, 3)))]}
    if "atomic" in flags and dice.one_in(4):
        body["mode"] = "atomic"
    if not dice.one_in(3):
        body["nesting"] = "explicit"
    return body


def _call(dice: Dice, flags: frozenset[str]) -> Doc:
    call: Doc = {"tool": dice.pick(TOOLS), "args": dice.pick(ARGS), "back": None, "parent_back": None}
    if dice.one_in(8):
        call |= {"back": dice.pick([0, 1, 2, 4]), "same": dice.one_in(2)}
    if dice.one_in(3):
        call["parent_back"] = dice.pick([0, 0, 1, 2])
    dice.maybe(call, 3, cost_usd=COSTS)
    if not dice.one_in(5):
        call["scores"] = dict.fromkeys(DETECTORS, 0) | _scores(dice)
    if "malformed" in flags and dice.one_in(40):
        call |= dice.pick([{"tool": "bad name"}, {"cost_usd": -1}, {"args": [1]}, {"id": MALFORMED_ID}])
    return call


def _outcome(dice: Dice, flags: frozenset[str]) -> Doc:
    body: Doc = {"status": dice.pick(["success"] * 5 + ["error"] * 3 + ["not_run"]), "content": dice.pick(["ok then", "boom"])}
    body["by"] = dice.pick(["agent"] * 9 + ["runner:box"])
    dice.maybe(body, 3, facts=[{"n": 1}, {"n": 2}], cost_usd=COSTS)
    dice.maybe(body, 2, tokens=[0, 2, 5])
    if not dice.one_in(5):
        body["scores"] = {"injection": dice.pick([0, 0, 0, 0.6, 1])} | _scores(dice)
    dice.maybe(body, 6, content=[{"a": 1}, ["ok"], 1, "", "a\nok b"], facts=[{"n": "1"}, {"n": None}])
    if dice.one_in(8):
        del body["content"]
    return body


def _scores(dice: Dice) -> Doc:
    made: Doc = {}
    if dice.one_in(3):
        made[dice.pick((*DETECTORS, "exfiltration"))] = dice.pick([0.29, 0.3, 0.6, 0.7, 0.9, 1, 1.1, "no"])
    return made


def _resolve(dice: Dice, flags: frozenset[str]) -> Doc:
    body: Doc = {"by": dice.pick(PEOPLE), "decision": "reject" if dice.one_in(6) else "approve"}
    if body["decision"] == "approve" and dice.one_in(6):
        body["args"] = dice.pick(ARGS)
    elif body["decision"] == "approve" and dice.one_in(2):
        pattern = dice.pick(["pay", "*", 'Write(f ~ "x*")', "Re*"])
        body["remember"] = dice.pick(["call", "call", {"pattern": pattern, "for": dice.pick(["run", "thread"])}])
    if body["decision"] == "approve" and dice.one_in(6):
        body["result"] = dice.pick(["ok then", {"n": 1}])
    dice.maybe(body, 15, tool=["Read", "pay"], name=PEOPLE, args_sha256=["0" * 64])
    return body


def _start(dice: Dice, flags: frozenset[str]) -> Doc:
    body: Doc = {"by": dice.pick(["agent", "operator:op"])}
    dice.maybe(body, 10, tools=[["Read", "Write", "pay"]])
    if "children" in flags and not dice.one_in(3):
        body["parent"] = dice.pick([LAST, LAST, *(run for _, run in PLACES)])
    return body


def _finish(dice: Dice, flags: frozenset[str]) -> Doc:
    return {}


def _abort(dice: Dice, flags: frozenset[str]) -> Doc:
    return {"reason": dice.pick(["", "stop"])}


def _bind(dice: Dice, flags: frozenset[str]) -> Doc:
    return {"policy": dice.pick([0, 1, 1]), "now": not dice.one_in(3)}


BODIES = {
    "bind": _bind,
    "intents": _intents,
    "outcome": _outcome,
    "resolve": _resolve,
    "start": _start,
    "finish": _finish,
    "abort": _abort,
}
