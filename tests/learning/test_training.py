"""A learned barrier is exported only where it holds on runs it has not seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.command import gated
from gated.core.scenario import run_document
from gated.documents import parse_document
from gated.learning.examples import Signs, examples
from gated.learning.fitting import GAP, Data, fit
from gated.learning.training import Plan, TooLittle, train
from gated.shell.onnx_files import read_model
from gated.shell.policies import load_document, read_document
from learning.runs import asked_of, worked, write_log

PLAN = Plan(features=("count.send_email", "steps"), hidden=(6,), rounds=2000)


def test_a_rule_that_the_features_show_is_learned() -> None:
    asked, endings = asked_of(worked(60))
    trained = train(examples(asked, endings, Signs()), PLAN)
    assert (trained.why, trained.refused, trained.missed, trained.contradictions) == ("", (), (), 0)
    assert trained.fitted.loss == 0
    assert trained.invariance["forward_invariant"]
    assert trained.invariance["total_checks"] == trained.held[0] > 20


def test_a_rule_that_the_features_do_not_show_is_refused() -> None:
    asked, endings = asked_of(worked(60))
    trained = train(examples(asked, endings, Signs()), Plan(features=("steps",), hidden=(6,), rounds=200))
    assert trained.why
    assert trained.contradictions
    assert trained.refused or trained.missed


def test_the_same_log_gives_the_same_network() -> None:
    asked, endings = asked_of(worked(20))
    some = examples(asked, endings, Signs())
    plan = Plan(features=("count.send_email",), hidden=(4,), rounds=50)
    assert train(some, plan).fitted == train(some, plan).fitted
    assert train(some, Plan(features=("count.send_email",), hidden=(4,), rounds=50, seed=1)).fitted != train(some, plan).fitted


@pytest.mark.parametrize(("runs", "signs"), [(20, Signs(denied=False)), (1, Signs())])
def test_what_is_too_little(runs: int, signs: Signs) -> None:
    asked, endings = asked_of(worked(runs))
    with pytest.raises(TooLittle, match=r"there is no (un)?safe state among the runs"):
        train(examples(asked, endings, signs), PLAN)


def test_fitting_leaves_a_gap_on_both_sides() -> None:
    safe, unsafe = [(float(n),) for n in range(4)], [(float(n),) for n in range(5, 9)]
    fitted = fit(Data(safe, unsafe, safe[:3], safe[1:]), (), 1.0, 3000, 0)
    (layer,) = fitted.layers
    assert fitted.loss == 0
    values = [layer["weights"][0][0] * x + layer["bias"][0] for (x,) in (*safe, *unsafe)]
    assert min(values[:4]) >= GAP - 1e-5
    assert max(values[4:]) <= -GAP + 1e-5


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def log(tmp_path: Path) -> Path:
    await write_log(worked(60), tmp_path / "log.db")
    return tmp_path / "log.db"


def test_what_holds_is_written_and_decides(log: Path, tmp_path: Path) -> None:
    """Learned from mails that were denied, it denies them where the barrier that did is gone."""
    options = ("--features", "count.send_email,steps", "--hidden", "6")
    status, text, _ = gated("policy", "train-barrier", "--log", log, "--out", tmp_path / "calm.onnx", *options, "--json")
    found = json.loads(text)
    assert (status, found["why"], found["invariance"]["violations"]) == (0, "", 0)
    assert read_model(tmp_path / "calm.onnx").features == ("count.send_email", "steps")
    rules = f"{{remove: [privacy], neural: {{model: calm.onnx, sha256: {found['sha256']}}}}}"
    scenario = f"""
policy: {{version: 1, agents: {{a: {{checks: [dcbf], dcbf: {rules}}}}}}}
scenarios:
  - name: the third mail
    steps:
      - {{run: {{tool: send_email, args: {{}}}}}}
      - {{run: {{tool: search, args: {{}}}}}}
      - {{run: {{tool: send_email, args: {{}}}}}}
      - {{intent: {{tool: send_email, args: {{}}}}, expect: {{decision: deny, code: dcbf.barrier, barrier: neural}}}}
      - {{intent: {{tool: search, args: {{}}}}, expect: {{decision: allow}}}}
"""
    document = parse_document(scenario, file=str(tmp_path / "s.yaml"))
    (result,) = run_document(document, lambda name: read_document(Path(name)), 0, load_document)
    assert result.failures == ()


def test_what_violates_is_not_written(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "calm.onnx"
    status, text, _ = gated("policy", "train-barrier", "--log", log, "--out", out, "--features", "steps", "--rounds", "100")
    assert status == 1
    assert not out.exists()
    assert "not written: it " in text
    assert "refused run" in text or "taken for safe run" in text


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--features", "stps"), 2, "there is no feature `stps`"),
        (("--unsafe", "dnied"), 2, "`dnied` is no sign of an unsafe state"),
        (("--hidden", "many"), 2, "`--hidden many` is not a list of widths"),
        (("--agent", "nobody"), 1, "the log has no decided call of `nobody`"),
        (("--unsafe", "aborted"), 1, "there is no unsafe state among the runs"),
    ],
)
def test_what_cannot_be_done_says_why(log: Path, options: tuple[str, ...], status: int, message: str) -> None:
    found, _, errors = gated("policy", "train-barrier", "--log", log, *options)
    assert (found, message in errors) == (status, True), errors
