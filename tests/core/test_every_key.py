"""Every key of the policy file has a game in which it changes what the gate decides: a key that does nothing is a fault.

A row plays one game under two policies that differ in the key alone. `SAYS` are keys that change words and not verdicts:
there, what was decided is compared whole. `ELSEWHERE` names the tests of keys that no game in the core can show.
"""

from __future__ import annotations

from typing import Final

import pytest

from core.keys import Game, policy
from gated.core.policy import load_text
from gated.core.schema import policy_schema
from gated.documents import DocumentError

Key = tuple[str, str]
Row = tuple[str, str, list[str]]

RBW = "machines: [{name: m, key: '{f}', initial: n, transitions: [{on: R, from: '*', to: r}, {on: W, from: r, to: r%s}]%s}]"


def machine(more: str = "", last: str = "") -> str:
    return RBW % (last, f", {more}" if more else "")


def contract(rule: str) -> str:
    return f"contracts: [{{name: c, on: T, {rule}}}]"


def approvals(default: str = "", rules: str = "", groups: str = "") -> str:
    """`T` waits for a person."""
    named = f", rules: [{rules}]" if rules else ""
    return f"approvals: {{default: {{{default}}}{named}}}\n" + (f"groups: {{{groups}}}" if groups else "")


ASKS = "approval_required: [T]"
SEMANTIC = "semantic: {secrets: {}%s}"
TWO_RUNS = ["T", ":ok", ':run {"run": "r2", "thread": "t"}', "T"]
CHILD = ':run {"run": "r2", "thread": "t", "parent": "r1"}'
DRIFT = "dcbf: {remove: [privacy, safety, resource, stability, scope], barriers: {b: %s}}"

