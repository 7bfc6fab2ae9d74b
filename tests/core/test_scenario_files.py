"""What is wrong with a scenario file is an error of the file, wherever it stands; what the wire refuses is refused here too."""

import pytest

from gated.core.scenario import Result, run_document
from gated.documents import DocumentError, parse_document

HEAD = """policy: {version: 1, agents: {a: {allowed_tools: ["*"], data_scope: any, approval_required: [refund]}},
         approvals: {default: {approvers: [user:bob]}}}
scenarios:
  - name: one
    steps:
      - {intent: {id: c1, tool: T}}
"""


def results(*steps: str, head: str = HEAD) -> list[Result]:
    text = head + "".join(f"      - {step}\n" for step in steps)
    return list(run_document(parse_document(text, file="s.yaml"), lambda name: parse_document("", file=name)))


def failures(*steps: str, head: str = HEAD) -> list[tuple[int | str, str, object]]:
    (result,) = results(*steps, head=head)
    return [(failure.step, failure.key, failure.got) for failure in result.failures]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("{intent: {tool: T}, expect: [x]}", "what is expected of one verdict is a mapping, not `x`"),
        ("{intent: {tool: T}, expect: [null]}", "what is expected of one verdict is a mapping, not `None`"),
        ("{intent: {tool: T}, expect: null}", "`expect` is a mapping or a list of mappings, not `None`"),
        ("{intent: {tool: T}, expect: {count: 1}}", "unknown key `count`"),
        ("{intent: {tool: T}, expect: {decision: deny, zzz: 1}}", "unknown key `zzz`"),  # also behind what differs
        ("{batch: [{tool: T}], expect: {any_order: true, items: 5}}", "`items` is a list, not `5`"),
        ("{batch: [{tool: T}], expect: {any_order: true, items: [5]}}", "what is expected of one verdict is a mapping, not `5`"),
        ("{batch: [{tool: T}], expect: {any_order: true, items: [{zzz: 1}]}}", "unknown key `zzz`"),
        ("{batch: [{tool: T}], expect: {any_order: perhaps, items: []}}", "`any_order` is true or false, not `perhaps`"),
        ("{batch: [{tool: T}], expect: {any_order: true}}", "`items` is a list"),
        ("{batch: [{tool: T}], expect: {count: one}}", "`count` is a whole number, not `one`"),
        ("{batch: [{tool: T}], expect: {decision: allow}}", "unknown key `decision`"),
        ("{concurrent: [[{intent: {tool: T}, expect: {zzz: 1}}]]}", "unknown key `zzz`"),
        ("{concurrent: [[{intent: {tool: T}}]], interleavings: 0}", "`interleavings` is 1 or more, not `0`"),
        (
            "{outcome: {call: c1, status: success, by: 'agent:'}}",
            "`by` is `agent:`, `runner:`, `operator:` or `approver:` and a name",
        ),
        (
            "{outcome: {call: c1, status: success, by: 'boss:x'}}",
            "`by` is `agent:`, `runner:`, `operator:` or `approver:` and a name",
        ),
        (
            "{outcome: {call: c1, status: success, by: 'runner:a b'}}",
            "`by`: `a b` cannot be on the bus: a name there is 1 to 128",
        ),
        (f"{{outcome: {{call: c1, status: success, by: {'a' * 129}}}}}", "cannot be on the bus"),
        ("{resolve: {ticket: c1, by: '', decision: approve}}", "`by`: `` cannot be on the bus"),
        ("{forget: {ticket: c1, by: b.b}}", "`by`: `b.b` cannot be on the bus"),
        ("{switch: {run: a b}}", "`run`: `a b` cannot be on the bus"),
        ("{switch: {run: b, thread: a b}}", "`thread`: `a b` cannot be on the bus"),
        ("{switch: {run: b, agent: a b}}", "`agent`: `a b` cannot be on the bus"),
        ("{}", "a step has one of"),
    ],
)
def test_an_expectation_of_a_wrong_form_is_an_error_of_the_file(step: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        results(step)
    assert message in caught.value.message
    assert caught.value.message.startswith("step 2")
    assert caught.value.line == 7


def test_items_in_order_where_any_order_is_not_asked_for() -> None:
    batch = "{batch: [{tool: T}, {tool: U}], expect: {any_order: %s, items: [{call: c3}, {call: c2}]}}"
    assert failures(batch % "true") == []
    assert failures(batch % "false") == [(2, "call", "c2")]


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ("{outcome: {call: c1, status: success, cost_usd: -0.01}", "ingress.cost"),
        ("{outcome: {call: c1, status: success, cost_usd: '1'}", "ingress.cost"),
        ("{outcome: {call: c1, status: success, cost_usd: true}", "ingress.cost"),
        ("{outcome: {call: c1, status: success, tokens: -1}", "ingress.shape"),
        ("{outcome: {call: c1, status: success, tokens: 9007199254740993}", "ingress.shape"),
        ("{outcome: {call: 'a b', status: success}", "ingress.id"),
        ("{intent: {id: '', tool: T}", "ingress.id"),
        (f"{{outcome: {{call: c1, status: success, facts: {{a: {'a' * 1_048_576}}}}}", "ingress.too_large"),
        (f"{{resolve: {{ticket: c1, by: bob, decision: approve, note: {'a' * 4001}}}", "ingress.shape"),
        (f"{{resolve: {{ticket: c1, by: bob, decision: approve, decision_id: {'a' * 129}}}", "ingress.id"),
        (f"{{resolve: {{ticket: {'a' * 161}, by: bob, decision: approve}}", "ingress.shape"),
        (f"{{abort: {{reason: {'a' * 1001}}}", "ingress.shape"),
        ("{batch: []", "ingress.shape"),
        (f"{{batch: [{', '.join(['{tool: T}'] * 1001)}]", "ingress.shape"),
        ("{batch: [{id: '', tool: T}]", "ingress.id"),
    ],
)
def test_what_the_wire_refuses_is_refused(step: str, code: str) -> None:
    expected = "[{refused: %s}]" if step.startswith("{batch") else "{refused: %s}"
    assert failures(f"{step}, expect: {expected % code}}}") == []
    ((number, key, got),) = failures(f"{step}}}")
    assert (number, key) == (2, "refused")
    assert str(got).startswith(code)


