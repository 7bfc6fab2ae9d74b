"""The scope barrier on embeddings: computed by the shell, recorded with the input, read by the core and by every replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from anyio import to_thread
from typer.testing import CliRunner

from gated import wire
from gated.cli import app
from gated.core.policy import load_text
from gated.core.scenario import run_document
from gated.core.scenario.runner import Result
from gated.documents import DocumentError, parse_document
from gated.events import CallDecided, CallId, Embedding, IntentsReceived, RunStarted, Sender, Wanted, unseal
from gated.shell import embedding, policies
from gated.shell.embedding import FAILED, EmbeddingsMissing, embed_all, prepared
from gated.shell.log.open import open_log
from gated.shell.policies import load_document
from shell.live import agent, daemon_on, decided, ears, gate, intents, server, tell, write_policy

TASK = "Read the sales report and write a summary of the quarter for the board"
NEAR = {"query": "quarterly revenue figures"}
FAR = {"iban": "DE02", "amount": 4000}
POLICY = """
version: 1
agents:
  mailer:
    checks: [dcbf]
    dcbf: {scope: {max_drift: 0.85, embeddings: local}}
"""


def results(steps: str, policy: str = POLICY, task: str = TASK) -> list[Result]:
    text = f"policy: p.yaml\nscenarios: [{{name: n, agent: mailer, task: {task!r}, steps: {steps}}}]"
    document = parse_document(text, file="s.yaml")
    return list(run_document(document, lambda name: parse_document(policy, file=name), 0, load_document, prepared))


def failures(steps: str, **more: str) -> list[str]:
    (result,) = results(steps, **more)
    return [f"{failure.step}: {failure.key}" for failure in result.failures]


OFF_TOPIC = "{intent: {tool: bank_transfer, args: {iban: DE02, amount: 4000}}, expect: {decision: deny, barrier: scope}}"
ON_TOPIC = "{intent: {tool: search, args: {query: quarterly revenue figures}}, expect: {decision: allow}}"


def test_what_leaves_the_task_is_denied_and_the_run_goes_on() -> None:
    assert failures(f"[{ON_TOPIC}, {OFF_TOPIC}, {ON_TOPIC}, {OFF_TOPIC}]") == []


def test_without_a_task_or_without_embeddings_it_is_inert() -> None:
    assert failures(f"[{OFF_TOPIC}]", task="") == ["1: decision"]
    assert failures(f"[{OFF_TOPIC}]", policy=POLICY.replace(", embeddings: local", "")) == ["1: decision"]


def test_its_value_is_that_of_the_newest_call() -> None:
    steps = "[{run: {tool: search, args: {query: quarterly revenue figures}}}]"
    text = f"policy: p.yaml\nscenarios: [{{name: n, task: {TASK!r}, steps: {steps}, state: {{barriers: {{scope: 0}}}}}}]"
    document = parse_document(text, file="s.yaml")
    (result,) = run_document(document, lambda name: parse_document(POLICY, file=name), 0, load_document, prepared)
    (failure,) = result.failures
    assert 0.1 < failure.got["scope"] < 0.6


def test_a_child_is_held_to_its_parents_task() -> None:
    policy = POLICY + "  helper: {checks: [dcbf]}\nthreads: {shared_by: [[mailer, helper]]}\n"
    switch = "{switch: {run: r2, thread: r1, agent: helper, parent: r1}}"
    denied = OFF_TOPIC.replace("barrier: scope", "code: dcbf.barrier")
    assert failures(f"[{switch}, {ON_TOPIC}, {denied}]", policy=policy) == []


# --- when there are none ---------------------------------------------------------------------------------------------


def started() -> RunStarted:
    return RunStarted(Sender("agent", "a"), agent="a", task=TASK)  # type: ignore[arg-type]


def test_what_has_no_embedding_because_it_failed_is_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = IntentsReceived(Sender("agent", "a"), (Wanted(CallId("c"), "x"), Wanted(None, refused="ingress.id")))

    def missing() -> None:
        raise EmbeddingsMissing("`wordllama`")

    monkeypatch.setattr(embedding, "embedder", missing)
    task, calls = embed_all([started(), asked])
    assert isinstance(task, RunStarted)
    assert task.embedding == FAILED
    assert isinstance(calls, IntentsReceived)
    assert [wanted.embedding for wanted in calls.calls] == [FAILED, None]
    monkeypatch.undo()
    monkeypatch.setattr(embedding.Embedder, "embed", lambda self, texts: 1 // 0)
    assert embed_all([started()])[0] == task


def test_a_call_that_cannot_be_compared_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    real = embedding.Embedder.embed

    def of_another_model(self: embedding.Embedder, texts: list[str]) -> list[Embedding | None]:
        found = real(self, texts)
        return found if texts == [TASK] else [FAILED for _ in texts]

    monkeypatch.setattr(embedding.Embedder, "embed", of_another_model)
    assert failures(f"[{ON_TOPIC}]") == ["1: decision"]


def test_a_policy_that_wants_them_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise EmbeddingsMissing("`wordllama`")

    monkeypatch.setattr(policies, "require", missing)
    with pytest.raises(DocumentError, match=r"p.yaml:6: embeddings need `wordllama`: install `gated\[embeddings\]`"):
        load_document(parse_document(POLICY, file="p.yaml"))
    assert load_text(POLICY, "p.yaml").embeds  # a recorded one is replayed without


@pytest.mark.parametrize("text", [POLICY.replace("[dcbf]", "[privilege]"), POLICY.replace("{scope:", "{remove: [scope], scope:")])
def test_who_does_not_look_does_not_need_them(text: str) -> None:
    assert not load_text(text, "p.yaml").embeds


# --- a real gate -----------------------------------------------------------------------------------------------------


async def test_a_daemon_records_them_and_a_replay_reads_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.user("agent", "mailer") as mailer:
        heard = await ears(mailer, "mailer")
        await tell(mailer, agent("mailer"), "r", wire.RunStart(task=TASK))
        await tell(mailer, agent("mailer"), "r", intents(("near", "search", NEAR), ("far", "bank_transfer", FAR)))
        await heard.count(3)
    monkeypatch.setattr(embedding.Embedder, "embed", lambda self, texts: 1 // 0)
    found = await decided(live.log)
    assert {call: made[0].decision for call, made in found.items()} == {"near": "allow", "far": "deny"}
    (finding,) = found["far"][0].findings
    assert [breach.barrier for breach in finding.breaches] == ["scope"]
    async with open_log(str(live.log)) as log:
        bodies = [unseal(record) async for _, record in log.read_all()]
    opened, asked = bodies[0].observation, bodies[1].observation
    assert isinstance(opened, RunStarted)
    assert opened.embedding is not None
    assert isinstance(asked, IntentsReceived)
    assert all(wanted.embedding is not None and len(wanted.embedding.vector) == 256 for wanted in asked.calls)
    assert all(isinstance(decision, CallDecided) for decision in bodies[1].decisions)


async def test_a_run_of_a_policy_before_is_held_to_its_task_also_after_a_restart(tmp_path: Path) -> None:
    """The new daemon had not heard of the old policy when the first words of the thread came: they had no embeddings."""
    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), bus.user("agent", "mailer") as mailer:
        heard = await ears(mailer, "mailer")
        async with daemon_on(bus, tmp_path):
            await tell(mailer, agent("mailer"), "r", wire.RunStart(task=TASK))
            await heard.count(1)
        write_policy(tmp_path, POLICY.replace(", embeddings: local", ""))
        for number in range(2):  # which the daemon takes together
            await tell(mailer, agent("mailer"), "r", intents((f"far{number}", "bank_transfer", {**FAR, "n": number})))
        async with daemon_on(bus, tmp_path):
            verdicts = (await heard.count(3))[1:]
    assert [(said.call, said.code) for said in verdicts if isinstance(said, wire.Verdict)] == [
        ("far0", "dcbf.barrier"),
        ("far1", "dcbf.barrier"),
    ]
    await decided(tmp_path / "log.db")


async def test_a_call_that_nobody_made_is_explained_with_its_embedding(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.user("agent", "mailer") as mailer:
        heard = await ears(mailer, "mailer")
        await tell(mailer, agent("mailer"), "r", wire.RunStart(task=TASK))
        await heard.count(1)
    command = ["policy", "explain", "--log", str(live.log), "--run", "r", "--json", "--tool"]
    for tool, args, decision in (("search", NEAR, "allow"), ("bank_transfer", FAR, "deny")):
        done = await to_thread.run_sync(CliRunner().invoke, app, [*command, tool, "--args", json.dumps(args)])
        assert json.loads(done.stdout)["verdict"]["decision"] == decision, done.stdout
