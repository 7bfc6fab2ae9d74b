"""policy.md, "Unknown keys, duplicate keys, wrong types, names that do not exist and contradictory settings are load errors":
each with its line and the offending text; and what looks like a mistake and is none."""

from __future__ import annotations

import pytest

from gated.core.policy import load_text
from gated.documents import DocumentError

A = "agents:\n  a:\n    "
"""Two lines: what follows stands on the fourth of the file."""
M = "machines:\n  - name: m\n    initial: s\n    "

# (the policy behind `version: 1`, the line, words of the message)
BROKEN: list[tuple[str, int, str]] = [
    # --- the form of the file: YAML 1.2, nothing of 1.1, nothing twice
    ("mode: Observe", 2, 'not `"Observe"`; did you mean `observe`?'),
    ("mode: on", 2, 'not `"on"`'),
    ("mode: ~", 2, "not `null`"),
    ("x: &a 1\ny: *a", 2, "anchors are not used here"),
    ("agents: !!map {}", 2, "tags are not used here"),
    (A + "<<: {role: x}", 4, "merge keys are not used here"),
    ("agents: {}\nagents: {}", 3, "duplicate key `agents`"),
    ("---\nagents: {}", 2, "a file holds one"),
    ("\tagents: {}", 2, "tab"),
    ("agents: {1: {}}", 2, "the key `1` is not text"),
    ("agents: {? [a] : {}}", 2, "a key is text"),
    ("agents: [a]", 2, "`agents` wants a mapping"),
    ("agents: {a: null}", 2, "`agents.a` wants a mapping"),
    ("modee: enforce", 2, "unknown key `modee`; did you mean `mode`?"),
    ("defaults: {nope: 1}", 2, "unknown key `nope` in `defaults`"),
    # --- numbers are decimal and of their kind
    (A + "ceilings: {max_hops: 0x10}", 4, 'not `"0x10"`'),
    (A + "ceilings: {max_hops: 8.0}", 4, "not `8.0`"),
    (A + 'ceilings: {max_hops: "8"}', 4, 'not `"8"`'),
    (A + "ceilings: {max_hops: true}", 4, "not `true`"),
    (A + "ceilings: {max_hops: -1}", 4, "not `-1`"),
    (A + "resource_budget: {max_cost_usd: .nan}", 4, "`.nan` is not a number that can be used here"),
    (A + "resource_budget: {max_cost_usd: 1e400}", 4, "`1e400` is too large"),
    (A + "resource_budget: {max_cost_usd: -1}", 4, "`-1` is not an amount of US dollars"),
    (A + "dcbf: {power: 1.5}", 4, "`agents.a.dcbf.power` wants a whole number"),
    (A + "dcbf: {barriers: {b: {counter: {tools: [T], per_call: -1, budget: 1}}}}", 4, "not `-1`"),
    (A + "call_timeout: 15x", 4, "`15x` is not a duration"),
    # --- choices
    (A + "checks: [ingress]", 4, 'not `"ingress"`'),
    (A + "checks: [semantic]", 4, "the stage `semantic` needs detectors"),
    (A + "modes: {lifecycle: observe}", 4, 'not `"lifecycle"`'),
    (A + "modes: {ingress: observe}", 4, 'not `"ingress"`'),
    (A + "runs: {opened_by: agents}", 4, "did you mean `agent`?"),
    (A + 'outcomes_from: "runner:"', 4, "`agents.a.outcomes_from` wants"),
    (A + "data_scope: all", 4, "`agents.a.data_scope` wants `any`"),
    (A + "resource_budget: {over: allow}", 4, "`deny` or `ask`"),
    (A + "dfa: {add: [[IDLE, DOING]]}", 4, "DOING"),
    (A + "on_ungated: ignore", 4, "`record` or `fail`"),
    ("unknown_tools: allow", 2, "`pass` or `deny`"),
    ("approvals: {default: {on_timeout: allow}}", 2, "`deny`"),
    # --- names: of those that must exist, and of those that nobody can have
    ("agents: {'a b': {}}", 2, 'wants a name: 1 to 128 of A-Z a-z 0-9 _ -; not `"a b"`'),
    ("tools: {'T*': {}}", 2, "wants the name of one tool"),
    ("tools: {'two words': {}}", 2, "wants the name of one tool"),
    (A + "owner: ''", 4, 'wants a name: 1 to 128 of A-Z a-z 0-9 _ -; not `""`'),
    (
        "contracts: [{name: '', on: T, require: 'true'}]",
        2,
        "`contracts[0].name` wants a name: 1 to 128 characters, not all of them",
    ),
    ("contracts: [{name: ' ', on: T, require: 'true'}]", 2, "not all of them blank"),
    ("groups: {'': [ana]}", 2, "not all of them blank"),
    (A + "dcbf: {barriers: {'': {expr: '1.0'}}}", 4, "not all of them blank"),
    ("machines: [{name: ' ', initial: s, transitions: []}]", 2, "not all of them blank"),
    (M + "transitions: [{on: T, from: s, to: ' '}]", 5, "wants a text that is not blank"),
    (M + "transitions: [{on: T, from: s, to: s, emit: {content: ''}}]", 5, "wants a text that is not blank"),
    ("continuation: {message: ''}", 2, "wants a text that is not blank"),
    ("approvals: {default: {escalate: {after: 1h, to: []}}}", 2, "`escalate.to` is empty"),
    (A + "grounding: ['sql_*']", 4, "wants the name of one tool"),
    (A + "dcbf: {privacy: {tools: ['send_*']}}", 4, "wants the name of one tool"),
    (A + "dcbf: {safety: {pairs: [['sql_*', http_request]]}}", 4, "wants the name of one tool"),
    (A + "dcbf: {barriers: {b: {counter: {tools: ['mcp__*'], per_call: 1, budget: 1}}}}", 4, "wants the name of one tool"),
    (A + "dcbf: {remove: [privcy]}", 4, "there is no barrier `privcy`"),
    (A + "machines: [ghost]", 4, "there is no machine `ghost`"),
    ("threads: {shared_by: [[ghost, other]]}", 2, "there is no agent `ghost`"),
    ("redact: {detectors: [passwords]}", 2, 'not `"passwords"`'),
    ("semantic: {scent: {}}", 2, "unknown key `scent`"),
    # --- patterns, selectors, scopes
    (A + "allowed_tools:\n      - Read\n      - 'T()'", 6, "`T()` at character 1: empty parentheses"),
    (A + "forbidden_tools: ['/(?=a)/']", 4, "`(?=a)` is no regex of RE2"),
    (A + "approval_required: ['T(a ~ b)']", 4, "a double-quoted value is missing"),
    ("tools:\n  T:\n    resources:\n      args:\n        a..b: path", 6, "`a..b` is no selector"),
    ("tools:\n  T:\n    schema:\n      properties:\n        a: {type: nope}", 6, '"nope" is not valid'),
    ("tools:\n  T: {schema: {$ref: 'https://x.example/s'}}", 3, "remote references are not followed"),
    (A + "data_scope: {allowed_paths: [docs]}", 4, "`docs` is relative"),
    (A + "data_scope: {forbidden_patterns: ['']}", 4, "would forbid everything"),
    # --- settings that contradict one another
    (A + "dfa: {add: [[IDLE, ACTING]], remove: [[IDLE, ACTING]]}", 4, "`IDLE -> ACTING` is added and removed"),
    (A + "dcbf: {barriers: {b: {}}}", 4, "give exactly one of"),
    (A + "data_scope: {allowed_tables: {db: [t]}}", 4, "is not in `allowed_databases`"),
    ("semantic: {secrets: {thresholds: {ask: 0.9, deny: 0.6}}}", 2, "lies over"),
    # --- what would be kept otherwise than it is written
    (
        "semantic: {secrets: {thresholds: {ask: 0.6000001}}}",
        2,
        "at most six digits behind the point, as scores have; not `0.6000001`",
    ),
    ("semantic: {secrets: {}, thresholds: {deny: 1e-7}}", 2, "at most six digits"),
    ("contracts: [{name: c, on: T}]", 2, "neither `require` nor `ensure`"),
    # --- machines
    (M + "transitions: [{on: T, from: s, to: s, whenn: any}]", 5, "unknown key `whenn`"),
    (M + "transitions: [{on: T, from: s, to: s, when: ok}]", 5, 'not `"ok"`'),
    (M + "transitions: [{on: T, from: s, to: s, on_violation: block}]", 5, 'not `"block"`'),
    (M + "transitions: [{on: T, from: [], to: s}]", 5, "`from` names no state"),
    (M + "transitions: [{on: T, from: s, to: '*'}]", 5, "`*` is no state"),
    (M + "terminal: [done]\n    transitions: [{on: T, from: s, to: s}]", 5, "nothing reaches the state `done`"),
    (M + "key: '{file'\n    transitions: [{on: T, from: s, to: s}]", 5, "a `{` is not closed"),
    (M + "key: '{}'\n    transitions: [{on: T, from: s, to: s}]", 5, "empty braces"),
    (M + "key: '{a[*].b}'\n    transitions: [{on: T, from: s, to: s}]", 5, "a template takes one"),
    (M + "transitions: [{on: T, from: s, to: s}]\n  - {name: m, initial: s, transitions: []}", 6, "`m` is declared twice"),
    ("continuation: {message: '{rest}'}", 2, "only `{summary}`"),
    ("continuation:\n  max_continuations: 1\n  message: 'Finish {'", 4, "`Finish {` at character 7: a `{` is not closed"),
]


