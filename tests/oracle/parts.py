"""The parts that random policies are made of: agents, machines, tools, contracts, approval rules."""

from __future__ import annotations

from oracle.dice import Dice, Doc

TOOLS = ("Read", "Write", "send_email", "file_read", "pay", "other")
ARGS: tuple[Doc, ...] = ({}, {"f": "x"}, {"f": "y"}, {"f": "X"}, {"f": "x", "g": 1}, {"f": ["x", "y"]}, {"g": None})
PATTERNS = (
    "Read",
    "Write",
    "pay",
    "other",
    "read",
    "*",
    "Re*",
    "/(Read|Write)/",
    'Write(f ~ "x*")',
    'Read(f = "x")',
    "pay(x*)",
    'pay(f !~ "x*")',
    'other(f =~ "[xX]")',
    "send_email(*)",
    'Write(f ~ "*", g = "1")',
    'Read(f[*] = "x")',
    'Write(f ~ "**/x")',
    "[RW]*",
)
STATES = ("s", "t", "u")
HEIGHTS = (
    "run.step_count > 3 ? -1.0 : 1.0",
    "3 - run.step_count",
    "0.3 - run.cost_usd * 10.0",
    "double(size(recent)) < 3.0 ? 0.3 : -0.1",
    "recent.exists(r, r.tool == 'pay' && r.status != 'error') ? -1 : 1",
    "run.phase == 'OBSERVING' ? 2.0 : 1.0",
    "run.failed ? -1.0 : 0.1",
    "1 / (2 - run.step_count)",
)
EDGES = (["OBSERVING", "PLANNING"], ["PLANNING", "ACTING"], ["OBSERVING", "ANSWERING"], ["ACTING", "OBSERVING"])
SHORT_CUTS = (["OBSERVING", "ACTING"], ["IDLE", "ACTING"], ["ACTING", "ACTING"], ["ACTING", "PLANNING"], ["ANSWERING", "ACTING"])


def agent(dice: Dice, stages: tuple[str, ...], flags: frozenset[str]) -> Doc:
    """A few features each, so that one limit is not hidden behind ten others."""
    features = ["tools", "budget", "budget", "lifecycle", "dfa", "dcbf", "steps"]
    features += [
        f
        for f in ("approvals", "approvals", "ceilings", "observe", "checks", "machines", "breaker")
        if f in flags or f == "checks"
    ]
    made: Doc = {"owner": "ana"} if "approvals" in flags else {}
    for feature in dice.some(features, 1, 4):
        FEATURES[feature](dice, made, stages, flags)
    if "children" in flags:
        dice.maybe(made, 6, children=["own"])
    return made


