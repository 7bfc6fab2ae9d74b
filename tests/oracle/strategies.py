"""Random small policies and histories: few names and small limits, so that everything collides.

`policies()` draws a policy in the form of the file, `histories()` a list of operations, `apply` does one of them to
anything that has the methods of `oracle.Gate`. Every flag that is False leaves out what it names. `thrown(seed)` is a
policy and a history from dice alone: no shrinking, but ten times as many in the same time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from oracle import parts, sayings
from oracle.dice import Dice, Doc, pool
from oracle.sayings import Said

Pick = Callable[[Sequence[Any]], Any]

AGENTS = ("a", "b", "c")
STAGES = {
    "privilege": "privilege",
    "dfa": "dfa",
    "order": "machines",
    "contracts": "contracts",
    "dcbf": "dcbf",
    "semantic": "semantic",
}
OTHERS = ("approvals", "ceilings", "observe", "children", "threads", "schemas", "expressions", "breaker")
SAID = ("atomic", "approvals", "strangers", "malformed", "children", "time", "rebinding")
GROUPS = {"leads": ["ana", "bob", "a"], "finance": ["cy", "dee"]}
WAITING = (["*"], ["*"], ["pay", "Write"], ["Read", 'pay(f = "x")'])
TOGETHER: tuple[Doc, ...] = (
    {},
    {"scope": "thread", "max_calls": 5},
    {"scope": "thread", "max_total_cost_usd": 0.05, "over": "ask"},
    {"scope": "thread", "max_steps": 4, "max_tokens": 5},
    {"scope": "thread", "max_execution_time_seconds": 300},
)
SCOPED = ("safety", "privacy", "resource", "stability")
LENGTH = 30


@st.composite
def policies(
    draw: st.DrawFn,
    *,
    privilege: bool = True,
    dfa: bool = True,
    machines: bool = True,
    contracts: bool = True,
    dcbf: bool = True,
    semantic: bool = True,
    approvals: bool = True,
    ceilings: bool = True,
    observe: bool = True,
    children: bool = True,
    threads: bool = True,
    schemas: bool = True,
    expressions: bool = True,
    breaker: bool = True,
) -> Doc:
    """The first six are stages: what is not True is in no `checks`."""
    stages = (privilege, dfa, machines, contracts, dcbf, semantic)
    others = (approvals, ceilings, observe, children, threads, schemas, expressions, breaker)
    names = dict(zip((*STAGES.values(), *OTHERS), (*stages, *others), strict=True))
    return _policy(lambda values: draw(st.sampled_from(values)), frozenset(name for name, on in names.items() if on))


@st.composite
def histories(
    draw: st.DrawFn,
    *,
    length: int = LENGTH,
    atomic: bool = True,
    approvals: bool = True,
    strangers: bool = True,
    malformed: bool = True,
    children: bool = True,
    time: bool = True,
    rebinding: bool = False,
) -> list[Doc]:
    """Operations in the order of their times. Their keys are the arguments of the method of `Gate` that `op` names."""
    names = dict(zip(SAID, (atomic, approvals, strangers, malformed, children, time, rebinding), strict=True))
    return _history(lambda values: draw(st.sampled_from(values)), frozenset(name for name, on in names.items() if on), length)


def thrown(seed: int, *, without: frozenset[str] = frozenset(), length: int = LENGTH) -> tuple[Doc, list[Doc]]:
    """A policy and a history; `without` holds the flags that are False."""
    pick = Dice(seed).pick
    policy = _policy(pick, frozenset((*STAGES.values(), *OTHERS)) - without)
    return policy, _history(pick, frozenset(SAID) - {"rebinding"} - without, length)


def _policy(pick: Pick, flags: frozenset[str]) -> Doc:
    stages = tuple(stage for stage, flag in STAGES.items() if flag in flags)
    pools = _pools(stages, flags)
    policy: Doc = {"version": 1, "defaults": {"allowed_tools": ["*"], "checks": list(stages), "data_scope": "any"}}
    policy |= pick(pools["top"]) | {"tools": pick(pools["tools"])}
    policy["agents"] = {name: copy.deepcopy(pick(pools["agent"])) for name in AGENTS}
    if "machines" in flags:
        names = ("m0", "m1")[: pick([1, 1, 2])]
        policy["machines"] = [{**pick(pools["machine"]), "name": name} for name in names]
        policy["continuation"] = {"max_continuations": pick([1, 2, 0]), "message": "Finish: {summary}"}
        for agent in policy["agents"].values():
            if "machines" in agent:
                agent["machines"] = [name for name in agent["machines"] if name in names]
    if "contracts" in flags:
        policy["contracts"] = pick(pools["contracts"])
    if "semantic" in flags:
        policy["semantic"] = pick(pools["semantic"])
    if "approvals" in flags:
        policy |= {"approvals": pick(pools["approvals"]), "groups": GROUPS}
    return copy.deepcopy(policy)


@lru_cache
def _pools(stages: tuple[str, ...], flags: frozenset[str]) -> dict[str, list[Any]]:
    return {
        "top": pool(lambda dice: parts.top(dice, flags), 60),
        "tools": pool(lambda dice: parts.tools(dice, flags), 100),
        "agent": pool(lambda dice: parts.agent(dice, stages, flags), 600),
        "machine": pool(lambda dice: parts.machine(dice, flags), 500),
        "contracts": pool(lambda dice: parts.contracts(dice, flags), 80),
        "approvals": pool(parts.approvals, 80),
        "semantic": pool(parts.semantic, 60),
    }


def _history(pick: Pick, flags: frozenset[str], length: int) -> list[Doc]:
    owners = {place: pick(AGENTS[:1] * 2 + AGENTS[1:2]) for place in sayings.PLACES}
    kinds = [pick(["intents", "intents", "start"])]
    kinds += [pick(sayings.kinds(flags)) for _ in range(pick(range(length)))]
    kinds += pick([[], ["finish"]])
    return operations([pick(_sayings(kind, flags)) for kind in kinds], owners)


@lru_cache
def _sayings(kind: str, flags: frozenset[str]) -> list[Said]:
    return pool(lambda dice: sayings.saying(dice, kind, flags), 1500 if kind == "intents" else 200)


def operations(said: list[Said], owners: dict[tuple[str, str], str]) -> list[Doc]:
    """Fills in what depends on what was said before: ids, owners, the time."""
    asked: dict[tuple[str, str], list[Doc]] = {place: [] for place in sayings.PLACES}
    at, place, found = 0, sayings.PLACES[0], []
    for one in said:
        at += one["pause"]
        if one["op"] == "advance":
            found.append({"op": "advance", "to": at})
            continue
        last, named = place, sayings.PLACES[one["place"]] if one["place"] is not None else place
        if one["op"] == "start":  # mostly of a run that is new
            place = next((new for new in sayings.PLACES if not asked[new]), named)
        elif asked[named] or one["op"] == "intents":
            place = named
        found.append(_filled(one, place, owners[place], asked[place], at))
        if found[-1].get("parent") == sayings.LAST:
            found[-1]["parent"] = last[1]
    return found


def _filled(one: Said, place: tuple[str, str], owner: str, asked: list[Doc], at: int) -> Doc:
    agent = one.get("agent") or owner
    filled: Doc = {"op": one["op"], "thread": place[0], "run": place[1], "at": at, **copy.deepcopy(one["body"])}
    if one["op"] == "intents":
        filled["calls"] = [_call(call, asked) for call in filled["calls"]]
    elif one["op"] in ("outcome", "resolve"):
        key = "call" if one["op"] == "outcome" else "ticket"
        filled[key] = _back(asked, one["back"])["id"] if asked else "c0"
    if one["op"] not in ("outcome", "resolve", "bind"):
        filled["agent"] = agent
    elif one["op"] == "outcome" and filled["by"] == "agent":
        filled["by"] = f"agent:{agent}"
    return filled


def _call(drawn: Doc, asked: list[Doc]) -> Doc:
    """A new id, or one that was asked for before, half the time for the same; the parent is one that was."""
    call = {key: value for key, value in drawn.items() if key not in ("back", "parent_back", "same")}
    if drawn["parent_back"] is not None and asked:
        call["parent"] = _back(asked, drawn["parent_back"])["id"]
    if drawn["back"] is not None and asked:
        before = _back(asked, drawn["back"])
        return {**call, **before} if drawn["same"] else {"id": before["id"], **call}
    call = {"id": f"c{len(asked)}", **call}
    if call["id"] != sayings.MALFORMED_ID:
        asked.append(call)
    return call


def _back(asked: list[Doc], back: int) -> Doc:
    return asked[-1 - back % len(asked)]


def rebinding(seed: int, *, without: frozenset[str] = frozenset(), length: int = LENGTH) -> tuple[Doc, list[Doc]]:
    """A policy, and a history in which another is loaded, and loaded back, and runs are bound to what holds then."""
    pick = Dice(seed).pick
    flags = frozenset((*STAGES.values(), *OTHERS)) - without
    pair = [_policy(pick, flags), _policy(pick, flags)]
    return pair[0], with_policies(_history(pick, (frozenset(SAID) - without), length), pair)


def asking(seed: int, *, length: int = LENGTH) -> tuple[Doc, list[Doc]]:
    """A policy that asks about most calls, with few other reasons to deny, and a history that is mostly people's answers."""
    pick = Dice(seed).pick
    policy = _policy(pick, frozenset(("privilege", "machines", "contracts", "dcbf", "approvals", "schemas", "expressions")))
    for agent in policy["agents"].values():
        agent |= {"checks": ["privilege", "order", "contracts", "dcbf"], "approval_required": pick(WAITING)}
    default = policy["approvals"].setdefault("default", {"approvers": ["group:leads", "group:finance"]})
    default["may_answer"] = pick([True, True, False])
    return policy, _history(pick, frozenset(("approvals", "time", "atomic", "asking")), length)


