"""What an operator does from a terminal, at a real gate: opens runs, ends them, binds them to another policy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from anyio import to_thread
from typer.testing import CliRunner

from gated.cli import app
from gated.client import connect
from gated.shell.connection import BusError
from gated.shell.embedded import embedded_server
from gated.shell.login import login
from shell.live import USERS, Bus, daemon_on, gate, server, write_policy

POLICY = """
version: 1
agents:
  worker: {allowed_tools: [read], data_scope: any, checks: [privilege], runs: {opened_by: operator}}
"""

ASKING = POLICY.replace("data_scope: any", "data_scope: any, approval_required: [read]")


async def gated(folder: Path, *arguments: str) -> tuple[int, str]:
    words = [*arguments, "--data", str(folder)]
    done = await to_thread.run_sync(lambda: CliRunner().invoke(app, words, env={"COLUMNS": "200", "TERM": "dumb"}))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


async def test_an_operator_opens_a_run_and_only_then_its_agent_works(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.agent("worker") as worker:
        assert (await worker.run(run="r1").check("read", {})).code == "lifecycle.run_not_open"
        status, said = await gated(
            tmp_path, "runs", "start", "r1", "--agent", "worker", "--task", "read", "--label", "a=b", "--json"
        )
        assert status == 0, said
        view = json.loads(said)
        assert (view["agent"], view["task"], view["labels"], view["status"]) == ("worker", "read", {"a": "b"}, "open")
        assert (await worker.run(run="r1", resume=True).check("read", {})).decision == "allow"
        status, said = await gated(tmp_path, "runs", "start", "r1", "--agent", "worker")
        assert (status, "is there already" in said) == (1, True)
        status, said = await gated(tmp_path, "runs", "start", "c1", "--thread", "r1", "--parent", "r1", "--agent", "worker")
        assert (status, "run c1 of worker on thread r1 is open" in said) == (0, True)


async def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY):
        status, said = await gated(tmp_path, "runs", "start", "r1", "--agent", "ghost")
        assert (status, "privilege.no_profile" in said) == (1, True)
        assert (await gated(tmp_path, "runs", "start", "a.b", "--agent", "worker"))[0] == 2
        assert (await gated(tmp_path, "runs", "start", "r1", "--agent", "worker", "--label", "x"))[0] == 2
        assert (await gated(tmp_path, "runs", "start", "r1", "--agent", "worker", "--as", "stranger"))[0] == 2
    assert (await gated(tmp_path / "nowhere", "runs", "start", "r1", "--agent", "worker"))[0] == 2


async def test_a_bus_without_a_gate_is_one_that_cannot_be_asked(tmp_path: Path) -> None:
    """Found by reading: it was status 1, that of a gate that runs and cannot decide."""
    async with server(tmp_path):
        status, said = await gated(tmp_path, "doctor")
        assert (status, "the gate does not answer `health`" in said) == (2, True)
    async with gate(tmp_path):
        assert (await gated(tmp_path, "doctor"))[0] == 0


async def test_a_doctor_says_loudly_that_the_policy_file_is_broken(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live:
        write_policy(tmp_path, POLICY.replace("version: 1", "version: 1\nmachines: [{nam: x}]"))
        assert await live.daemon.reload() is False
        status, said = await gated(tmp_path, "doctor")
        assert status == 0, "it decides, under the policy before"
        assert re.search(r"policy\.reload_failed: .*policy\.yaml:\d+: .*nam", said), said
        assert f"runs begin under the one before, {live.daemon.runs.registry.current.digest[:12]}" in said


async def test_an_operator_ends_a_run(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.agent("worker") as worker:
        await gated(tmp_path, "runs", "start", "r1", "--agent", "worker")
        status, said = await gated(tmp_path, "runs", "kill", "r1", "--reason", "wrong branch")
        assert (status, "run r1 of worker is ended" in said) == (0, True)
        verdict = await worker.run(run="r1", resume=True).check("read", {})
        assert (verdict.code, "wrong branch" in (verdict.reason or "")) == ("lifecycle.run_completed", True)


async def test_running_runs_are_bound_to_the_policy_of_now_when_they_are_told_to(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.agent("worker") as worker:
        for run in ("r1", "r2", "r3"):
            await gated(tmp_path, "runs", "start", run, "--agent", "worker")
        await gated(tmp_path, "runs", "kill", "r3")
        write_policy(tmp_path, POLICY.replace("[read]", "[write]"))
        assert await live.daemon.reload() is True
        assert (await worker.run(run="r1", resume=True).check("read", {})).decision == "allow"
        assert (await gated(tmp_path, "policy", "bind"))[0] == 1
        status, said = await gated(tmp_path, "policy", "bind", "--now", "--run", "r1")
        assert (status, "1 run bound" in said) == (0, True)
        assert (await worker.run(run="r1", resume=True).check("read", {})).decision == "deny"
        assert (await worker.run(run="r2", resume=True).check("read", {})).decision == "allow"
        status, said = await gated(tmp_path, "policy", "bind", "--now", "--json")
        assert (status, sorted(view["run"] for view in json.loads(said))) == (0, ["r1", "r2"])
        assert (await worker.run(run="r2", resume=True).check("read", {})).decision == "deny"


async def test_nothing_is_bound_to_a_policy_that_the_file_does_not_say(tmp_path: Path) -> None:
    """The file was broken, and `policy bind --now` bound running runs to the policy before as if it were that of the file."""
    async with gate(tmp_path, POLICY) as live:
        await gated(tmp_path, "runs", "start", "r1", "--agent", "worker")
        write_policy(tmp_path, POLICY.replace("version: 1", "version: 1\nmachines: [{nam: x}]"))
        assert await live.daemon.reload() is False
        status, said = await gated(tmp_path, "policy", "bind", "--now")
        assert (status, "nothing is bound: the policy file is broken" in said, "policy.yaml:" in said) == (1, True, True)
        digest = live.daemon.runs.registry.current.digest
        assert (await gated(tmp_path, "policy", "bind", "--now", "--policy", digest))[0] == 0


async def test_binding_names_the_policy_also_where_no_run_is_open(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live:
        digest = live.daemon.runs.registry.current.digest
        status, said = await gated(tmp_path, "policy", "bind", "--now")
        assert (status, digest in said, "no run is open" in said) == (0, True, True)
        status, said = await gated(tmp_path, "policy", "bind", "--now", "--policy", "0" * 64)
        assert (status, f"knows no policy `{'0' * 64}`" in said) == (1, True)


async def test_what_is_left_to_a_run_and_whether_a_call_would_be_allowed(tmp_path: Path) -> None:
    policy = POLICY.replace("checks: [privilege], runs: {opened_by: operator}", "resource_budget: {max_calls: 3}")
    async with gate(tmp_path, policy) as live, live.bus.agent("worker") as worker:
        await worker.run(run="r1").check("read", {})
        status, said = await gated(tmp_path, "runs", "can-i", "r1")
        assert (status, "may make 2 more calls" in said, "max_calls" in said, "privacy 0.5" in said) == (0, True, True, True)
        status, said = await gated(tmp_path, "runs", "can-i", "r1", "--tool", "read", "--times", "2", "--json")
        assert (status, [verdict["decision"] for verdict in json.loads(said)["verdicts"]]) == (0, ["allow", "allow"])
        status, said = await gated(tmp_path, "runs", "can-i", "r1", "--tool", "read", "--times", "3")
        assert (status, said.count("allow"), "privilege.calls" in said) == (1, 2, True)
        assert (await gated(tmp_path, "runs", "can-i", "ghost"))[0] == 1
        assert (await gated(tmp_path, "runs", "can-i", "r1", "--tool", "read", "--args", "{"))[0] == 2
        assert (await gated(tmp_path, "runs", "can-i", "r1", "--tool", "read", "--args", "[1]"))[0] == 1


def held(folder: Path, bus: Bus, login: str) -> Path:
    """A file that holds the password of a login."""
    path = folder / login.replace(":", ".")
    path.write_text(f"{bus.passwords[login]}\n")
    return path


async def test_whoever_the_environment_logs_in_is_who_asks_and_answers(tmp_path: Path) -> None:
    """`doctor` wanted GATED_OPERATOR beside GATED_NATS_USER, `tickets` GATED_APPROVER, and each was `local` else."""
    async with gate(tmp_path, ASKING) as live:

        async def as_user(user: str, *words: str) -> tuple[int, str]:
            environment = {"COLUMNS": "200", "GATED_NATS_URL": live.bus.url, "GATED_NATS_USER": user}
            environment["GATED_NATS_PASSWORD"] = live.bus.passwords[user]
            done = await to_thread.run_sync(lambda: CliRunner().invoke(app, words, env=environment))
            return done.exit_code, done.output

        for user in ("operator:local", "auditor:local", "approver:ana", "agent:worker"):
            assert (await as_user(user, "doctor"))[0] == 0, user
        assert await as_user("approver:ana", "tickets", "ls") == (0, "no tickets wait\n")
        started = "runs", "start", "r1", "--agent", "worker"
        assert (await as_user("operator:local", *started))[0] == 0
        assert (await as_user("auditor:local", "runs", "can-i", "r1"))[0] == 0
        for user, words in (
            ("approver:ana", started),
            ("auditor:local", ("runs", "kill", "r1")),
            ("approver:ana", ("runs", "can-i", "r1")),
            ("operator:local", ("tickets", "ls")),
            ("judge:calls", ("doctor",)),
        ):
            status, said = await as_user(user, *words)
            assert (status, f"`{user}`" in said, "say with --as who you are" in said) == (2, True, True), said
        status, said = await as_user("operator:local", "runs", "kill", "r1", "--as", "local", "--json")
        assert (status, json.loads(said)["status"]) == (0, "aborted")


TAKES = [
    ("doctor",),
    ("runs", "start", "r", "--agent", "a"),
    ("runs", "kill", "r"),
    ("runs", "can-i", "r"),
    ("policy", "bind", "p.yaml", "--run", "r"),
    ("log", "erase", "x.db", "--thread", "t"),
    ("tickets", "ls"),
    ("tickets", "approve", "t"),
    ("tickets", "watch"),
]


@pytest.mark.parametrize("command", TAKES, ids=" ".join)
def test_no_password_is_an_argument(command: tuple[str, ...]) -> None:
    """Everybody on the machine can read the arguments of a command."""
    done = CliRunner().invoke(app, [*command, "--password", "hunter22"])
    assert done.exit_code == 2
    assert "put it into GATED_NATS_PASSWORD, or into a file that --password-file" in " ".join(done.output.split())
    assert "hunter22" not in done.output
    assert "--password " not in CliRunner().invoke(app, [*command[:2], "--help"]).output


def test_no_secret_of_a_provider_is_an_argument() -> None:
    done = CliRunner().invoke(app, ["console", "--oidc-secret", "hunter22"])
    assert (done.exit_code, "GATED_OIDC_SECRET" in done.output, "hunter22" in done.output) == (2, True, False)


def test_a_secret_is_what_its_file_holds(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("of the option\n")
    (tmp_path / "b").write_text("of the environment's file\n")
    both = {"GATED_NATS_PASSWORD": "of the environment", "GATED_NATS_PASSWORD_FILE": str(tmp_path / "b")}
    assert login("", both, password_file=tmp_path / "a").password == "of the option"
    assert login("", both).password == "of the environment"
    assert login("", {"GATED_NATS_PASSWORD_FILE": str(tmp_path / "b")}).password == "of the environment's file"
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(BusError, match="cannot read the secret in"):
            login("", {}, password_file=missing)


async def test_a_gate_with_subjects_of_its_own_is_reached_by_them(tmp_path: Path) -> None:
    write_policy(tmp_path, ASKING)
    async with embedded_server(tmp_path / "bus", USERS, prefix="acme") as running:
        bus = Bus(running.bus.url, running.bus.users)
        async with daemon_on(bus, tmp_path, prefix="acme"):
            nats = ("--nats", bus.url, "--prefix", "acme")
            operator = (*nats, "--password-file", str(held(tmp_path, bus, "operator:local")))
            assert (await gated(tmp_path, "doctor", *operator))[0] == 0
            assert (await gated(tmp_path, "runs", "start", "r1", "--agent", "worker", *operator))[0] == 0
            options = {**bus.credentials("agent", "worker"), "prefix": "acme"}
            async with connect(bus.url, agent="worker", **options) as worker:
                run = worker.run(run="r1", resume=True)
                ticket = (await run.check("read", {}, call="c")).ticket
                ana = (*nats, "--as", "ana", "--password-file", str(held(tmp_path, bus, "approver:ana")))
                status, said = await gated(tmp_path, "tickets", "approve", str(ticket), *ana)
                assert status == 0, said
                assert (await run.resume("c")).decision == "allow"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("start", "a b", "--agent", "x"), "`a b` is no id of a run"),
        (("kill", "a b"), "`a b` is no id of a run"),
        (("can-i", "a b"), "`a b` is no id of a run"),
        (("kill", "r1", "--thread", "t 1"), "`t 1` is no id of a thread"),
    ],
)
async def test_what_is_no_id_is_named_as_what_it_was_given(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    status, said = await gated(tmp_path, "runs", *words)
    assert (status, told in said) == (2, True)
