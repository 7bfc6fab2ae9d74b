"""`gated policy train-barrier`: a learned barrier out of recorded runs, exported only where it holds on runs it has not seen."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from gated.cli.output import NO, Json, console, errors, fail, run_async, say, say_json, table
from gated.cli.progress import progressed
from gated.cli.which_log import Folder, LogOption, log_of
from gated.core.curves import Asked, Recorded
from gated.learning.examples import Signs, examples
from gated.learning.training import Plan, TooLittle, Trained, train
from gated.shell.log.anchors import archived_states
from gated.shell.log.following import fed
from gated.shell.log.open import open_log, policies_of
from gated.shell.onnx_files import ModelError, write_model
from gated.units import some

SHOWN = 20
MAX_WIDTH = 64


def train_barrier(
    log_: LogOption = None,
    data: Folder = None,
    out: Annotated[Path, typer.Option("--out", help="The ONNX file to write.")] = Path("barrier.onnx"),
    agent: Annotated[str | None, typer.Option(help="Whose runs; needed where the log has several agents.")] = None,
    unsafe: Annotated[
        list[str] | None,
        typer.Option(help="What makes a state unsafe: denied, failed, aborted, label:KEY=VALUE. Default: denied and failed."),
    ] = None,
    features: Annotated[str, typer.Option(help="Features of the state, with commas between; absent: chosen by the log.")] = "",
    hidden: Annotated[str, typer.Option(help="Widths of the hidden layers.")] = "16,8",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of fitting, at most.")] = 3000,
    seed: Annotated[int, typer.Option(min=0, help="Draws the weights to begin with.")] = 0,
    holdout: Annotated[float, typer.Option(min=0.05, max=0.9, help="The share of runs to check by, not to learn from.")] = 0.25,
    json_: Json = False,
) -> None:
    """Fit a small network to recorded safe and unsafe states, check it on held-out runs, and write it as ONNX.

    Nothing is written (exit status 1) where it would refuse a held-out call that was safe, or takes a held-out unsafe state
    for safe.
    """
    try:
        plan = Plan(_words(features), _widths(hidden), rounds, seed, holdout)
        signs = Signs.read(unsafe or ["denied", "failed"])
    except ValueError as error:
        fail(str(error))
    log = log_of(log_, data)
    asked, endings = run_async(lambda: _recorded(log, agent))
    _one_agent(asked, agent)
    try:
        with errors.status("fitting"):
            trained = train(examples(asked, endings, signs), plan)
        raw = write_model(trained.features, trained.fitted.layers)
    except TooLittle as error:
        fail(str(error), NO)
    except ImportError as error:
        fail(f"learned barriers need `{error.name}`: install `gated[neural]`")
    except (ModelError, ValueError) as error:
        fail(str(error))
    digest = hashlib.sha256(raw).hexdigest()
    if not trained.why:
        _write(out, raw)
    if json_:
        say_json(_json(trained, out, digest))
    else:
        _print(trained, out, digest)
    if trained.why:
        raise typer.Exit(NO)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _widths(text: str) -> tuple[int, ...]:
    words = _words(text)
    if not all(word.isdecimal() and 0 < int(word) <= MAX_WIDTH for word in words):
        raise ValueError(f"`--hidden {text}` is not a list of widths from 1 to {MAX_WIDTH}")
    return tuple(map(int, words))


async def _recorded(name: str, agent: str | None) -> tuple[list[Asked], dict[tuple[str, str], str]]:
    asked: list[Asked] = []
    async with open_log(name) as opened:
        recorded = Recorded(await policies_of(opened), None, await archived_states(opened), whole=True)
        async for found in fed(opened, progressed(opened, "reading"), lambda record: list(recorded.feed(record))):
            asked += [one for one in found if agent in (None, one.agent)]
    return asked, {(thread, run): status for (thread, run), status in recorded.ended.items()}


def _one_agent(asked: Sequence[Asked], agent: str | None) -> None:
    names = sorted({one.agent for one in asked})
    if not names:
        fail("the log has no decided call" + (f" of `{agent}`" if agent else ""), NO)
    if len(names) > 1:
        fail(f"the log has calls of {', '.join(f'`{name}`' for name in names)}: say whose with `--agent`")


def _write(path: Path, raw: bytes) -> None:
    """Whole or not at all."""
    try:
        half = path.with_name(f"{path.name}.part")
        half.write_bytes(raw)
        os.replace(half, path)
    except OSError as error:
        fail(f"`{path}` cannot be written: {error.strerror}")


def _print(trained: Trained, out: Path, digest: str) -> None:
    table(("states", "safe", "unsafe"), [("learned from", *trained.learned), ("held out", *trained.held)])
    say(f"{some(len(trained.features), 'feature')}: {escape(', '.join(trained.features))}")
    say(f"fitted in {some(trained.fitted.rounds, 'round')}, loss {trained.fitted.loss:.3g}")
    if trained.contradictions:
        say(f"[yellow]{some(trained.contradictions, 'state')} both safe and unsafe[/], as far as these features show")
    report = trained.invariance
    say(f"held-out safe calls: {report['total_checks']} checked, {report['violations']} would be refused")
    for item in trained.refused[:SHOWN]:
        breach = item.breach
        value = f"{breach.now:.4g} -> {breach.next:.4g} (at least {breach.bound:.4g})"
        say(f"  [red]refused[/] {escape(item.run)} {escape(item.call)} {escape(item.tool)}: {value}")
    say(f"held-out unsafe states: {trained.held[1]}, {len(trained.missed)} taken for safe")
    for missed in trained.missed[:SHOWN]:
        say(f"  [red]taken for safe[/] {escape(missed.run)} {escape(missed.call)} {escape(missed.tool)}: {missed.value:.4g}")
    if trained.why:
        say(f"[red]not written[/]: {escape(str(trained.why))}")
    else:
        say(f"[green]wrote[/] {escape(str(out))}; in the policy:")
        console.print(
            f"  dcbf: {{neural: {{model: {out.name}, sha256: {digest}}}}}", markup=False, highlight=False, soft_wrap=True
        )


def _json(trained: Trained, out: Path, digest: str) -> dict[str, Any]:
    return {
        "written": None if trained.why else str(out),
        "sha256": None if trained.why else digest,
        "why": trained.why,
        "features": trained.features,
        "learned": {"safe": trained.learned[0], "unsafe": trained.learned[1]},
        "held_out": {"safe": trained.held[0], "unsafe": trained.held[1]},
        "contradictions": trained.contradictions,
        "rounds": trained.fitted.rounds,
        "loss": trained.fitted.loss,
        "invariance": trained.invariance,
        "refused": trained.refused,
        "missed": trained.missed,
    }
