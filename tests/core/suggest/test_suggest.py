"""A suggested policy loads, allows what ran, and nothing beyond it."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.acts import Acts
from core.gate_of_core import CoreGate
from gated.core.policy import load, load_text
from gated.core.suggest import Watch, suggest
from gated.core.suggest.making import _round
from gated.core.suggest.resources import _folders
from gated.core.whatif import WhatIf
from gated.documents import parse_document, write_yaml
from gated.events import AgentId, RunId, ThreadId
from oracle.comparison import answers
from oracle.strategies import asking, rebinding, thrown

OPEN = "version: 1\nagents:\n  a: {allowed_tools: ['*'], data_scope: any, owner: ana, dcbf: {remove: [privacy]}}\n"


def suggested(acts: Acts) -> dict[str, object]:
    watch = Watch()
    for record in acts.records:
        watch.feed(record)
    return suggest(watch, acts.world.known)


def verdicts(acts: Acts, data: dict[str, object]) -> list[str]:
    whatif = WhatIf(load(parse_document(write_yaml(data), file="s.yaml")))
    found = [item for record in acts.records for item in whatif.feed(record)]
    return [item.derived.decision for item in found if item.derived is not None]


def test_what_ran_is_allowed_with_its_scope_and_nothing_else() -> None:
    acts = Acts(OPEN)
    acts.run("Read", file_path="/workspace/src/a.py")
    acts.run("Read", file_path="/workspace/src/deep/b.py")
    acts.run("fetch", url="https://API.example.com:443/v1?q=1", note="see the docs.")
    acts.run("query", table="shop.orders")
    data = suggested(acts)
    assert data["agents"] == {
        "a": {
            "owner": "ana",
            "allowed_tools": ["Read", "fetch", "query"],
            "data_scope": {
                "allowed_databases": ["shop"],
                "allowed_tables": {"shop": ["orders"]},
                "allowed_api_endpoints": ["https://api.example.com"],
                "allowed_paths": ["/workspace/src"],
            },
            "resource_budget": {"max_calls": 6},
        }
    }
    assert data["tools"] == {
        "Read": {"resources": {"args": {"file_path": "path"}}},
        "fetch": {"resources": {"args": {"url": "url"}}},
        "query": {"resources": {"args": {"table": "table"}}},
    }
    assert verdicts(acts, data) == ["allow"] * 4
    other = Acts(OPEN)
    for tool, args in (("Read", {"file_path": "/etc/passwd"}), ("fetch", {"url": "https://evil.test"}), ("Bash", {})):
        other.run(tool, **args)
    assert verdicts(other, data) == ["deny"] * 3


def test_relative_paths_start_where_they_did() -> None:
    policy = OPEN.replace("data_scope: any", "data_scope: {allowed_paths: [/srv], base_path: /srv}")
    acts = Acts(policy + "tools: {Read: {resources: {args: {p: path}}}}\n")
    acts.run("Read", p="x/./y.txt")
    data = suggested(acts)
    assert data["agents"]["a"]["data_scope"] == {"allowed_paths": ["/srv/x"], "base_path": "/srv"}  # type: ignore[index]
    assert verdicts(acts, data) == ["allow"]


def test_budgets_follow_the_most_that_one_run_took() -> None:
    acts = Acts(OPEN)
    for _ in range(5):
        acts.run("send_email", to="x")
    data = suggested(acts)
    assert data["agents"]["a"]["dcbf"] == {"privacy": {"budget": 1.0, "per_call": 0.2}}  # type: ignore[index]
    assert verdicts(acts, data) == ["allow"] * 5
    acts.run("send_email", to="x")
    assert verdicts(acts, data)[-1] == "deny"


def test_the_budget_holds_what_was_reserved_at_once() -> None:
    acts = Acts(OPEN + "tools: {pay: {cost_usd: 1}}\n")
    acts.batch([("pay", {}), ("pay", {})])
    acts.end("c1", "error", cost_usd=0)
    acts.end("c2", "error", cost_usd=0)
    data = suggested(acts)
    assert data["agents"]["a"]["resource_budget"] == {"max_calls": 3, "max_total_cost_usd": 3.0}  # type: ignore[index]
    assert verdicts(acts, data) == ["allow"] * 2


def test_a_dangerous_pair_that_ran_is_no_longer_one_and_the_others_are() -> None:
    acts = Acts(OPEN.replace("remove: [privacy]", "safety: {pairs: []}"))
    acts.run("file_read")
    acts.run("send_email")
    data = suggested(acts)
    pairs = [["sql_query", "http_request"], ["database_query", "webhook_post"]]
    assert data["agents"]["a"]["dcbf"] == {"safety": {"pairs": pairs}}  # type: ignore[index]
    assert verdicts(acts, data) == ["allow"] * 2


def test_agents_that_shared_a_thread_may_share_one() -> None:
    both = OPEN + "  b: {allowed_tools: ['*'], data_scope: any}\nthreads: {shared_by: [[a, b]]}\n"
    acts = Acts(both)
    acts.run("T")
    acts.world.speak_for(ThreadId("t"), RunId("r2"), AgentId("b"))
    acts.run("T")
    data = suggested(acts)
    assert data["threads"] == {"shared_by": [["a", "b"]]}
    assert verdicts(acts, data) == ["allow"] * 2


def test_what_the_old_policy_says_of_a_tool_is_kept_and_what_is_of_no_clear_kind_is_left_to_people() -> None:
    acts = Acts(OPEN + "tools: {mail: {outbound: true, cost_usd: 0.02}}\n")
    acts.run("mail", to="someone")
    acts.run("open", name="report.pdf")
    data = suggested(acts)
    assert data["tools"] == {"mail": {"outbound": True, "cost_usd": 0.02}}
    assert verdicts(acts, data) == ["allow", "deny"]


def test_denied_calls_suggest_nothing() -> None:
    acts = Acts("version: 1\nagents: {a: {allowed_tools: [x]}}\n")
    acts.run("y")
    assert suggested(acts) == {"version": 1, "agents": {}}


def test_folders_are_few_and_never_the_root() -> None:
    assert _folders(["/a/b/c.txt", "/a/b/d/e.txt", "/x"]) == {"/a/b", "/x"}
    many = [f"/srv/data/{n}/f" for n in range(30)]
    assert _folders(many) == {"/srv/data"}
    assert "/" not in _folders([f"/{n}/f" for n in range(30)])


def test_numbers_are_rounded_up_to_what_people_mean() -> None:
    assert [_round(n) for n in (0, 1.5, 37, 101, 1234)] == [0, 2, 37, 110, 1300]


NAMES = st.sampled_from(["path", "file_path", "url", "table", "host", "q", "items", "dir", "x.y", "a[0]", "*", "weird name", ""])
WRITTEN = st.sampled_from(
    "/workspace/a.txt src/a.py ../up ~/.ssh/id C:\\x https://api.example.com/v1?q=1 https://user:pw@x.test/ shop.orders crm.a.b "
    "example.com Example.COM. 10.0.0.1 hello report.pdf v1.2.3 me@x.test / //x/y %2fetc%2fpasswd $HOME/x http:foo file:///etc/x "
    "::1 0x7f000001 /workspace/{a,b} https://h:8443/a localhost".split()
)
WRITTEN_DEEP = st.recursive(
    WRITTEN | st.none() | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2)
)


@given(st.lists(st.dictionaries(NAMES, WRITTEN_DEEP, max_size=2), min_size=1, max_size=3))
@example([{"": "src/a.py"}, {"host": "::1"}, {"host": "src/a.py"}, {"path": "$HOME/x"}, {"a[0]": "/etc/x"}])
def test_a_suggestion_loads_whatever_the_arguments_were(ran: list[dict[str, object]]) -> None:
    """Found by it: names that no selector can say, hosts that are none, folders that could never match."""
    acts = Acts(OPEN)
    for args in ran:
        assert acts.run("T", **args) == "allow"
    assert set(verdicts(acts, suggested(acts))) <= {"allow", "deny"}


def test_resources_below_an_argument_are_declared_where_they_are() -> None:
    acts = Acts(OPEN)
    acts.run("T", paths=["/workspace/a/x", "/workspace/a/y"], edits=[{"file": "/workspace/b/z", "n": 5, "to": "shop.orders"}])
    data = suggested(acts)
    assert data["tools"] == {"T": {"resources": {"args": {"edits[*].file": "path", "paths[*]": "path"}}}}
    assert verdicts(acts, data) == ["deny"], "what `to` names only people can say"
    named = Acts(OPEN)
    named.run("T", paths=["/workspace/a/x", "/workspace/a/y"], edits=[{"file": "/workspace/b/z", "n": 5, "table": "shop.orders"}])
    assert verdicts(named, suggested(named)) == ["allow"]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
DATA = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


@given(st.dictionaries(st.text(min_size=1), DATA, max_size=4))
@example({"on": ["yes", "1e3", "0x1", "null", "~", "a: b", "#x", "\u2028", "-", ""]})
def test_what_is_written_reads_back(data: dict[str, object]) -> None:
    assert parse_document(write_yaml(data) if data else "{}", file="x.yaml").data == data


# --- whatever ran ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(10 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 1))
@pytest.mark.parametrize("made", [thrown, rebinding, asking])
def test_what_ran_under_any_policy_is_allowed(made: Callable[[int], tuple[Any, list[Any]]], block: int) -> None:
    """Found by it: an owner that ran nothing, loops where dfa was off, children's calls, costs below the floor, old schemas."""
    for seed in range(block * 400, (block + 1) * 400 if block else 120):
        policy, operations = made(seed)
        gate = CoreGate(policy)
        for operation in operations:
            answers(gate, operation)
        watch, records = Watch(), [entry.record for entry in gate.world.log]
        for record in records:
            watch.feed(record)
        data = suggest(watch, gate.world.known)
        whatif = WhatIf(load(parse_document(write_yaml(data), file="s.yaml"))) if data["agents"] else None
        found = [item for record in records if whatif is not None for item in whatif.feed(record) if item.what == "call"]
        ran = [item for item in found if item.recorded.decision == "allow"]
        assert [(seed, item.call, item.derived) for item in ran if item.outcome == "flipped"] == []


