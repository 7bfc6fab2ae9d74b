"""Everything that `gated policy check` finds, each with its line; and a policy in which it finds nothing."""

from __future__ import annotations

import pytest

from gated.core.lint import lint
from gated.core.policy import load
from gated.documents import DocumentError, parse_document

CLEAN = """\
version: 1
agents:
  a:
    owner: ana
    allowed_tools: [Read, Write, pay]
    forbidden_tools: ["Read(file_path ~ \\"*.key\\")", "Write(file_path ~ \\"*.key\\")"]
    approval_required: [pay]
    data_scope: {allowed_paths: [/workspace]}
    resource_budget: {max_calls: 60}
tools:
  Read: {resources: {args: {file_path: path}}}
  Write: {resources: {args: {file_path: path}}}
  pay: {resources: {args: {"*": none}}}
machines:
  - name: rbw
    key: "{file_path}"
    initial: unread
    terminal: [written]
    transitions:
      - {on: Read, from: "*", to: read}
      - {on: Write, from: [read, written], to: written}
contracts:
  - {name: cap, on: pay, require: "args.amount <= 100"}
approvals:
  default: {approvers: [group:leads]}
groups: {leads: [bob, cy]}
"""


def found(text: str) -> list[tuple[int, str, str]]:
    """(line, level, message)."""
    document = parse_document(text, file="p.yaml")
    return [(document.line(item.path), item.level, item.message) for item in lint(load(document))]


def test_a_sound_policy_has_no_findings() -> None:
    assert found(CLEAN) == []


def test_a_machine_is_paid_for_by_what_its_tools_cost_and_only_where_budgets_are_asked() -> None:
    little = CLEAN.replace("{max_calls: 60}", "{max_calls: 60, max_total_cost_usd: 0.01}")
    cheap = little.replace("args: {file_path: path}}}", "args: {file_path: path}}, cost_usd: 0.001}")
    assert found(cheap) == []
    unasked = little.replace("    owner: ana", "    owner: ana\n    checks: [dfa, order, contracts, dcbf]")
    assert not any("does not pay" in message for _, _, message in found(unasked))


def _dcbf(rules: str) -> list[tuple[str, str]]:
    return [("    owner", f"    dcbf: {rules}\n    owner")]


def _semantic(rules: str) -> list[tuple[str, str]]:
    return [("version: 1", f"version: 1\nsemantic: {rules}")]