VERDICTS: Final[dict[Key, Row]] = {
    # --- the policy
    ("PolicyEntry", "mode"): (policy("forbidden_tools: [T]", "mode: observe"), policy("forbidden_tools: [T]"), ["T"]),
    ("PolicyEntry", "defaults"): (policy(top="defaults: {forbidden_tools: [T]}"), policy(), ["T"]),
    ("PolicyEntry", "unknown_tools"): (policy(top="unknown_tools: deny"), policy(), ["T"]),
    ("PolicyEntry", "threads"): (
        policy(top="threads: {shared_by: [[a, b]]}", others="  b: {allowed_tools: [T], data_scope: any}"),
        policy(others="  b: {allowed_tools: [T], data_scope: any}"),
        ["T", ':run {"run": "r2", "thread": "t", "agent": "b"}', "T"],
    ),
    ("PolicyEntry", "limits"): (policy(top="limits: {max_in_flight: 1}"), policy(), ["T", "T"]),
    ("PolicyEntry", "agents"): (policy(), "version: 1\n", ["T"]),
    ("PolicyEntry", "tools"): (policy(top="tools: {T: {schema: {required: [x]}}}"), policy(), ["T"]),
    ("PolicyEntry", "machines"): (policy(top=machine()), policy(), ['W {"f": 1}']),
    ("PolicyEntry", "continuation"): (
        policy(
            top=machine("terminal: [r]", "").replace("to: r}]", "to: r}, {on: N, from: '*', to: open}]")
            + "\ncontinuation: {max_continuations: 0}"
        ),
        policy(top=machine("terminal: [r]", "").replace("to: r}]", "to: r}, {on: N, from: '*', to: open}]")),
        ['N {"f": 1}', ":ok", ":finish"],
    ),
    ("PolicyEntry", "contracts"): (policy(top=contract("require: 'false'")), policy(), ["T"]),
    ("PolicyEntry", "approvals"): (policy(ASKS, approvals("timeout: 1m")), policy(ASKS), ["T", ":wait 2m"]),
    ("PolicyEntry", "groups"): (
        policy(ASKS, approvals("approvers: [group:g]", groups="g: [bob]")),
        policy(ASKS, approvals("approvers: [group:g]", groups="g: [cy]")),
        ["T", ":yes bob c1"],
    ),
    ("PolicyEntry", "breaker"): (policy(top="breaker: {failures: 1}"), policy(), ["T", ":err", "T"]),
    ("PolicyEntry", "semantic"): (policy(top=SEMANTIC % ""), policy(), ["T"]),
    # --- an agent
    ("AgentEntry", "owner"): (policy(f"{ASKS}, owner: bob"), policy(ASKS), ["T", ":yes bob c1"]),
    ("AgentEntry", "mode"): (policy("forbidden_tools: [T], mode: observe"), policy("forbidden_tools: [T]"), ["T"]),
    ("AgentEntry", "modes"): (policy("forbidden_tools: [T], modes: {privilege: observe}"), policy("forbidden_tools: [T]"), ["T"]),
    ("AgentEntry", "checks"): (policy("forbidden_tools: [T], checks: [dfa]"), policy("forbidden_tools: [T]"), ["T"]),
    ("AgentEntry", "runs"): (policy("runs: {opened_by: operator}"), policy(), ["T"]),
    ("AgentEntry", "outcomes_from"): (policy("outcomes_from: 'runner:x'"), policy(), ["T", ":ok"]),
    ("AgentEntry", "allowed_tools"): (policy(allowed="[U]"), policy(), ["T"]),
    ("AgentEntry", "forbidden_tools"): (policy("forbidden_tools: [T]"), policy(), ["T"]),
    ("AgentEntry", "approval_required"): (policy(ASKS), policy(), ["T"]),
    ("AgentEntry", "data_scope"): (policy(scope="{}"), policy(), ['T {"p": "/etc/x"}']),
    ("AgentEntry", "resource_budget"): (policy("resource_budget: {max_calls: 1}"), policy(), ["T", ":ok", "T"]),
    ("AgentEntry", "dfa"): (policy("dfa: {remove: [[IDLE, PLANNING]]}"), policy(), ["T"]),
    ("AgentEntry", "ceilings"): (policy("ceilings: {max_hops: 1}"), policy(), ["T", "T"]),
    ("AgentEntry", "breaker"): (policy("breaker: {failures: 1}"), policy(), ["T", ":err", "T"]),
    ("AgentEntry", "dcbf"): (policy("dcbf: {privacy: {budget: 0}}"), policy(), ["send_email"]),
    ("AgentEntry", "machines"): (policy("machines: []", machine()), policy(top=machine()), ['W {"f": 1}']),
    ("AgentEntry", "call_timeout"): (
        policy("ceilings: {max_retries: 1}, call_timeout: 1m"),
        policy("ceilings: {max_retries: 1}"),
        ["T", ":wait 2m", "T"],
    ),
    ("AgentEntry", "on_ungated"): (policy("on_ungated: fail"), policy(), ["T", ":ok ghost", "T"]),
    ("AgentEntry", "children"): (
        policy("resource_budget: {max_calls: 1}, children: own"),
        policy("resource_budget: {max_calls: 1}"),
        ["T", ":ok", CHILD, "T"],
    ),
    ("RunsEntry", "opened_by"): (policy("runs: {opened_by: operator}"), policy("runs: {opened_by: agent}"), ["T"]),
    ("RunsEntry", "max_open"): (policy("runs: {max_open: 1}"), policy(), ["T", ':run {"run": "r2", "thread": "t"}', "T"]),
    # --- scope
    ("DataScope", "allowed_databases"): (policy(scope="{allowed_databases: [db]}"), policy(scope="{}"), ['T {"t": "db.t"}']),
    ("DataScope", "allowed_tables"): (
        policy(scope="{allowed_databases: [db], allowed_tables: {db: [u]}}"),
        policy(scope="{allowed_databases: [db]}"),
        ['T {"t": "db.t"}'],
    ),
    ("DataScope", "allowed_api_endpoints"): (
        policy(scope="{allowed_api_endpoints: [x.test]}"),
        policy(scope="{}"),
        ['T {"u": "https://x.test/"}'],
    ),
    ("DataScope", "allowed_paths"): (policy(scope="{allowed_paths: [/w]}"), policy(scope="{}"), ['T {"p": "/w/x"}']),
    ("DataScope", "base_path"): (
        policy(scope="{allowed_paths: [/w], base_path: /w}"),
        policy(scope="{allowed_paths: [/w]}"),
        ['T {"p": "./x"}'],
    ),
    ("DataScope", "forbidden_patterns"): (
        policy(scope="{allowed_paths: [/w], forbidden_patterns: [secret]}"),
        policy(scope="{allowed_paths: [/w]}"),
        ['T {"p": "/w/secret"}'],
    ),
    ("DataScope", "resolve"): (
        policy(scope="{allowed_paths: [/w], resolve: true}"),
        policy(scope="{allowed_paths: [/w]}"),
        [":link /w/x /etc/x", 'T {"p": "/w/x"}'],
    ),
    # --- budgets
    ("BudgetEntry", "max_cost_usd"): (policy("resource_budget: {max_cost_usd: 1}"), policy(), ['T {"$cost": 2}']),
    ("BudgetEntry", "max_total_cost_usd"): (
        policy("resource_budget: {max_total_cost_usd: 1}"),
        policy(),
        ['T {"$cost": 0.6}', ":ok", 'T {"$cost": 0.6}'],
    ),
    ("BudgetEntry", "max_steps"): (policy("resource_budget: {max_steps: 1}"), policy(), ["T", ":ok", "T"]),
    ("BudgetEntry", "max_loops_per_phase"): (
        policy("resource_budget: {max_loops_per_phase: 0}"),
        policy(),
        ["T", 'T {"$parent": "c1"}'],
    ),
    ("BudgetEntry", "max_calls"): (policy("resource_budget: {max_calls: 1}"), policy(), ["T", ":err", "T"]),
    ("BudgetEntry", "max_tokens"): (
        policy("resource_budget: {max_tokens: 5}"),
        policy(),
        ["T", ':report {"call": "c1", "status": "success", "tokens": 9}', "T"],
    ),
    ("BudgetEntry", "max_execution_time_seconds"): (
        policy("resource_budget: {max_execution_time_seconds: 1}"),
        policy(),
        ["T", ":ok", ":wait 2s", "T"],
    ),
    ("BudgetEntry", "over"): (
        policy("resource_budget: {max_calls: 0, over: ask}"),
        policy("resource_budget: {max_calls: 0}"),
        ["T"],
    ),
    ("BudgetEntry", "scope"): (
        policy("resource_budget: {max_calls: 1, scope: thread}"),
        policy("resource_budget: {max_calls: 1}"),
        TWO_RUNS,
    ),
    ("BudgetEntry", "trust_costs"): (
        policy("resource_budget: {max_total_cost_usd: 1, trust_costs: true}", "tools: {T: {cost_usd: 2}}"),
        policy("resource_budget: {max_total_cost_usd: 1}", "tools: {T: {cost_usd: 2}}"),
        ['T {"$cost": 0.1}'],
    ),
    # --- phases, ceilings, breaker
    ("DfaEntry", "add"): (
        policy("dfa: {remove: [[IDLE, PLANNING]], add: [[IDLE, ACTING]]}"),
        policy("dfa: {remove: [[IDLE, PLANNING]]}"),
        ["T"],
    ),
    ("DfaEntry", "remove"): (policy("dfa: {remove: [[IDLE, PLANNING]]}"), policy(), ["T"]),
    ("DfaEntry", "on_budget"): (
        policy("resource_budget: {max_steps: 1}, dfa: {on_budget: exhaust}"),
        policy("resource_budget: {max_steps: 1}"),
        ["T", "T", ":err c1", "T"],
    ),
    ("DfaEntry", "nesting"): (
        policy("resource_budget: {max_loops_per_phase: 0}, dfa: {nesting: inferred}"),
        policy("resource_budget: {max_loops_per_phase: 0}"),
        ["T", "T"],
    ),
    ("CeilingsEntry", "max_hops"): (policy("ceilings: {max_hops: 1}"), policy(), ["T", "T"]),
    ("CeilingsEntry", "max_retries"): (policy("ceilings: {max_retries: 1}"), policy(), ["T", ":err", "T"]),
    ("BreakerEntry", "failures"): (
        policy(top="breaker: {failures: 1}"),
        policy(top="breaker: {failures: 2}"),
        ["T", ":err", "T"],
    ),
    ("BreakerEntry", "window"): (
        policy(top="breaker: {failures: 2, window: 1s}"),
        policy(top="breaker: {failures: 2}"),
        ["T", ":err", ":wait 5s", "T", ":err", "T"],
    ),
    ("BreakerEntry", "cooldown"): (
        policy(top="breaker: {failures: 1, cooldown: 1s}"),
        policy(top="breaker: {failures: 1}"),
        ["T", ":err", ":wait 5s", "T"],
    ),
    # --- barriers
    ("DcbfEntry", "verification"): (
        policy("dcbf: {privacy: {budget: 0}, verification: false}"),
        policy("dcbf: {privacy: {budget: 0}}"),
        ["send_email"],
    ),
    ("DcbfEntry", "kappa"): (policy("dcbf: {kappa: 0.1}"), policy(), ["send_email"]),
    ("DcbfEntry", "power"): (policy("dcbf: {power: 2}"), policy(), ["send_email", "send_email"]),
    ("DcbfEntry", "safety"): (policy("dcbf: {safety: {pairs: [[T, U]]}}"), policy(), ["T", "U"]),
    ("DcbfEntry", "privacy"): (policy("dcbf: {privacy: {budget: 0}}"), policy(), ["send_email"]),
    ("DcbfEntry", "resource"): (policy("dcbf: {resource: {limit_usd: 0}}"), policy(), ["T"]),
    ("DcbfEntry", "stability"): (policy("dcbf: {stability: {step_budget: 0}}"), policy(), ["T"]),
    ("DcbfEntry", "remove"): (
        policy("dcbf: {privacy: {budget: 0}, remove: [privacy]}"),
        policy("dcbf: {privacy: {budget: 0}}"),
        ["send_email"],
    ),
    ("DcbfEntry", "barriers"): (policy("dcbf: {barriers: {b: {expr: '-1.0'}}}"), policy(), ["T"]),
    ("SafetyEntry", "margin"): (policy("dcbf: {safety: {margin: 2}}"), policy(), ["T"]),
    ("SafetyEntry", "window"): (
        policy("dcbf: {safety: {pairs: [[T, U]], window: 2}}"),
        policy("dcbf: {safety: {pairs: [[T, U]]}}"),
        ["T", "V", "U"],
    ),
    ("SafetyEntry", "pairs"): (policy("dcbf: {safety: {pairs: []}}"), policy(), ["sql_query", "http_request"]),
    ("SafetyEntry", "scope"): (
        policy("dcbf: {safety: {pairs: [[T, U]], scope: thread}}"),
        policy("dcbf: {safety: {pairs: [[T, U]]}}"),
        [*TWO_RUNS[:3], "U"],
    ),
    ("PrivacyEntry", "budget"): (policy("dcbf: {privacy: {budget: 0.1}}"), policy(), ["send_email"]),
    ("PrivacyEntry", "per_call"): (policy("dcbf: {privacy: {per_call: 0.6}}"), policy(), ["send_email"]),
    ("PrivacyEntry", "tools"): (
        policy("dcbf: {privacy: {budget: 0, tools: [T]}}"),
        policy("dcbf: {privacy: {budget: 0}}"),
        ["send_email"],
    ),
    ("PrivacyEntry", "scope"): (
        policy("dcbf: {privacy: {budget: 0.2, scope: thread}}"),
        policy("dcbf: {privacy: {budget: 0.2}}"),
        ["send_email", TWO_RUNS[2], "send_email"],
    ),
    ("ResourceEntry", "limit_usd"): (policy("dcbf: {resource: {limit_usd: 1}}"), policy(), ['T {"$cost": 2}']),
    ("ResourceEntry", "per_call_cost_usd"): (policy("dcbf: {resource: {per_call_cost_usd: 20}}"), policy(), ["T"]),
    ("ResourceEntry", "scope"): (
        policy("dcbf: {resource: {limit_usd: 0.01, scope: thread}}"),
        policy("dcbf: {resource: {limit_usd: 0.01}}"),
        TWO_RUNS,
    ),
    ("StabilityEntry", "step_budget"): (policy("dcbf: {stability: {step_budget: 1}}"), policy(), ["T", "T"]),
    ("StabilityEntry", "scope"): (
        policy("dcbf: {stability: {step_budget: 1, scope: thread}}"),
        policy("dcbf: {stability: {step_budget: 1}}"),
        TWO_RUNS,
    ),
    ("DcbfEntry", "scope"): (policy("dcbf: {scope: {max_drift: -1}}"), policy(), ["T"]),
    ("DriftEntry", "max_drift"): (policy("dcbf: {scope: {max_drift: -1}}"), policy(), ["T"]),
    ("BarrierEntry", "counter"): (
        policy(f"{DRIFT % '{counter: {tools: [T], per_call: 1, budget: 0}}'}"),
        policy(f"{DRIFT % '{counter: {tools: [U], per_call: 1, budget: 0}}'}"),
        ["T"],
    ),
    ("BarrierEntry", "expr"): (policy(f"{DRIFT % '''{expr: '-1.0'}'''}"), policy(f"{DRIFT % '''{expr: '1.0'}'''}"), ["T"]),
    ("BarrierEntry", "margin"): (
        policy(f"{DRIFT % '''{expr: '1.0', margin: 2}'''}"),
        policy(f"{DRIFT % '''{expr: '1.0'}'''}"),
        ["T"],
    ),
    ("BarrierEntry", "scope"): (
        policy(f"{DRIFT % '{counter: {tools: [T], per_call: 1, budget: 1}, scope: thread}'}"),
        policy(f"{DRIFT % '{counter: {tools: [T], per_call: 1, budget: 1}}'}"),
        TWO_RUNS,
    ),
    ("CounterEntry", "tools"): (
        policy(f"{DRIFT % '{counter: {tools: [T], per_call: 1, budget: 0}}'}"),
        policy(f"{DRIFT % '{counter: {tools: [U], per_call: 1, budget: 0}}'}"),
        ["T"],
    ),
    ("CounterEntry", "per_call"): (
        policy(f"{DRIFT % '{counter: {tools: [T], per_call: 2, budget: 1}}'}"),
        policy(f"{DRIFT % '{counter: {tools: [T], per_call: 1, budget: 1}}'}"),
        ["T"],
    ),
    ("CounterEntry", "budget"): (
        policy(f"{DRIFT % '{counter: {tools: [T], per_call: 1, budget: 0}}'}"),
        policy(f"{DRIFT % '{counter: {tools: [T], per_call: 1, budget: 1}}'}"),
        ["T"],
    ),
    # --- machines
    ("MachineEntry", "initial"): (
        policy(top=machine().replace("initial: n", "initial: r")),
        policy(top=machine()),
        ['W {"f": 1}'],
    ),
    ("MachineEntry", "transitions"): (policy(top=machine()), policy(top=machine().replace("on: W", "on: X")), ['W {"f": 1}']),
    ("MachineEntry", "scope"): (
        policy(top=machine("scope: run")),
        policy(top=machine()),
        ['R {"f": 1}', ":ok", TWO_RUNS[2], 'W {"f": 1}'],
    ),
    ("MachineEntry", "key"): (
        policy(top=machine().replace("'{f}'", "''")),
        policy(top=machine()),
        ['R {"f": 1}', ":ok", 'W {"f": 2}'],
    ),
    ("MachineEntry", "key_normalizer"): (
        policy(top=machine("key_normalizer: path")),
        policy(top=machine()),
        ['R {"f": "a"}', ":ok", 'W {"f": "./a"}'],
    ),
    ("MachineEntry", "on_missing_key"): (policy(top=machine("on_missing_key: deny")), policy(top=machine()), ["W"]),
    ("MachineEntry", "strict"): (policy(top=machine("strict: true")), policy(top=machine()), ['X {"f": 1}']),
    ("MachineEntry", "on_unmatched"): (
        policy(top=machine("on_unmatched: r")),
        policy(top=machine()),
        ['R {"f": 1}', ":err", 'W {"f": 1}'],
    ),
    ("MachineEntry", "terminal"): (policy(top=machine("terminal: [n]")), policy(top=machine()), ['R {"f": 1}', ":ok", ":finish"]),
    ("MachineEntry", "mode"): (policy(top=machine("mode: observe")), policy(top=machine()), ['W {"f": 1}']),
    ("TransitionEntry", "on"): (
        policy(top=machine()),
        policy(top=machine().replace("on: W", "on: 'W(g = \"x\")'")),
        ['W {"f": 1}'],
    ),
    ("TransitionEntry", "from"): (
        policy(top=machine().replace("from: r", "from: [r, n]")),
        policy(top=machine()),
        ['W {"f": 1}'],
    ),
    ("TransitionEntry", "to"): (
        policy(top=machine().replace("from: '*', to: r", "from: '*', to: n")),
        policy(top=machine()),
        ['R {"f": 1}', ":ok", 'W {"f": 1}'],
    ),
    ("TransitionEntry", "when"): (
        policy(top=machine().replace("from: '*', to: r", "from: '*', to: r, when: error")),
        policy(top=machine()),
        ['R {"f": 1}', ":ok", 'W {"f": 1}'],
    ),
    ("TransitionEntry", "on_violation"): (
        policy(top=machine(last=", on_violation: warn")),
        policy(top=machine()),
        ['W {"f": 1}'],
    ),
    ("WhenEntry", "status"): (
        policy(top=machine().replace("from: '*', to: r", "from: '*', to: r, when: {status: any}")),
        policy(top=machine()),
        ['R {"f": 1}', ":err", 'W {"f": 1}'],
    ),
    ("WhenEntry", "content"): (
        policy(top=machine().replace("from: '*', to: r", "from: '*', to: r, when: {content: whole}")),
        policy(top=machine()),
        ['R {"f": 1}', ":ok", 'W {"f": 1}'],
    ),
    ("WhenEntry", "facts"): (
        policy(top=machine().replace("from: '*', to: r", "from: '*', to: r, when: {facts: 'complete = \"true\"'}")),
        policy(top=machine()),
        ['R {"f": 1}', ":ok", 'W {"f": 1}'],
    ),
    ("ViolationEntry", "action"): (
        policy(top=machine(last=", on_violation: {action: ask}")),
        policy(top=machine()),
        ['W {"f": 1}'],
    ),
    ("Continuation", "max_continuations"): (
        policy(top=machine("terminal: [n]") + "\ncontinuation: {max_continuations: 0}"),
        policy(top=machine("terminal: [n]")),
        ['R {"f": 1}', ":ok", ":finish"],
    ),
    # --- threads, limits, tools
    ("ThreadsEntry", "shared_by"): (
        policy(top="threads: {shared_by: [[a, b]]}", others="  b: {allowed_tools: [T], data_scope: any}"),
        policy(top="threads: {shared_by: [[a]]}", others="  b: {allowed_tools: [T], data_scope: any}"),
        ["T", ':run {"run": "r2", "thread": "t", "agent": "b"}', "T"],
    ),
    ("LimitsEntry", "max_instances"): (
        policy(top=machine() + "\nlimits: {max_instances: 1}"),
        policy(top=machine()),
        ['R {"f": 1}', ":ok", 'R {"f": 2}'],
    ),
    ("LimitsEntry", "max_in_flight"): (policy(top="limits: {max_in_flight: 1}"), policy(), ["T", "T"]),
    ("LimitsEntry", "max_calls"): (policy(top="limits: {max_calls: 1}"), policy(), ["T", ":ok", "T"]),
    ("ToolEntry", "resources"): (
        policy(scope="{}", top="tools: {T: {resources: {args: {p: none}}}}"),
        policy(scope="{}"),
        ['T {"p": "/etc/x"}'],
    ),
    ("ToolEntry", "schema"): (policy(top="tools: {T: {schema: {required: [x]}}}"), policy(), ["T"]),
    ("ToolEntry", "cost_usd"): (
        policy("resource_budget: {max_cost_usd: 1}", "tools: {T: {cost_usd: 2}}"),
        policy("resource_budget: {max_cost_usd: 1}"),
        ["T"],
    ),
    ("ToolEntry", "outbound"): (
        policy("dcbf: {privacy: {budget: 0}}", "tools: {T: {outbound: true}}"),
        policy("dcbf: {privacy: {budget: 0}}"),
        ["T"],
    ),
    ("ToolEntry", "call_timeout"): (
        policy("ceilings: {max_retries: 1}", "tools: {T: {call_timeout: 1m}}"),
        policy("ceilings: {max_retries: 1}"),
        ["T", ":wait 2m", "T"],
    ),
    ("ToolEntry", "breaker"): (policy(top="tools: {T: {breaker: {failures: 1}}}"), policy(), ["T", ":err", "T"]),
    ("Resources", "args"): (
        policy(scope="{allowed_paths: [/w]}", top="tools: {T: {resources: {args: {p: path}}}}"),
        policy(scope="{allowed_paths: [/w]}"),
        ['T {"p": "etc"}'],
    ),
    # --- contracts
    ("ContractEntry", "on"): (
        policy(top=contract("require: 'false'")),
        policy(top=contract("require: 'false'").replace("on: T", "on: U")),
        ["T"],
    ),
    ("ContractEntry", "require"): (policy(top=contract("require: 'false'")), policy(top=contract("require: 'true'")), ["T"]),
    ("ContractEntry", "otherwise"): (
        policy(top=contract("require: 'false', otherwise: ask")),
        policy(top=contract("require: 'false'")),
        ["T"],
    ),
    ("ContractEntry", "ensure"): (
        policy(top=contract("ensure: 'false', on_breach: fail")),
        policy(top=contract("ensure: 'true', on_breach: fail")),
        ["T", ":ok", "T"],
    ),
    ("ContractEntry", "on_breach"): (
        policy(top=contract("ensure: 'false', on_breach: fail")),
        policy(top=contract("ensure: 'false'")),
        ["T", ":ok", "T"],
    ),
    ("ContractEntry", "mode"): (
        policy(top=contract("require: 'false', mode: observe")),
        policy(top=contract("require: 'false'")),
        ["T"],
    ),
    # --- approvals
    ("ApprovalsEntry", "default"): (
        policy(ASKS, approvals("approvers: [user:cy]")),
        policy(ASKS),
        ["T", ":yes bob c1"],
    ),
    ("ApprovalsEntry", "rules"): (
        policy(ASKS, approvals(rules="{on: T, approvers: [user:cy]}")),
        policy(ASKS),
        ["T", ":yes bob c1"],
    ),
    ("SemanticEntry", "thresholds"): (
        policy(top=SEMANTIC % ", thresholds: {ask: 0.1}"),
        policy(top=SEMANTIC % ""),
        ['T {} scores={"secrets": 0.5}'],
    ),
    ("SemanticEntry", "unavailable"): (policy(top=SEMANTIC % ", unavailable: deny"), policy(top=SEMANTIC % ""), ["T"]),
    ("SemanticEntry", "secrets"): (
        policy(top=SEMANTIC % ", drift: {}"),
        policy(top="semantic: {drift: {}}"),
        ['T {} scores={"drift": 0}'],
    ),
    ("SemanticEntry", "drift"): (
        policy(top=SEMANTIC % ", drift: {}"),
        policy(top=SEMANTIC % ""),
        ['T {} scores={"secrets": 0, "drift": 1}'],
    ),
    ("SemanticEntry", "judge"): (
        policy(top=SEMANTIC % ", judge: {nats: j}"),
        policy(top=SEMANTIC % ""),
        ['T {} scores={"secrets": 0, "judge": 1}'],
    ),
    ("ThresholdsEntry", "ask"): (
        policy(top="semantic: {secrets: {thresholds: {ask: 0.1}}}"),
        policy(top=SEMANTIC % ""),
        ['T {} scores={"secrets": 0.5}'],
    ),
    ("ThresholdsEntry", "deny"): (
        policy(top="semantic: {secrets: {thresholds: {deny: 0.7}}}"),
        policy(top=SEMANTIC % ""),
        ['T {} scores={"secrets": 0.8}'],
    ),
    ("DetectorEntry", "thresholds"): (
        policy(top="semantic: {secrets: {thresholds: {ask: 0.1}}}"),
        policy(top=SEMANTIC % ""),
        ['T {} scores={"secrets": 0.5}'],
    ),
    ("DetectorEntry", "tools"): (policy(top="semantic: {secrets: {tools: [U]}}"), policy(top=SEMANTIC % ""), ["T"]),
    ("DetectorEntry", "unavailable"): (policy(top="semantic: {secrets: {unavailable: deny}}"), policy(top=SEMANTIC % ""), ["T"]),
    ("JudgeEntry", "thresholds"): (
        policy(top="semantic: {judge: {nats: j, thresholds: {ask: 0.1}}}"),
        policy(top="semantic: {judge: {nats: j}}"),
        ['T {} scores={"judge": 0.5}'],
    ),
    ("JudgeEntry", "tools"): (
        policy(top="semantic: {judge: {nats: j, tools: [U]}}"),
        policy(top="semantic: {judge: {nats: j}}"),
        ["T"],
    ),
    ("JudgeEntry", "unavailable"): (
        policy(top="semantic: {judge: {nats: j, unavailable: deny}}"),
        policy(top="semantic: {judge: {nats: j}}"),
        ["T"],
    ),
}