def test_the_owner_of_a_shared_thread_may_have_run_nothing() -> None:
    both = OPEN + "  b: {allowed_tools: [T], data_scope: any}\nthreads: {shared_by: [[a, b]]}\n"
    acts = Acts(both, "b")
    acts.ask("other")
    acts.world.speak_for(ThreadId("t"), RunId("r2"), AgentId("a"))
    acts.run("T")
    data = suggested(acts)
    assert data["threads"] == {"shared_by": [["a", "b"]]}
    assert data["agents"]["b"]["allowed_tools"] == []  # type: ignore[index]
    assert verdicts(acts, data) == ["deny", "allow"]


def test_nested_calls_have_their_loops() -> None:
    acts = Acts(OPEN.replace("owner: ana", "owner: ana, checks: [privilege]"))
    acts.ask("T")
    for _ in range(5):
        acts.batch([("T", {})])
    data = suggested(acts)
    assert data["agents"]["a"]["resource_budget"] == {"max_calls": 9, "max_loops_per_phase": 8}  # type: ignore[index]
    assert verdicts(acts, data) == ["allow"] * 6


def test_a_schema_that_what_ran_does_not_fit_is_left_out() -> None:
    acts = Acts(OPEN)
    acts.run("T", n=1)
    acts.world.bind(load_text(OPEN + "tools: {T: {schema: {required: [m]}, outbound: true}}\n", "p.yaml"))
    assert suggested(acts)["tools"] == {"T": {"outbound": True}}