@pytest.mark.parametrize(("text", "line", "words"), BROKEN, ids=[text[-60:] for text, _, _ in BROKEN])
def test_a_mistake_is_a_load_error_with_its_line_and_its_text(text: str, line: int, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        load_text(f"version: 1\n{text}\n", "p.yaml")
    assert words in str(caught.value)
    assert (caught.value.file, caught.value.line) == ("p.yaml", line)
    assert "\n" not in str(caught.value), "a message is one line"


@pytest.mark.parametrize(
    "text",
    [
        "agents: {a: {role: yes}, b: {role: 2001-01-01}}",  # text, by the core schema of YAML 1.2
        "machines: [{name: m, initial: off, transitions: [{on: T, from: off, to: on}]}]",
        "agents: {a: {ceilings: {max_hops: 010}}}",  # ten, by the same
        "agents: {a: {modes: {breaker: observe, ceilings: observe}}}",
        "agents: {a: {resource_budget: {max_cost_usd: '2.50'}}}",
        "agents: {a: {dfa: {add: [[OBSERVING, OBSERVING]], remove: [[OBSERVING, ANSWERING]]}}}",
        "agents: {a: {grounding: ['mcp__db__query.v1:x/y-z']}}",
    ],
)
def test_what_is_no_mistake_loads(text: str) -> None:
    load_text(f"version: 1\n{text}\n", "p.yaml")