PEOPLE: Final[dict[str, tuple[str, str, list[str]]]] = {
    "approvers": ("approvers: [user:cy]", "", ["T", ":yes bob c1"]),
    "quorum": ("approvers: [user:bob, user:cy], quorum: 2", "approvers: [user:bob, user:cy]", ["T", ":yes bob c1", "T"]),
    "stages": ("stages: [[user:cy], [user:bob]]", "", ["T", ":yes bob c1"]),
    "timeout": ("timeout: 1m", "", ["T", ":wait 2m"]),
    "self_approval": ("self_approval: true", "", ["T", ":yes a c1"]),
    "may_answer": ("may_answer: true", "", ["T", ':yes bob c1 {"result": 1}']),
    "escalate": (
        "approvers: [user:cy], escalate: {after: 1m, to: [user:bob]}",
        "approvers: [user:cy]",
        ["T", ":wait 2m", ":yes bob c1"],
    ),
}
for _key, (_given, _not, _moves) in PEOPLE.items():
    VERDICTS["RuleDefaults", _key] = (policy(ASKS, approvals(_given)), policy(ASKS, approvals(_not)), _moves)
    _rule = "{on: T%s}"
    VERDICTS["RuleEntry", _key] = (
        policy(ASKS, approvals(rules=_rule % f", {_given}")),
        policy(ASKS, approvals(rules=_rule % (f", {_not}" if _not else ""))),
        _moves,
    )
