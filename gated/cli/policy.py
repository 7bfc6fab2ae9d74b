"""`gated policy …`: for those who write policies."""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from gated import strict_json
from gated.cli.barriers import barriers
from gated.cli.check import check
from gated.cli.diff import diff
from gated.cli.explain import explain_call
from gated.cli.help import group
from gated.cli.init import init
from gated.cli.output import NO, Json, console, fail, run_async, say, say_json, short, writing
from gated.cli.reading import POLICY, PolicyArgument, compiled, document_of
from gated.cli.running import bind
from gated.cli.suggest import suggest_policy
from gated.cli.train_barrier import train_barrier
from gated.core.order.diagram import mermaid, svg
from gated.core.order.machines import Machine, compile_machine
from gated.core.order.patterns import PatternError, compile_pattern
from gated.core.policy import Policy
from gated.core.scenario import Result, run_document
from gated.core.schema import policy_schema
from gated.documents import Document
from gated.shell.embedding import prepared
from gated.shell.policies import load_document, read_document, scenario_documents

app = group("Check, test and look at a policy.", "gated policy check policy.yaml")


def run_scenarios(
    files: Annotated[list[Path], typer.Argument(help="Scenario files, or folders of them.", metavar="FILE…")],
    seed: Annotated[int, typer.Option(help="Draws the interleavings of concurrent steps.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object a line, for each scenario.")] = False,
) -> None:
    """Run scenario files; of a folder, all that are in it. Exit status 0: all hold; 1: one fails; 2: a file cannot be read."""

    async def work() -> list[Result]:
        results: list[Result] = []
        for document in [document for file in files for document in scenario_documents(file)]:
            for result in run_document(document, partial(_beside, Path(document.file)), seed, load_document, prepared):
                results.append(result)
                if json_:
                    say_json(results[-1])
                else:
                    _print_result(results[-1])
        return results

    results: list[Result] = run_async(work)
    failed = sum(not result.ok for result in results)
    if not json_:
        say(f"{len(results) - failed} passed, {failed} failed")
    if failed:
        raise typer.Exit(NO)


def _beside(file: Path, name: str) -> Document:
    return read_document(file.parent / name)


def _print_result(result: Result) -> None:
    if result.ok:
        return
    say(f"[red]failed[/] {escape(result.file)}: {escape(result.scenario)} (seed {result.seed})")
    for failure in result.failures:
        say(f"  step {failure.step}: {escape(failure.key)}")
        say(f"    expected {escape(_short(failure.expected))}")
        say(f"    got      {escape(_short(failure.got))}")
        for finding in failure.findings:
            say(f"    [dim]{finding.stage} {finding.outcome} {finding.code}: {escape(finding.reason)}[/]")


def _short(value: Any) -> str:
    return short(json.dumps(msgspec.to_builtins(value, enc_hook=str), ensure_ascii=False), 400)


def schema() -> None:
    """The JSON Schema of the policy file, for editors."""
    sys.stdout.write(json.dumps(policy_schema(), indent=2) + "\n")


def match(
    pattern: Annotated[str, typer.Argument(help="A tool-call pattern.")],
    tool: Annotated[str, typer.Option(help="The tool's name.")],
    args: Annotated[str, typer.Option(help="The arguments, as JSON.")] = "{}",
    json_: Json = False,
) -> None:
    """Does a pattern match a call, and which part of it does not? Exit status 0: it matches; 1: it does not."""
    try:
        compiled, given = compile_pattern(pattern), strict_json.parse(args.encode())
        if not isinstance(given, dict):
            raise ValueError("the arguments must be one JSON object")
    except PatternError as error:
        fail(str(error))
    except ValueError as error:
        fail(f"--args: {error}")
    exact, wide = compiled.matches(tool, given), compiled.matches_wide(tool, given)
    if json_:
        say_json(
            {
                "exact": exact,
                "wide": wide,
                "allowed": compiled.matches_allowed(tool, given),
                "parts": compiled.explain(tool, given),
            }
        )
    else:
        for line in compiled.explain(tool, given):
            say(escape(line))
        say(f"exact {_yes(exact)} (allows, advances)  wide {_yes(wide)} (forbids, asks, restricts)")
    if not exact:
        raise typer.Exit(NO)


def _yes(value: bool) -> str:
    return "[green]yes[/]" if value else "[red]no[/]"


def diagram(
    policy: PolicyArgument = POLICY,
    svg_folder: Annotated[Path | None, typer.Option("--svg", help="Write an SVG file for each machine into this folder.")] = None,
) -> None:
    """Draw every machine of a policy: Mermaid on standard output, or SVG files."""
    machines = _titled(compiled(document_of(policy)))
    if not machines:
        fail("the policy has no machines", NO)
    taken: set[str] = set()
    for title, machine in machines.items():
        if svg_folder is None:
            console.print(f"%% {title}\n{mermaid(machine)}", markup=False, highlight=False, soft_wrap=True)
            continue
        target = svg_folder / f"{_file_name(title, taken)}.svg"
        with writing():
            svg_folder.mkdir(parents=True, exist_ok=True)
            target.write_text(svg(machine))
        say(f"wrote {escape(str(target))}")


def _titled(policy: Policy) -> dict[str, Machine]:
    """Every machine of a policy: its own, and those of agents, with the agent where several have one of that name."""
    base = {entry.name: compile_machine(entry) for entry in policy.entry.machines}
    own = {(m.name, m.entry): (str(agent), m) for agent, p in policy.agents.items() for m in p.machines.machines}
    several = Counter(name for name, _ in own)
    own_titled = {
        f"{name} ({agent})" if several[name] > 1 else name: machine
        for (name, _), (agent, machine) in own.items()
        if name not in base
    }
    return {**base, **own_titled}


def _file_name(title: str, taken: set[str]) -> str:
    """What can be a file's name everywhere, and is no other's."""
    plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in title)
    name = next(n for n in chain((plain,), (f"{plain}-{number}" for number in count(2))) if n.casefold() not in taken)
    taken.add(name.casefold())
    return name


# In the order in which a policy is written, tried, understood and kept.
for _name, _command, _example in (
    ("init", init, "gated policy init --template coding-agent my-agent/"),
    ("check", check, "gated policy check"),
    ("test", run_scenarios, "gated policy test tests/*.yaml"),
    ("match", match, """gated policy match 'Bash(npm *)' --tool Bash --args '{"command": "npm ci"}'"""),
    ("explain", explain_call, "gated policy explain --run r1 --call c3"),
    ("diff", diff, "gated policy diff old.yaml new.yaml --log .gated/log.db --fail-on"),
    ("suggest", suggest_policy, "gated policy suggest --out policy.yaml"),
    ("bind", bind, "gated policy bind --now --run r1"),
    ("schema", schema, "gated policy schema > policy.schema.json"),
    ("diagram", diagram, "gated policy diagram --svg diagrams/"),
    ("barriers", barriers, "gated policy barriers --svg barriers.svg"),
    ("train-barrier", train_barrier, "gated policy train-barrier --agent mailer --out calm.onnx"),
):
    app.command(_name, epilog=f"Example: {_example}")(_command)
