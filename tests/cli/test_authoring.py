"""The commands of those who write policies: explain, diff, suggest, init."""

import json
from pathlib import Path

import pytest

from cli.command import gated
from cli.written import written
from core.acts import Acts
from gated.events import AgentId, RunId, ThreadId

POLICY = """version: 1
agents:
  a:
    allowed_tools: [Read, Write, send_email]
    data_scope: {allowed_paths: [/workspace]}
    resource_budget: {max_calls: 9}
tools:
  Read: {resources: {args: {file_path: path}}}
  Write: {resources: {args: {file_path: path}}}
machines:
  - name: read-before-write
    key: "{file_path}"
    initial: unread
    transitions: [{on: Read, from: "*", to: read}, {on: Write, from: read, to: read}]
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three mails (two allowed), a write before its read, the read, the write again."""
    acts = Acts(POLICY)
    for number in range(3):
        acts.run("send_email", to=f"p{number}")
    acts.run("Write", file_path="/workspace/a")
    acts.run("Read", file_path="/workspace/a")
    acts.run("Write", file_path="/workspace/a")
    return written(tmp_path, acts.world.known, acts.records)


# --- explain ---------------------------------------------------------------------------------------------------------


def test_explain_a_recorded_call(log: Path) -> None:
    status, text, _ = gated("policy", "explain", "--log", log, "--run", "r1", "--call", "c4")
    assert status == 0
    assert text.startswith("deny Write")
    assert "order.violation" in text
    assert 'call `Read` with {"file_path":"/workspace/a"} first' in text
    found = json.loads(gated("policy", "explain", "--log", log, "--run", "r1", "--call", "c3", "--json")[1])
    assert found["verdict"]["code"] == "dcbf.barrier"
    change = found["ways"][0]["changes"][0]
    assert (change["path"], change["value"]) == (["agents", "a", "dcbf", "privacy", "budget"], 0.6)
    assert [report["stage"] for report in found["stages"]][:3] == ["ingress", "lifecycle", "ceilings"]


def test_explain_a_call_that_nobody_made_names_the_line_to_edit(policy: Path) -> None:
    status, text, _ = gated("policy", "explain", "--policy", policy, "--tool", "search", "--args", '{"q": "x"}')
    assert status == 0
    assert "add `search` to `agents.a.allowed_tools`" in text
    assert f"{policy}:4" in text


def test_explain_a_call_on_the_state_a_run_is_in(log: Path) -> None:
    asked = ("policy", "explain", "--log", log, "--run", "r1", "--tool", "send_email")
    assert gated(*asked)[1].startswith("deny send_email")
    assert gated(*asked[:2], "--log", log, "--run", "r1", "--tool", "Write", "--args", '{"file_path": "/workspace/a"}')[
        1
    ].startswith("allow Write")


def test_explain_has_a_line_for_each_stage_where_none_has_anything_to_say(log: Path) -> None:
    lines = gated("policy", "explain", "--log", log, "--run", "r1", "--call", "c1")[1].splitlines()
    assert [line.split() for line in lines[1:4]] == [["ok", "ingress"], ["ok", "lifecycle"], ["off", "ceilings"]]


def test_explain_says_what_it_was_not_told(log: Path, policy: Path) -> None:
    assert gated("policy", "explain", "--policy", policy)[0] == 2
    assert gated("policy", "explain", "--call", "c1", "--log", log)[0] == 2
    assert gated("policy", "explain", "--tool", "x")[0] == 2
    assert gated("policy", "explain", "--policy", policy, "--tool", "x", "--args", "{")[0] == 2
    assert gated("policy", "explain", "--log", log, "--run", "r1", "--call", "c99")[0] == 1
    assert gated("policy", "explain", "--log", log, "--run", "r9", "--tool", "x")[0] == 1


def test_explain_a_call_of_a_run_whose_id_occurs_on_several_threads(tmp_path: Path) -> None:
    acts = Acts(POLICY)
    acts.run("send_email")
    acts.world.speak_for(ThreadId("t2"), RunId("r1"), AgentId("a"))
    acts.made = 0
    acts.ask("search")
    log = written(tmp_path, acts.world.known, acts.records)
    asked = ("policy", "explain", "--log", log, "--run", "r1", "--call", "c1")
    status, _, error = gated(*asked)
    assert (status, "say which with --thread, of t, t2" in error) == (1, True)
    assert gated(*asked, "--thread", "t")[1].startswith("allow send_email")
    assert gated(*asked, "--thread", "t2")[1].startswith("deny search")
    assert gated(*asked[:6], "--tool", "Read", "--thread", "t3")[0] == 1