VERDICTS["RuleEntry", "on"] = (
    policy(ASKS, approvals(rules="{on: T, approvers: [user:cy]}")),
    policy(ASKS, approvals(rules="{on: U, approvers: [user:cy]}")),
    ["T", ":yes bob c1"],
)
VERDICTS["RuleEntry", "when"] = (
    policy(ASKS, approvals(rules="{on: T, approvers: [user:cy], when: 'false'}")),
    policy(ASKS, approvals(rules="{on: T, approvers: [user:cy]}")),
    ["T", ":yes bob c1"],
)
VERDICTS["EscalateEntry", "after"] = (
    policy(ASKS, approvals("approvers: [user:cy], escalate: {after: 1m, to: [user:bob]}")),
    policy(ASKS, approvals("approvers: [user:cy], escalate: {after: 10m, to: [user:bob]}")),
    ["T", ":wait 2m", ":yes bob c1"],
)
VERDICTS["EscalateEntry", "to"] = (
    policy(ASKS, approvals("approvers: [user:cy], escalate: {after: 1m, to: [user:bob]}")),
    policy(ASKS, approvals("approvers: [user:cy], escalate: {after: 1m, to: [user:dee]}")),
    ["T", ":wait 2m", ":yes bob c1"],
)

EMITS = machine().replace("from: '*', to: r}", "from: '*', to: r, emit: {content: read%s}}")
READS = ['R {"f": 1}', ":ok", 'R {"f": 1}', ":ok"]
SAYS: Final[dict[Key, Row]] = {
    ("AgentEntry", "grounding"): (policy("grounding: [X]"), policy(), ["T", ":ok", ":finish"]),
    ("TransitionEntry", "emit"): (policy(top=EMITS % ""), policy(top=machine()), READS),
    ("EmitEntry", "content"): (policy(top=EMITS % ""), policy(top=(EMITS % "").replace("content: read", "content: seen")), READS),
    ("EmitEntry", "target"): (policy(top=EMITS % ", target: session"), policy(top=EMITS % ""), READS),
    ("EmitEntry", "role"): (policy(top=EMITS % ", role: assistant"), policy(top=EMITS % ""), READS),
    ("EmitEntry", "cooldown_turns"): (policy(top=EMITS % ", cooldown_turns: 5"), policy(top=EMITS % ""), READS),
    ("ViolationEntry", "reason"): (
        policy(top=machine(last=", on_violation: {reason: Read first}")),
        policy(top=machine()),
        ['W {"f": 1}'],
    ),
    ("MachineEntry", "name"): (policy(top=machine().replace("name: m", "name: n")), policy(top=machine()), ['W {"f": 1}']),
    ("ContractEntry", "name"): (
        policy(top=contract("require: 'false'").replace("name: c", "name: d")),
        policy(top=contract("require: 'false'")),
        ["T"],
    ),
    ("ContractEntry", "reason"): (
        policy(top=contract("require: 'false', reason: never")),
        policy(top=contract("require: 'false'")),
        ["T"],
    ),
    ("Continuation", "message"): (
        policy(top=machine("terminal: [n]") + "\ncontinuation: {message: 'Go on: {summary}'}"),
        policy(top=machine("terminal: [n]")),
        ['R {"f": 1}', ":ok", ":finish"],
    ),
}