# (what is written instead of what, the line, the level, words of the message)
FINDINGS: dict[str, tuple[list[tuple[str, str]], int, str, str]] = {
    "no agents": ([(CLEAN, "version: 1\n")], 1, "warning", "there are no agents"),
    "observed policy": ([("version: 1", "version: 1\nmode: observe")], 2, "warning", "only observed"),
    "observed stage": ([("    owner", "    modes: {dfa: observe}\n    owner")], 4, "advice", "stage dfa is only observed"),
    "privilege off": ([("    owner", "    checks: [dfa]\n    owner")], 4, "warning", "the stage privilege is off"),
    "deny-only": ([("[Read, Write, pay]", "[]")], 5, "warning", "a policy that only forbids allows nothing"),
    "scope off": ([("{allowed_paths: [/workspace]}", "any")], 8, "warning", "switches the scope check off"),
    "undeclared tool": ([('  pay: {resources: {args: {"*": none}}}\n', "")], 3, "warning", "`pay` declares no `resources`"),
    "undeclared argument": (
        [("  pay: {resources", "  pay: {schema: {properties: {to: {type: string}}}}\n  other: {resources")],
        13,
        "warning",
        "declares no kind of `to`",
    ),
    "a safety barrier that nothing breaches": (_dcbf("{safety: {margin: 0}}"), 4, "warning", "no pair is ever denied"),
    "a safety barrier turned round": (_dcbf("{safety: {margin: -0.5}}"), 4, "warning", "no pair is ever denied"),
    "calls that count nothing": (_dcbf("{privacy: {per_call: 0}}"), 4, "warning", "no number of calls"),
    "a counter that counts nothing": (
        _dcbf("{barriers: {m: {counter: {tools: [pay], per_call: 0, budget: 1}}}}"),
        4,
        "warning",
        "no number of calls",
    ),
    "no step": (_dcbf("{stability: {step_budget: 0}}"), 4, "warning", "any first call leaves barrier `stability`"),
    "no money": (_dcbf("{resource: {limit_usd: 0}}"), 4, "warning", "any first call leaves barrier `resource`"),
    "no hops": ([("    owner", "    ceilings: {max_hops: 0}\n    owner")], 4, "warning", "the first call is denied"),
    "no time for an outcome": ([("    owner", "    call_timeout: 0s\n    owner")], 4, "warning", "lapses before its outcome"),
    "no time to answer": ([("[group:leads]}", "[group:leads], timeout: 0}")], 25, "warning", "expires before anybody"),
    "whole disk": ([("[/workspace]", "[/]")], 8, "warning", "the whole disk"),
    "path in path": ([("[/workspace]", "[/workspace, /workspace/a]")], 8, "advice", "`/workspace` holds it"),
    "barrier outside from the start": (_dcbf("{barriers: {b: {expr: '-1.0'}}}"), 4, "warning", "barrier `b` is below 0"),
    "barrier that mixes numbers": (
        _dcbf("{barriers: {b: {expr: '1 - run.cost_usd'}}}"),
        4,
        "warning",
        "barrier `b` is below 0, or cannot be computed",
    ),
    "negative budget": (_dcbf("{privacy: {budget: -1}}"), 4, "warning", "barrier `privacy` is below 0"),
    "set and removed": (_dcbf("{remove: [privacy], privacy: {budget: 1}}"), 4, "warning", "is set, and removed"),
    "counts nothing": (
        _dcbf("{barriers: {b: {counter: {tools: [mail], per_call: 1, budget: 1}}}}"),
        4,
        "warning",
        "counts only tools that the agent may not call",
    ),
    "dead pair": (_dcbf("{safety: {pairs: [[Read, mail]]}}"), 4, "advice", "the pair `Read` and `mail` is dead"),
    "no look ahead": (_dcbf("{verification: false}"), 4, "warning", "the run is stuck from then on"),
    "no max_calls": ([("{max_calls: 60}", "{max_steps: 40}")], 9, "warning", "`resource_budget.max_calls` is absent"),
    "budget of nothing": ([("{max_calls: 60}", "{max_calls: 0}")], 9, "warning", "a budget of 0"),
    "steps beyond calls": ([("{max_calls: 60}", "{max_calls: 6, max_steps: 9}")], 9, "advice", "`max_steps: 9` never decides"),
    "cost beyond total": (
        [("{max_calls: 60}", "{max_calls: 60, max_cost_usd: 5, max_total_cost_usd: 2}")],
        9,
        "advice",
        "it never decides",
    ),
    "allowed and forbidden": ([("[Read, Write, pay]", "[Read, Write, pay, Write]")], 5, "advice", "listed twice"),
    "a tool that is unknown": (
        [("version: 1", "version: 1\nunknown_tools: deny"), ("[Read, Write, pay]", "[Read, Write, pay, Bash]")],
        6,
        "warning",
        "`Bash` is dead: `unknown_tools: deny`, and nothing under `tools` has that name",
    ),
    "tools that are unknown": (
        [("version: 1", "version: 1\nunknown_tools: deny"), ("[Read, Write, pay]", '[Read, Write, pay, "gh__*"]')],
        6,
        "warning",
        "`gh__*` is dead: `unknown_tools: deny`",
    ),
    "forbidden wins": ([('["Read(', '[WRITE, "Read(')], 5, "warning", "`Write` is dead: the tool is forbidden"),
    "narrower than allowed": ([("[Read, Write, pay]", '[Read, Write, pay, "pay(x)"]')], 5, "advice", "`pay` is allowed with any"),
    "nothing to forbid": ([('["Read(', '[Bash, "Read(')], 6, "advice", "nothing allowed to forbid"),
    "nothing to ask for": (
        [("approval_required: [pay]", "approval_required: [pay, wire]")],
        7,
        "warning",
        "nothing allowed to ask",
    ),
    "positional glob": (
        [
            ("approval_required: [pay]", 'approval_required: ["pay(*eve*)"]'),
            ("  pay: {", "  pay: {schema: {properties: {to: {}, amount: {type: integer}}}, "),
        ],
        7,
        "advice",
        "name the one that is meant",
    ),
    "number in a restriction": (
        [('"Write(file_path ~', '"Write(n = \\"1\\")", "Write(file_path ~')],
        6,
        "advice",
        '`Write(n = "1")` compares text: the number is meant however it is written, and a text such as `01` or `1.0` gets past; '
        "say in the tool's `schema` what type `n` is",
    ),
    "number inside an argument": (
        [
            ("on: pay, require", "on: 'pay(items[*].n = \"1.5\")', require"),
            ("  pay: {", "  pay: {schema: {properties: {items: {items: {properties: {m: {type: number}}}}}}, "),
        ],
        23,
        "advice",
        "say in the tool's `schema` what type `items[*].n` is",
    ),
    "positional glob in a machine": (
        [
            ("on: Write, from", 'on: "W*(/tmp/*)", from'),
            ("  Write: {", "  Write: {schema: {properties: {file_path: {}, text: {}}}, "),
        ],
        21,
        "advice",
        "`W*(/tmp/*)` looks at the only argument, and `Write` has `file_path`, `text`: name the one that is meant, as in `Write(",
    ),
    "positional glob in a contract": (
        [("on: pay, require", 'on: "pay(*eve*)", require'), ("  pay: {", "  pay: {schema: {properties: {to: {}, amount: {}}}, ")],
        23,
        "advice",
        "`pay` has `to`, `amount`: name the one that is meant",
    ),
    "positional glob in an approval's rule": (
        [
            ("  default:", '  rules: [{on: "pay(*eve*)", approvers: [user:bob]}]\n  default:'),
            ("  pay: {", "  pay: {schema: {properties: {to: {}, amount: {}}}, "),
        ],
        25,
        "advice",
        "`pay` has `to`, `amount`: name the one that is meant",
    ),
    "tool nobody calls": ([("  Read: {", "  Bash: {}\n  Read: {")], 11, "advice", "no agent may call `Bash`"),
    "no way to act": (
        [("    owner", "    dfa: {remove: [[IDLE, PLANNING]]}\n    owner")],
        4,
        "warning",
        "no path leads from IDLE to ACTING",
    ),
    "no way on": ([("    owner", "    dfa: {remove: [[OBSERVING, PLANNING]]}\n    owner")], 4, "warning", "OBSERVING to ACTING"),
    "unreachable phase": (
        [("    owner", "    dfa: {add: [[IDLE, ACTING]], remove: [[IDLE, PLANNING], [OBSERVING, PLANNING]]}\n    owner")],
        4,
        "warning",
        "no run comes to PLANNING",
    ),
    "no such edge": ([("    owner", "    dfa: {remove: [[IDLE, ANSWERING]]}\n    owner")], 4, "warning", "to remove"),
    "edge out of the end": ([("    owner", "    dfa: {add: [[ANSWERING, ACTING]]}\n    owner")], 4, "warning", "never taken"),
    "rules of a stage that is off": (
        [("    owner", "    dcbf: {power: 2}\n    checks: [privilege, dfa, order, contracts]\n    owner")],
        4,
        "warning",
        "`dcbf` does nothing",
    ),
    "nothing to observe": (
        [("    owner", "    modes: {dcbf: observe}\n    checks: [privilege, dfa, order, contracts]\n    owner")],
        4,
        "warning",
        "nothing to observe",
    ),
    "unreachable state": (
        [("from: [read, written]", "from: [read, lost]")],
        21,
        "warning",
        "no way leads from `unread` to the state `lost`",
    ),
    "dead transition": ([("from: [read, written]", "from: lost")], 21, "warning", "can never fire"),
    "endless machine": ([("from: [read, written]", "from: lost")], 18, "warning", "none of its terminal states can be reached"),
    "dead end": (
        [
            ("      - {on: Write", "      - {on: pay, from: read, to: pit}\n      - {on: Write"),
            ('from: "*"', "from: [unread, read]"),
        ],
        18,
        "warning",
        "no way leads from the state `pit` to a terminal one",
    ),
    "the agent's words": (
        [
            (
                "from: [read, written], to: written}",
                "from: [read, written], to: written, emit: {target: system, content: '{file_path}'}}",
            )
        ],
        21,
        "warning",
        "puts `{file_path}`, which the agent chose, into its system prompt",
    ),
    "first tool not allowed": (
        [("[Read, Write, pay]", "[Write, pay]")],
        3,
        "warning",
        "begins with `Read`, which the agent is not",
    ),
    "the first tool of a longer way": (
        [
            ("[Read, Write, pay]", "[Write, pay]"),
            ("terminal: [written]", "terminal: [done]"),
            (
                "from: [read, written], to: written}",
                "from: [read, written], to: written}\n      - {on: pay, from: written, to: done}",
            ),
        ],
        3,
        "warning",
        "transition 3 (`pay`) begins with `Read`, which the agent is not",
    ),
    "first tool forbidden": ([('["Read(', '[Read, "Read(')], 3, "warning", "begins with `Read`, which the agent is not"),
    "no end for this agent": ([("[Read, Write, pay]", "[Read, pay]")], 3, "warning", "has no way to an end with the tools"),
    "calls too few": ([("{max_calls: 60}", "{max_calls: 1}")], 3, "warning", "needs 2 calls to end, `max_calls` is 1"),
    "steps too few": (
        [("{max_calls: 60}", "{max_calls: 60, max_steps: 1}")],
        3,
        "warning",
        "needs 2 calls to end, `max_steps` is 1",
    ),
    "hops too few": ([("    owner", "    ceilings: {max_hops: 1}\n    owner")], 3, "warning", "`max_hops` is 1"),
    "money too little": (
        [("{max_calls: 60}", "{max_calls: 60, max_total_cost_usd: 0.01}")],
        3,
        "warning",
        "does not pay for them",
    ),
    "steps of a barrier too few": (
        _dcbf("{stability: {step_budget: 1}}"),
        3,
        "warning",
        "needs 2 calls to end, the step budget of the barrier `stability` is 1",
    ),
    "money of a barrier too little": (
        _dcbf("{resource: {limit_usd: 0.01}}"),
        3,
        "warning",
        "the limit of the barrier `resource` does not pay for them",
    ),
    "an approval for good": (
        [
            (
                "contracts:\n",
                "  - {name: m, initial: s, transitions: "
                "[{on: Read, from: '*', to: t}, {on: pay, from: s, to: s, on_violation: ask}]}\ncontracts:\n",
            )
        ],
        22,
        "advice",
        "approved from `t`, `pay` leads to `s`, and is not asked for any more",
    ),
    "first what is forbidden for the same arguments": (
        [(', "Write(file_path ~ \\"*.key\\")"', "")],
        3,
        "advice",
        'transition 2 (`Write`) begins with `Read`, and `Read(file_path ~ "*.key")` is forbidden',
    ),
    "machines of its own alone": (
        [("    owner", "    machines: [{name: mine, initial: s, transitions: [{on: pay, from: s, to: s}]}]\n    owner")],
        4,
        "advice",
        "has machines of its own and none of the policy's (`rbw`)",
    ),
    "machine nobody has": ([("    owner", "    machines: []\n    owner")], 16, "warning", "no agent has it"),
    "machine of other tools": (
        [("contracts:\n", "  - {name: m, initial: s, transitions: [{on: Bash, from: s, to: s}]}\ncontracts:\n")],
        3,
        "advice",
        "watches nothing that `a` may call",
    ),
    "key no tool supplies": (
        [("  Write: {resources", "  Write: {schema: {properties: {path: {}}, additionalProperties: false}, resources")],
        16,
        "warning",
        "the key takes `file_path`, which the schema of `Write` does not have",
    ),
    "key that an object lacks": (
        [
            ('key: "{file_path}"', 'key: "{file.path}"'),
            (
                "  Write: {resources",
                "  Write: {schema: {properties: {file: {properties: {name: {}}, additionalProperties: false}}}, resources",
            ),
        ],
        16,
        "warning",
        "the key takes `file.path`, which the schema of `Write` does not have",
    ),
    "key that a tool of a glob lacks": (
        [
            ("on: Write, from", 'on: "W*", from'),
            ("  Write: {resources", "  Write: {schema: {properties: {path: {}}, additionalProperties: false}, resources"),
        ],
        16,
        "warning",
        "the key takes `file_path`, which the schema of `Write` does not have",
    ),
    "contract that runs over what may be a map": (
        [("args.amount <= 100", "args.to.all(a, a == 'x')")],
        23,
        "advice",
        "`all` looks at the keys alone where `args.to` is a map: write `type(args.to) == list && …`",
    ),
    "contract of nothing": ([("on: pay, require", "on: wire, require")], 23, "warning", "no agent may call what `wire` matches"),
    "contract of a stage that is off": (
        [("    owner", "    checks: [privilege, dfa, order]\n    owner")],
        24,
        "warning",
        "does nothing",
    ),
    "contract that cannot be": ([('"args.amount <= 100"', "'\"900\" > 100'")], 23, "warning", "can never be evaluated"),
    "observed contract": ([("on: pay, require", "on: pay, mode: observe, require")], 23, "advice", "only observed"),
    "nobody answers in particular": (
        [("{approvers: [group:leads]}", "{timeout: 5m}")],
        25,
        "warning",
        "no `approvers` are named",
    ),
    "no approvals at all": (
        [("approvals:\n  default: {approvers: [group:leads]}\ngroups: {leads: [bob, cy]}\n", "")],
        1,
        "warning",
        "no `approvers`",
    ),
    "self approval": (
        [("{approvers: [", "{self_approval: true, approvers: [")],
        25,
        "warning",
        "may approve the call themselves",
    ),
    "too few people": ([("{approvers: [", "{quorum: 3, approvers: [")], 25, "warning", "2 people are named, 3 must answer"),
    "only the owner": ([("leads: [bob, cy]", "leads: [ana]")], 25, "warning", "0 people are left, and 1 must answer"),
    "empty group": ([("leads: [bob, cy]", "leads: []")], 26, "warning", "the group `leads` is empty"),
    "unused group": ([("{leads:", "{others: [dee], leads:")], 26, "advice", "no rule names the group `others`"),
    "rule for nothing": (
        [("  default:", "  rules: [{on: wire, approvers: [user:bob]}]\n  default:")],
        25,
        "warning",
        "no agent may call what `wire` matches",
    ),
    "rule behind another": (
        [("  default:", "  rules: [{on: pay, approvers: [user:bob]}, {on: pay, approvers: [user:cy]}]\n  default:")],
        25,
        "warning",
        "rule 1 comes first",
    ),
    "rule without people": (
        [("  default: {approvers: [group:leads]}", "  rules: [{on: pay}]")],
        25,
        "warning",
        "names no `approvers`",
    ),
    "nothing asks": (
        [("    approval_required: [pay]\n", ""), ("  default:", "  rules: [{on: pay, approvers: [user:bob]}]\n  default:")],
        23,
        "warning",
        "nothing in the policy asks",
    ),
    "nothing sensitive": (_semantic("{exfiltration: {}}"), 2, "warning", "no tool is `sensitive`"),
    "sensitive for nobody": (
        [("  pay: {resources:", "  pay: {sensitive: true, resources:")],
        13,
        "warning",
        "decides nothing without `semantic",
    ),
    "detector that never acts": (
        _semantic("{secrets: {thresholds: {ask: never, deny: never}}}"),
        2,
        "warning",
        "neither asks nor denies",
    ),
    "detector of other tools": (
        _semantic('{secrets: {tools: ["mail*"]}}'),
        2,
        "warning",
        "no agent may call what `mail*` matches",
    ),
    "a detector of nothing": (
        _semantic("{secrets: {tools: []}}"),
        2,
        "warning",
        "`tools` is empty: `secrets` is asked about no call",
    ),
    "drift that asks a lot": (_semantic("{drift: {}}"), 2, "advice", "give `drift` thresholds of its own"),
    "detectors that nobody asks": (
        [*_semantic("{secrets: {}}"), ("    owner", "    checks: [privilege, dcbf]\n    owner")],
        2,
        "warning",
        "no detector is asked",
    ),
    "comparison in a list": (
        [("approval_required: [pay]", "approval_required: [pay, 'pay(amount >= 100)']")],
        7,
        "warning",
        "`pay(amount >= 100)` compares nothing: it is a glob over the text of the arguments; a contract compares, "
        "`args.amount >= 100`",
    ),
    "comparison in a contract": ([("on: pay, require", "on: 'pay(amount > 5)', require")], 23, "warning", "compares nothing"),
    "judge out of reach": (_semantic("{judge: {nats: judges.mine}}"), 2, "advice", "add `judges.mine` to its user"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_each_finding_with_its_line(name: str) -> None:
    edits, line, level, words = FINDINGS[name]
    text = CLEAN
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    matching = [item for item in found(text) if words in item[2]]
    assert matching, found(text)
    assert matching[0][:2] == (line, level), matching


@pytest.mark.parametrize("said", ["type: integer", "type: string", "enum: [1, 2]", "const: 1"])
@pytest.mark.parametrize(
    ("field", "schema"),
    [
        ("n", "properties: {n: {%s}}"),
        ("n.m", "properties: {n: {properties: {m: {%s}}}}"),
        ("n[0]", "properties: {n: {items: {%s}}}"),
    ],
)
def test_a_number_in_a_restriction_of_an_argument_with_a_type_is_no_finding(field: str, schema: str, said: str) -> None:
    text = CLEAN.replace("approval_required: [pay]", f"approval_required: ['p*({field} = \"1\")']")
    assert any("compares text" in message for _, _, message in found(text))
    assert not any("compares text" in m for _, _, m in found(text.replace("  pay: {", f"  pay: {{schema: {{{schema % said}}}, ")))
    assert found(CLEAN.replace("Write, pay]", "Write, 'pay(n = \"1\")']")) == []


def test_a_finding_that_holds_by_a_default_is_said_once_and_where_the_default_stands() -> None:
    defaults = "version: 1\ndefaults:\n  data_scope: any\n  resource_budget: {max_calls: 3}\n"
    text = defaults + "agents:\n  a: {allowed_tools: [x]}\n  b: {allowed_tools: [x]}\n"
    assert [(line, message) for line, _, message in found(text)] == [(3, "`data_scope: any` switches the scope check off")]


@pytest.mark.parametrize(
    ("tools", "line"),
    [("", 4), ("tools:\n  x: {schema: {properties: {to: {type: string}}}}\n", 6)],
)
def test_strict_resources_makes_undeclared_arguments_an_error(tools: str, line: int) -> None:
    text = f"version: 1\nstrict_resources: true\nagents:\n  a: {{allowed_tools: [x]}}\n{tools}"
    with pytest.raises(DocumentError, match="`strict_resources` wants each declared") as caught:
        load(parse_document(text, file="p.yaml"))
    assert caught.value.line == line
    load(parse_document(text.replace("true", "false"), file="p.yaml"))
    load(parse_document(text.replace("[x]", "[x], data_scope: any"), file="p.yaml"))
    if tools:
        load(parse_document(text.replace("{schema:", "{resources: {args: {to: none}}, schema:"), file="p.yaml"))