def beside(seed: int, *, length: int = 2 * LENGTH) -> tuple[Doc, list[Doc]]:
    """Agents that share their threads, with limits that the runs of a thread have together, and answers that hold for others."""
    pick = Dice(seed).pick
    policy = _policy(pick, frozenset(("privilege", "machines", "dcbf", "approvals", "children", "threads")))
    policy |= {
        "threads": {"shared_by": [["a", "b"], ["b", "c"]]},
        "approvals": {"default": {"approvers": ["group:leads", "group:finance"]}},
    }
    for agent in policy["agents"].values():
        agent |= {"approval_required": pick(WAITING), "resource_budget": pick(TOGETHER), "allowed_tools": ["*"]}
        if "dcbf" in agent:
            agent["dcbf"] = {name: {**rule, "scope": "thread"} for name, rule in agent["dcbf"].items() if name in SCOPED}
    return policy, _history(pick, frozenset(("approvals", "time", "atomic", "children", "strangers", "beside")), length)


def with_policies(operations: list[Doc], pair: list[Doc]) -> list[Doc]:
    """The operations that bind have the number of a policy in its place."""
    return [{**one, "policy": pair[one["policy"]]} if one["op"] == "bind" else one for one in operations]


def apply(gate: Any, operation: Doc) -> Any:
    """Does one operation to anything that has the methods of `oracle.Gate`."""
    return getattr(gate, operation["op"])(**{key: value for key, value in operation.items() if key != "op"})