def test_a_limit_of_the_policy_holds_of_everything_that_is_said() -> None:
    head = HEAD.replace("approvals:", "limits: {max_depth: 4}, approvals:")
    for step in (
        "{intent: {tool: T, args: {a: [[[[1]]]]}}, expect: {refused: ingress.args}}",
        "{outcome: {call: c1, status: success, content: [[[[1]]]]}, expect: {refused: ingress.args}}",
        "{resolve: {ticket: c1, by: bob, decision: approve, result: [[[[1]]]]}, expect: {refused: ingress.args}}",
    ):
        assert failures(step, head=head) == []


def test_a_child_of_no_run_is_refused() -> None:
    assert failures("{switch: {run: b, parent: a b}, expect: {refused: ingress.id}}") == []


def test_numbers_of_arguments_stay_what_they_are() -> None:
    """`1.0` came as `1` where the policy has limits of its own."""
    rules = "limits: {max_depth: 9}, contracts: [{name: c, on: U, require: 'args.n == 1.0'}], approvals:"
    assert (
        failures("{intent: {tool: U, args: {n: 1.0}}, expect: {decision: allow}}", head=HEAD.replace("approvals:", rules)) == []
    )


@pytest.mark.parametrize(
    ("scenarios", "words"),
    [
        ("[]", "`scenarios` is empty: nothing would be tested"),
        ("[{name: one, steps: []}]", "scenario `one` has no steps and no `state`: nothing would be tested"),
        ("[{name: one, run: a b, steps: [{finish: {}}]}]", "`run`: `a b` cannot be on the bus"),
        ("[{name: one, thread: '', run: '', steps: [{finish: {}}]}]", "`run`: `` cannot be on the bus"),
        ("[{name: one, agent: a/b, steps: [{finish: {}}]}]", "`agent`: `a/b` cannot be on the bus"),
        (f"[{{name: one, task: {'a' * 65_537}, steps: [{{finish: {{}}}}]}}]", "expected `str` of length <= 65536, at `task`"),
    ],
)
def test_a_scenario_that_could_not_be_or_tests_nothing_is_an_error_of_the_file(scenarios: str, words: str) -> None:
    text = f"{HEAD.partition('scenarios:')[0]}scenarios: {scenarios}\n"
    with pytest.raises(DocumentError) as caught:
        list(run_document(parse_document(text, file="s.yaml"), lambda name: parse_document("", file=name)))
    assert words in caught.value.message
    assert caught.value.line == 3


def test_a_run_step_whose_outcome_is_refused_fails() -> None:
    head = HEAD.replace("data_scope: any", 'data_scope: any, outcomes_from: "runner:box"')
    ((step, key, got),) = failures("{run: {tool: T}}", head=head)
    assert (step, key) == (2, "refused")
    assert str(got).startswith("lifecycle.not_outcome_source")


def test_a_verdict_with_a_ticket_says_its_state() -> None:
    asked = "{intent: {id: r, tool: refund}, expect: {decision: suspend, ticket: pending}}"
    assert failures(asked, "{advance: 16m, expect: [{call: r, code: approvals.expired, ticket: expired}]}") == []
    assert (
        failures(asked, "{resolve: {ticket: r, by: bob, decision: approve}, expect: {decision: allow, ticket: approved}}") == []
    )
    assert failures("{batch: [{tool: refund}, {tool: T}], expect: [{ticket: pending}, {ticket: null}]}") == []


def test_a_ticket_of_no_number_is_unknown() -> None:
    for name in ("r.x", "r.0", "r.2", "r.-1"):
        step = "{resolve: {ticket: '%s', by: bob, decision: approve}, expect: {refused: approvals.unknown_ticket}}"
        assert failures("{intent: {id: r, tool: refund}}", step % name) == []