def _tools(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    if dice.one_in(2):
        made["forbidden_tools"] = dice.some(PATTERNS[2:], 1, 1)
    else:
        made["allowed_tools"] = dice.some(PATTERNS, 2, 6)


def _budget(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    budget = made.setdefault("resource_budget", {})
    limits: Doc = {
        "max_cost_usd": [0.01, 0.02],
        "max_total_cost_usd": [0.03, 0.05],
        "max_calls": [1, 2, 3, 4],
        "max_tokens": [0, 1, 3],
        "max_execution_time_seconds": [30, 60],
    }
    for name in dice.some(list(limits), 1, 3):
        budget[name] = dice.pick(limits[name])
    dice.maybe(budget, 3, scope=["thread"], trust_costs=[True])
    if "approvals" in flags:
        dice.maybe(budget, 3, over=["ask"])


def _steps(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    budget = made.setdefault("resource_budget", {})
    dice.maybe(budget, 2, max_steps=[1, 2, 3, 4], max_loops_per_phase=[0, 1, 2])
    dice.maybe(budget, 6, scope=["thread"])


def _lifecycle(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    dice.maybe(made, 6, runs=[{"opened_by": "operator"}, {"opened_by": "agent", "max_open": 1}])
    dice.maybe(made, 4, outcomes_from=["runner:box"], on_ungated=["fail"])
    dice.maybe(made, 2, call_timeout=["1m", "30s"])


def _dfa(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    rules: Doc = {}
    if dice.one_in(4):
        rules["remove"] = dice.some(EDGES, 1, 1)
    if dice.one_in(3):
        rules["add"] = dice.some(SHORT_CUTS, 1, 1)
    dice.maybe(rules, 2, on_budget=["exhaust"], nesting=["inferred", "explicit"])
    made["dfa"] = rules


def _dcbf(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    barriers: Doc = {
        "safety": {"pairs": dice.pick([[["Read", "Write"]], [["Read", "pay"], ["Write", "other"]]])},
        "privacy": {"budget": dice.pick([0.2, 0.6]), "per_call": dice.pick([0.2, 0.1])},
        "resource": {"limit_usd": dice.pick([0.02, 0.05]), "per_call_cost_usd": dice.pick([0.01, 0.02])},
        "stability": {"step_budget": dice.pick([1, 2, 3, 4])},
    }
    dice.maybe(barriers["safety"], 2, window=[2, 3], margin=[0.25])
    dice.maybe(barriers["privacy"], 2, tools=[["pay", "Write"]])
    rules: Doc = {name: barriers[name] for name in dice.some(list(barriers), 1, 2)}
    for rule in rules.values():
        dice.maybe(rule, 4, scope=["thread"])
    dice.maybe(
        rules,
        3,
        kappa=[0.5, 0.25],
        power=[2],
        barriers=[{"mine": own_barrier(dice, flags)}, {"privacy": own_barrier(dice, flags)}],
    )
    dice.maybe(rules, 5, verification=[False], remove=[["privacy"], ["scope", "safety"]])
    made["dcbf"] = rules


def own_barrier(dice: Dice, flags: frozenset[str]) -> Doc:
    if "expressions" in flags and dice.one_in(2):
        made: Doc = {"expr": dice.pick(HEIGHTS)}
        dice.maybe(made, 4, margin=[0.1], scope=["thread"])
        return made
    counter = {"tools": ["Write", "pay"], "per_call": dice.pick([0.1, 0.3]), "budget": dice.pick([0.3, 0.5])}
    return {"counter": counter, **({"margin": 0.1} if dice.one_in(3) else {})}


def _approvals(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    made["approval_required"] = dice.some(PATTERNS, 1, 2)


def _ceilings(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    rules: Doc = {}
    dice.maybe(rules, 2, max_hops=[1, 2, 4, 8], max_retries=[1, 2, 3])
    made["ceilings"] = rules
    dice.maybe(made, 3, grounding=[["Read"]])


def _observe(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    if dice.one_in(4):
        made["mode"] = "observe"
    else:
        optional = [stage for stage in ("breaker", "ceilings") if stage in flags]
        made["modes"] = dict.fromkeys(dice.some((*stages, *optional), 1, 2), "observe")


def _breaker(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    made["breaker"] = breaker(dice)


def breaker(dice: Dice) -> Doc | str:
    if dice.one_in(6):
        return "off"
    rule: Doc = {"failures": dice.pick([1, 1, 2, 3])}
    dice.maybe(rule, 2, window=["30s", "2m"], cooldown=["20s", "1m"])
    return rule


def _checks(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    made["checks"] = [stage for stage in stages if not dice.one_in(3)]


def _machines(dice: Dice, made: Doc, stages: tuple[str, ...], flags: frozenset[str]) -> None:
    made["machines"] = sorted(dice.some(("m0", "m1"), 0, 2))


FEATURES = {
    "tools": _tools,
    "budget": _budget,
    "steps": _steps,
    "lifecycle": _lifecycle,
    "dfa": _dfa,
    "dcbf": _dcbf,
    "approvals": _approvals,
    "ceilings": _ceilings,
    "breaker": _breaker,
    "observe": _observe,
    "checks": _checks,
    "machines": _machines,
}


def machine(dice: Dice, flags: frozenset[str]) -> Doc:
    ask = ["ask"] if "approvals" in flags else []
    made: Doc = {"name": "m", "initial": "s"}
    dice.maybe(made, 2, scope=["run"], key=["{f}", "k:{f}"])
    if "key" in made:
        dice.maybe(made, 2, key_normalizer=["trim", "lowercase", "path"], on_missing_key=["deny", "ignore", *ask])
    dice.maybe(made, 8, strict=[True])
    dice.maybe(made, 4, on_unmatched=STATES)
    targets = [dice.pick(STATES) for _ in range(dice.pick((1, 2, 3, 4)))]
    # only what something reaches may stand in `from` and `terminal`
    reached = sorted({"s", *targets, *([made["on_unmatched"]] if "on_unmatched" in made else [])})
    made["transitions"] = [transition(dice, to, reached, ask) for to in targets]
    if not dice.one_in(3):
        made["terminal"] = dice.some(reached, 1, 1)
    if "observe" in flags:
        dice.maybe(made, 8, mode=["observe"])
    return made


def transition(dice: Dice, to: str, reached: list[str], ask: list[str]) -> Doc:
    made: Doc = {"on": dice.pick(PATTERNS), "to": to}
    made["from"] = dice.pick(["*", dice.some(reached, 1, 2), dice.pick(reached), dice.pick(reached)])
    structured: Doc = {}
    dice.maybe(structured, 2, status=["any", "success", "error"], content=["ok*"], facts=['n = "1"'])
    dice.maybe(made, 3, when=["any", "success", "error", structured])
    said: Doc = {"action": dice.pick(["deny", "warn", *ask])}
    dice.maybe(said, 2, reason=["{f} first"])
    dice.maybe(made, 2, on_violation=["warn", *ask, said])
    emit: Doc = {"content": "did {f}"}
    dice.maybe(emit, 2, cooldown_turns=[0, 1, 2, 3], target=["system", "session"])
    dice.maybe(made, 3, emit=[emit])
    return made


def contracts(dice: Dice, flags: frozenset[str]) -> list[Doc]:
    requires = ("run.step_count < 2", "tool != 'pay'", "args.f != 'y'", "run.cost_usd < 0.03", "size(recent) < 3", "args.f")
    made = []
    for number in range(dice.pick((0, 0, 1, 2))):
        contract: Doc = {"name": f"k{number}", "on": dice.pick(PATTERNS), "require": dice.pick(requires)}
        dice.maybe(contract, 2, otherwise=["warn", "deny", *(["ask"] if "approvals" in flags else [])])
        if "observe" in flags:
            dice.maybe(contract, 6, mode=["observe"])
        made.append(contract)
    return made


def approvals(dice: Dice) -> Doc:
    made: Doc = {}
    if dice.one_in(2):
        made["default"] = _rule(dice)
    rules = [{"on": dice.pick(PATTERNS), **_rule(dice)} for _ in range(dice.pick((0, 0, 1, 2)))]
    return {**made, "rules": rules} if rules else made


def semantic(dice: Dice) -> Doc:
    """Detectors of a few calls each, so that they do not ask about everything."""
    made: Doc = {
        name: _detector(dice) for name in dice.some(("secrets", "exfiltration", "exfiltration", "injection", "drift"), 1, 2)
    }
    dice.maybe(made, 4, judge=[{"nats": "judge", "tools": ["pay"]}], unavailable=["deny"], thresholds=[{"ask": 0.3}])
    return made


def _detector(dice: Dice) -> Doc:
    made: Doc = {"tools": dice.some(PATTERNS, 1, 2)}
    if dice.one_in(2):
        del made["tools"]
    dice.maybe(made, 4, thresholds=[{"ask": 0.5, "deny": 0.7}, {"ask": "never"}, {"deny": "never"}], unavailable=["deny", "ask"])
    return made


def _rule(dice: Dice) -> Doc:
    made: Doc = {}
    if dice.one_in(4):
        made["stages"] = [["group:leads"], ["group:finance"]]
    else:
        made["approvers"] = dice.pick(
            [["group:leads"], ["group:finance"], ["user:bob", "user:cy"], ["group:leads", "group:finance"]]
        )
        dice.maybe(made, 3, quorum=[2])
    dice.maybe(made, 4, timeout=["1m", "40s"], escalate=[{"after": "20s", "to": ["user:eve"]}], self_approval=[True])
    dice.maybe(made, 3, may_answer=[True])
    return made


def tools(dice: Dice, flags: frozenset[str]) -> Doc:
    made: Doc = {}
    for tool in TOOLS:
        said: Doc = {}
        dice.maybe(said, 6, cost_usd=[0.01, 0.03], outbound=[True], call_timeout=["2m"])
        if "semantic" in flags:
            dice.maybe(said, 2, sensitive=[True])
        if "schemas" in flags:
            dice.maybe(said, 12, schema=[{"type": "object", "required": ["f"]}])
        if "breaker" in flags and dice.one_in(12):
            said["breaker"] = breaker(dice)
        if said:
            made[tool] = said
    return made


def top(dice: Dice, flags: frozenset[str]) -> Doc:
    """What stands at the top of a policy."""
    made: Doc = {}
    if "threads" in flags and not dice.one_in(4):
        made["threads"] = {"shared_by": dice.pick([[["a", "b"]], [["a", "b"], ["b", "c"]]])}
    if "breaker" in flags and dice.one_in(2):
        made["breaker"] = breaker(dice)
    dice.maybe(made, 4, limits=[{"max_in_flight": n} for n in (1, 2, 3, 4)])
    if "observe" in flags:
        dice.maybe(made, 25, mode=["observe"])
    if "schemas" in flags:
        dice.maybe(made, 20, unknown_tools=["deny"])
    return made