ELSEWHERE: Final[dict[str, frozenset[Key]]] = {
    "it is for people who read the policy": frozenset({("AgentEntry", "role")}),
    "it has one value: the key is there to say so": frozenset(
        {("PolicyEntry", "version"), ("RuleDefaults", "on_timeout"), ("RuleEntry", "on_timeout")}
    ),
    "test_check.py: it makes a load error": frozenset({("PolicyEntry", "strict_resources")}),
    "redaction: it changes what is written, never a verdict": frozenset(
        {("PolicyEntry", "redact"), ("RedactEntry", "detectors"), ("RedactEntry", "fields")}
    ),
    "ingress: what is over it never comes to the core": frozenset(
        ("LimitsEntry", key) for key in ("max_payload_bytes", "max_depth", "max_values", "max_key_bytes")
    ),
    "ingress: refusals past it are answered and not recorded": frozenset({("LimitsEntry", "max_refusals")}),
    "barriers: embeddings, networks and Python functions come from outside": frozenset(
        {
            ("DriftEntry", "embeddings"),
            ("DriftEntry", "scope"),
            ("DcbfEntry", "neural"),
            *(("NeuralEntry", key) for key in ("model", "sha256", "features", "layers")),
            *(("LayerEntry", key) for key in ("weights", "bias", "activation", "slope")),
            *(("BarrierEntry", key) for key in ("python", "neural", "params", "provided_by", "weight")),
        }
    ),
    "semantic: detectors are asked by the shell": frozenset(
        {
            ("SemanticEntry", "timeout"),
            ("SemanticEntry", "exfiltration"),
            ("SemanticEntry", "injection"),
            ("DetectorEntry", "timeout"),
            ("ToolEntry", "sensitive"),
            *(("JudgeEntry", key) for key in ("timeout", "nats", "http", "token_from")),
        }
    ),
}


@pytest.mark.parametrize("key", VERDICTS, ids="-".join)
def test_a_key_flips_a_verdict(key: Key) -> None:
    given, without, moves = VERDICTS[key]
    assert Game(given).play(moves) != Game(without).play(moves)


@pytest.mark.parametrize("key", SAYS, ids="-".join)
def test_a_key_changes_what_is_said(key: Key) -> None:
    given, without, moves = SAYS[key]
    one, other = Game(given), Game(without)
    assert (one.play(moves), one.decisions()) != (other.play(moves), other.decisions())


def test_every_key_of_the_file_is_there() -> None:
    keys = {(name, key) for name, rule in policy_schema()["$defs"].items() for key in rule.get("properties", ())}
    known = {*VERDICTS, *SAYS, *(key for group in ELSEWHERE.values() for key in group)}
    assert keys - known == set(), "play a game in which the key does something"
    assert known - keys == set()


def test_the_version_has_one_value() -> None:
    for version in ("0", "2", "'1'"):
        with pytest.raises(DocumentError):
            load_text(f"version: {version}\n", "p.yaml")
