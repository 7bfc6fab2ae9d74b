"""docs/story.svg: what an agent asked under the policy of the README, as `gated runs show` tells it.

Run it with `scripts/pictures`. Everything in the picture happens: a gate is started, an agent asks it, a person answers.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from demo import start_gate, until_up
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from gated.client import Denied, Run, connect

ROOT = Path(__file__).parents[2]
GATED = [sys.executable, "-m", "gated"]
WIDTH = 104
FONT_FACE = re.compile(r" *@font-face \{\{.*?\n *\}\}\n", re.DOTALL)  # fonts of another host

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("query_metrics", {"table": "analytics.orders"}),
    ("query_metrics", {"table": "hr.salaries"}),
    ("Write", {"file_path": "report.md"}),
    ("Read", {"file_path": "report.md"}),
    ("Write", {"file_path": "report.md"}),
    ("mcp__github__delete_repo", {"name": "orders"}),
    ("refund", {"amount": 1200}),
    ("refund", {"amount": 250}),
]


def policy() -> str:
    """That of the README."""
    (found,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


async def tell(folder: Path) -> None:
    """Leaves the log of the run `report` in `folder`."""
    (folder / "policy.yaml").write_text(policy())
    data = folder / ".gated"
    data.mkdir()
    daemon = start_gate(data, folder / "policy.yaml")
    try:
        await until_up(data, daemon)
        async with connect(agent="analyst", data=data) as gate, gate.run(task="Which orders are late?", run="report") as run:
            for number, (tool, args) in enumerate(CALLS, 1):
                await ask(run, f"c{number}", tool, args, folder)
    finally:
        daemon.terminate()
        await asyncio.to_thread(daemon.wait, 20)


async def ask(run: Run, call: str, tool: str, args: dict[str, Any], folder: Path) -> None:
    """One call; where it waits for a person, bob approves it."""
    verdict = await run.check(tool, args, call=call)
    if verdict.decision == "suspend":
        answer = [*GATED, "tickets", "approve", str(verdict.ticket), "--as", "bob", "--note", "seen the invoice"]
        await asyncio.to_thread(subprocess.run, answer, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    try:
        await run.call(tool, args, lambda **given: "done", call=call, wait=True)
    except Denied:
        return


def terminal(folder: Path, *commands: str) -> Console:
    """What a person sees who types these commands."""
    seen = Console(record=True, width=WIDTH, file=io.StringIO())
    colours = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    for command in commands:
        said = subprocess.run(
            [*GATED, *command.split()[1:]], cwd=folder, env=colours, check=True, capture_output=True, text=True
        ).stdout
        seen.print(Text.assemble(("$ ", "dim"), (command, "bold")))
        seen.print(Text.from_ansi(said.rstrip()), soft_wrap=True)
    return seen


def picture(folder: Path) -> str:
    seen = terminal(folder, "gated runs show report", "gated replay")
    return seen.export_svg(title="what happened", code_format=FONT_FACE.sub("", CONSOLE_SVG_FORMAT), unique_id="story")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(tell(Path(made)))
        Path(sys.argv[1]).write_text(picture(Path(made)))