# --- diff ------------------------------------------------------------------------------------------------------------


def test_diff_says_what_differs_and_which_recorded_calls_flip(log: Path, policy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(POLICY.replace("[Read, Write, send_email]", "[Write, Read]").replace("from: read,", "from: [read, unread],"))
    status, text, _ = gated("policy", "diff", policy, other, "--log", log)
    assert status == 0
    assert "- agents.a.allowed_tools: send_email" in text
    assert "machines.read-before-write.transitions[1].from" in text
    assert "4 recorded verdicts flip" not in text
    assert "3 recorded verdicts flip" in text
    assert gated("policy", "diff", policy, other, "--log", log, "--fail-on")[0] == 1
    found = json.loads(gated("policy", "diff", policy, other, "--log", log, "--json")[1])
    assert [(flip["call"], flip["old"]["decision"], flip["new"]["decision"]) for flip in found["flips"]] == [
        ("c1", "allow", "deny"),
        ("c2", "allow", "deny"),
        ("c4", "deny", "allow"),
    ]


def test_diff_of_a_policy_with_itself_in_another_order(log: Path, policy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(POLICY.replace("[Read, Write, send_email]", "[send_email, Write, Read]"))
    status, text, _ = gated("policy", "diff", policy, other, "--log", log, "--fail-on")
    assert status == 0
    assert "differ in nothing" in text
    assert "no recorded call flips" in text
    assert gated("policy", "diff", policy, tmp_path / "missing.yaml")[0] == 2


# --- suggest ---------------------------------------------------------------------------------------------------------


def test_suggest_counts_what_people_let_run(tmp_path: Path) -> None:
    acts = Acts(POLICY.replace("    allowed_tools", "    approval_required: [send_email]\n    allowed_tools"))
    acts.ask("send_email")
    acts.resolve("c1", "cy")
    acts.run("Read", file_path="/workspace/a")
    log = written(tmp_path, acts.world.known, acts.records)
    assert "allows 2 of 2 recorded calls that ran" in gated("policy", "suggest", "--log", log)[2]


def test_suggest_writes_a_policy_that_loads_and_says_what_it_denies(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "suggested.yaml"
    status, _, told = gated("policy", "suggest", "--log", log, "--out", out)
    assert status == 0
    assert "allows 4 of 4 recorded calls that ran" in told
    assert "lets through what was not allowed" in told  # the write before its read: no machine is suggested
    assert gated("policy", "check", out)[0] == 0
    text = gated("policy", "suggest", "--log", log)[1]
    assert text == out.read_text()
    found = json.loads(gated("policy", "suggest", "--log", log, "--json")[1])
    assert (found["allowed"], found["still_allowed"], found["denied"]) == (4, 4, [])
    assert found["policy"]["agents"]["a"]["allowed_tools"] == ["Read", "Write", "send_email"]


def test_suggest_of_nobody(log: Path) -> None:
    status, _, told = gated("policy", "suggest", "--log", log, "--agent", "zoe")
    assert status == 1
    assert "zoe" in told


# --- init ------------------------------------------------------------------------------------------------------------


def sound(folder: Path) -> bool:
    """The policy loads with no warning, and its scenarios pass."""
    found = json.loads(gated("policy", "check", folder / "policy.yaml", "--json", "--strict")[1])
    return [item for item in found["findings"] if item["level"] == "warning"] == [] and gated(
        "policy", "test", folder / "scenarios.yaml"
    )[0] == 0


def test_what_init_writes_is_checked_and_tested_as_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    gated("policy", "init", folder, "--template", "payments")
    whole, alone = (json.loads(gated("policy", "check", path, "--json")[1]) for path in (folder, folder / "policy.yaml"))
    assert whole == alone
    told = gated("policy", "test", folder, "--json")[1]
    assert told
    assert told == gated("policy", "test", folder / "scenarios.yaml", "--json")[1]
    (folder / "channels.yaml").write_text("version: 1\nchannels: {}\n")
    for verb in ("check", "test"):
        status, _, error = gated("policy", verb, folder)
        assert (status, "channels.yaml:2: neither a policy nor scenarios" in error) == (2, True)


@pytest.mark.parametrize("name", ["coding-agent", "payments", "one-payment-per-invoice"])
def test_init_from_a_template(name: str, tmp_path: Path) -> None:
    assert name in gated("policy", "init", "--template", "list")[1].split()
    assert gated("policy", "init", tmp_path / "new", "--template", name)[0] == 0
    assert sound(tmp_path / "new")
    assert json.loads((tmp_path / "new" / "policy.schema.json").read_text())["$schema"]
    first = (tmp_path / "new" / "policy.yaml").read_text().splitlines()[0]
    assert "yaml-language-server" not in first or first.endswith("$schema=policy.schema.json")


def test_init_writes_over_nothing_unless_told(tmp_path: Path) -> None:
    assert gated("policy", "init", tmp_path, "--template", "chat-ops")[0] == 0
    status, _, told = gated("policy", "init", tmp_path, "--template", "payments")
    assert (status, "is there already" in told) == (1, True)
    assert gated("policy", "init", tmp_path, "--template", "payments", "--force")[0] == 0
    assert "payer" in (tmp_path / "policy.yaml").read_text()
    status, _, told = gated("policy", "init", tmp_path / "x", "--template", "nosuch")
    assert (status, "there are browsing-research" in told) == (2, True)


def test_init_asks(tmp_path: Path) -> None:
    said = ["helper", "ana", "Read, sql_query, http_request, send_email", "send_email", "bob"]
    said += ["file_path:path", "table:table", "url:url", "", "/srv/work", "api.ours.example", "shop", "50"]
    status, text, _ = gated("policy", "init", tmp_path, said="\n".join(said) + "\n")
    assert status == 0, text
    assert sound(tmp_path)
    policy = (tmp_path / "policy.yaml").read_text()
    assert "owner: ana" in policy
    assert "allowed_paths: [/srv/work]" in policy
    assert "approval_required: [send_email]" in policy


def test_init_asks_again_where_an_answer_makes_no_sense(tmp_path: Path) -> None:
    said = ["helper", "ana", "Bash(", "Read, pay", "refund", "pay", "ana", "ana, bob", "file_path", "file_path:path", "", "", "0"]
    status, text, _ = gated("policy", "init", tmp_path, said="\n".join(said) + "\n")
    assert status == 0, text
    for words in (
        "`Bash(` at character",
        "`refund` is not among the tools",
        "other than the owner",
        "`file_path:` is not name:kind",
    ):
        assert words in text
    assert sound(tmp_path)


def test_init_by_its_defaults(tmp_path: Path) -> None:
    assert gated("policy", "init", tmp_path, said="\n" * 12)[0] == 0
    assert sound(tmp_path)


# --- what the ceilings show ------------------------------------------------------------------------------------------


def test_a_run_that_finished_without_grounding_says_so(tmp_path: Path) -> None:
    policy = "version: 1\nagents: {a: {allowed_tools: [T, Q], data_scope: any, grounding: [Q]}}\n"
    for tool, shown in (("T", True), ("Q", False)):
        acts = Acts(policy)
        acts.run(tool)
        acts.finish()
        folder = tmp_path / tool
        folder.mkdir()
        assert ("ungrounded" in gated("runs", "show", written(folder, acts.world.known, acts.records), "r1")[1]) is shown


def test_a_broken_postcondition_is_shown_and_counted(tmp_path: Path) -> None:
    contract = "contracts: [{name: whole, on: T, ensure: 'result.facts.complete == true', reason: the answer was not whole}]\n"
    acts = Acts("version: 1\nagents: {a: {allowed_tools: [T], data_scope: any}}\n" + contract)
    acts.ask("T")
    acts.end(facts={"complete": False})
    log = written(tmp_path, acts.world.known, acts.records)
    assert "broken  the answer was not whole" in gated("runs", "show", log, "r1")[1]
    assert "whole" in gated("stats", log)[1]


def test_what_machines_keep_is_shown(tmp_path: Path) -> None:
    rules = [
        '{on: Read, from: "*", to: read, emit: {content: "{p}", cooldown_turns: 4}}',
        "{on: Write, from: read, to: read}",
    ]
    machine = f"{{name: rbw, key: '{{p}}', initial: new, transitions: [{', '.join(rules)}]}}"
    warns = "{name: nudge, initial: s, transitions: [{on: Read, from: x, to: x, on_violation: warn}]}"
    acts = Acts(f"version: 1\nagents: {{a: {{allowed_tools: [Read, Write], data_scope: any}}}}\nmachines: [{machine}, {warns}]\n")
    for number in range(70):
        acts.ask("Write", p=f"f{number}")
    acts.run("Read", p="a")
    acts.run("Read", p="\x1b")
    log = written(tmp_path, acts.world.known, acts.records)
    _, text, _ = gated("runs", "show", log, "r1")
    for line in (
        "machine rbw[a] = read",
        "order rules: 70 denied, 2 warned, 2 transitioned, 2 emitted",
        "  nudge: 2 warned",
        "  rbw: 70 denied, 2 transitioned, 2 emitted",
        "reminded rbw[a] 1 outcome ago",
        "reminded rbw[\\x1b] 0 outcomes ago",
        "violations on the thread, the newest 64:",
        "  deny  rbw[f8] Write: Tool `Write` is not permitted by state machine `rbw` from state `new`.",
        "  warn  nudge[] Read: Tool `Read` is not permitted by state machine `nudge` from state `s`.",
    ):
        assert line in text.splitlines()
    assert "rbw[f7]" not in text
    shown = json.loads(gated("runs", "show", log, "r1", "--json")[1])
    none = {"asked": 0, "denied": 0, "warned": 0, "transitioned": 0, "emitted": 0}
    assert shown["metrics_by_machine"] == {
        "nudge": {**none, "warned": 2},
        "rbw": {**none, "denied": 70, "transitioned": 2, "emitted": 2},
    }
    assert shown["reminders"] == {"tick": 2, "last": {"rbw": {"\x1b": 2, "a": 1}}}
    assert len(shown["violations"]) == 64


def test_check_says_which_instances_of_a_log_are_in_states_that_the_machines_lack(tmp_path: Path) -> None:
    rules = "{{name: {}, scope: {}, key: '{{p}}', initial: new, transitions: [{{on: T, from: '*', to: {}}}]}}"
    written_as = "version: 1\nagents: {{a: {{allowed_tools: [T], data_scope: any}}}}\nmachines:\n  - {}\n  - {}\n"
    acts = Acts(written_as.format(rules.format("wide", "thread", "read"), rules.format("own", "run", "read")))
    for number in range(5):
        acts.run("T", p=f"f{number}")
    log = written(tmp_path, acts.world.known, acts.records)
    file = tmp_path / "policy.yaml"
    file.write_text(written_as.format(rules.format("wide", "thread", "seen"), rules.format("own", "run", "read")))
    found = "machines[0]: machine `wide`: on thread `t` 5 instances are in states that it does not have"
    shown = "`wide[f0]=read`, `wide[f1]=read`, `wide[f2]=read` and 2 more"
    for given, where in ((("--log", log), 4), (("--log", log, "--strict"), 4)):
        status, text, _ = gated("policy", "check", file, *given)
        assert f"policy.yaml:{where}: warning {found}" in text
        assert shown in text
        assert status == ("--strict" in given)
    assert found not in gated("policy", "check", file)[1]
    file.write_text(written_as.format(rules.format("other", "thread", "read"), rules.format("own", "run", "seen")))
    assert "machine `own`: on thread `t` 5 instances are" in gated("policy", "check", file, "--log", log)[1]
    acts.finish()  # the instances of a run that has ended meet no policy any more
    log.unlink()
    assert "on thread" not in gated("policy", "check", file, "--log", written(tmp_path, acts.world.known, acts.records))[1]


def test_explain_takes_what_detectors_would_say(policy: Path) -> None:
    policy.write_text(POLICY + "semantic: {secrets: {}}\n")
    asked = ("policy", "explain", "--policy", policy, "--tool", "send_email")
    assert "was not asked" in gated(*asked)[1]
    assert gated(*asked, "--score", "secrets=0")[1].startswith("allow")
    assert gated(*asked, "--score", "secrets=0.95")[1].startswith("deny")
    assert gated(*asked, "--score", "sekrets=0")[0] == 2
    assert gated(*asked, "--score", "secrets=2")[0] == 2
