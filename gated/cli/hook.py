"""`gated hook …`: the gate as a hook of hosts that run a command before each tool.

INVARIANT: a hook that cannot answer blocks. Claude Code takes status 2 for that, and any other failure for no objection.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer

from gated.cli.help import group
from gated.cli.shared import of_environment
from gated.client import connect
from gated.client.adapters import claude_code
from gated.client.adapters.claude_code import Answer, Event

app = group("The gate as a hook of other hosts.", "gated hook claude-code --agent coder")

BLOCK = 2


@app.callback()
def hooks() -> None:
    """The gate as a hook of other hosts."""


@app.command(
    "claude-code",
    epilog="Example: gated hook claude-code --agent coder, in settings.json for PreToolUse, PostToolUse, PostToolUseFailure",
)
def claude_code_hook(
    agent: Annotated[str, typer.Option(help="The agent of the policy that the host is.")],
    data: Annotated[Path, typer.Option(help="Folder of the running gate.")] = Path(".gated"),
    nats: Annotated[str | None, typer.Option("--nats", envvar="GATED_NATS_URL", help="A NATS server of yours instead.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for people; less than the hook's own timeout.")] = 0,
    allow: Annotated[bool, typer.Option(help="An allow also satisfies the host's own permissions.")] = False,
) -> None:
    """Answer one event of Claude Code, from standard input."""
    try:
        event = claude_code.parse(sys.stdin.read())
        said = anyio.run(_answer, event, agent, data, nats, wait, allow)
    except BaseException as error:
        sys.stderr.write(f"gated cannot decide, so the call does not run: {error or type(error).__name__}\n")
        raise typer.Exit(BLOCK) from None
    if said:
        sys.stdout.write(json.dumps(said) + "\n")


async def _answer(event: Event, agent: str, data: Path, nats: str | None, wait: float, allow: bool) -> Answer:
    async with connect(nats, agent=agent, data=data, **of_environment(nats)) as gate:
        return await claude_code.answer(gate, event, wait=wait or False, on_allow="allow" if allow else "pass")
