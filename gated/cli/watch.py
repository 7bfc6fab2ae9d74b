"""`gated tickets watch`: the open tickets live. On a terminal a board with keys, elsewhere a line for everything that happens."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from rich.live import Live
from rich.markup import escape

from gated.cli import ticket_text
from gated.cli.board import Board, Wish
from gated.cli.desk import Desk, DeskError
from gated.cli.output import console, on_one_line, say_json

KEYS: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1bOH": "home",
    "\x1bOF": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
    "\x7f": "backspace",
    "\x08": "backspace",
}
_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
REFRESH: Final = 1.0  # seconds between two screens while nothing happens
RECOUNT: Final = 30.0  # seconds after which the whole list is asked for again


async def watch(desk: Desk, *, json_lines: bool) -> None:
    """Until the person quits, or the process is ended."""
    if json_lines or not (sys.stdin.isatty() and sys.stdout.isatty()):
        await _print_all(desk, json_lines=json_lines)
    else:
        await _show_board(desk)


# --- lines ---------------------------------------------------------------------------------------------------------------


async def _print_all(desk: Desk, *, json_lines: bool) -> None:
    send, receive = anyio.create_memory_object_stream[dict[str, Any]](10_000)
    desk.news = send.send
    for waiting in await desk.tickets():
        _print({"event": "waits", **waiting}, json_lines=json_lines)
    async with receive:
        async for said in receive:
            line = None
            if said["event"] == "opened" and not json_lines:
                with suppress(DeskError):  # what happened is told all the same
                    line = await desk.line(said["ticket"])
            _print({**(line or {}), **said}, json_lines=json_lines)


def _print(said: dict[str, Any], *, json_lines: bool) -> None:
    if json_lines:
        say_json(said)
        sys.stdout.flush()
        return
    text = f"{said['event']:<13} {said['ticket']}"
    if said["event"] in ("waits", "opened") and "agent" in said:
        asked = f"{said['tool']} {ticket_text.preview(said)}"
        text += f"  {said['agent']}  {asked}  {ticket_text.why(said)}  until {said['expires_at'][:19]}Z"
    elif (answer := said.get("details", {}).get("answer")) is not None:
        note = f": {answer['note']}" if answer.get("note") else ""
        text += f"  {said['state']}, {answer['decision']} by {answer['by']}{note}"
    else:
        text += f"  {said['state']}"
    console.print(escape(on_one_line(text)), highlight=False, soft_wrap=True)
    sys.stdout.flush()


# --- the board -------------------------------------------------------------------------------------------------------------


class _Watch:
    """The board, the desk and the screen between them."""

    def __init__(self, desk: Desk, live: Live, tasks: TaskGroup) -> None:
        self.desk, self.live, self.tasks = desk, live, tasks
        self.board = Board(desk.by)

    def draw(self) -> None:
        self.live.update(self.board.screen(console.width, console.height), refresh=True)

    async def hear(self, said: dict[str, Any]) -> None:
        if said["state"] != "pending":
            self.board.drop(said["ticket"], ticket_text.became(said))
            self.draw()
        else:
            self.tasks.start_soon(self._look, said["ticket"])

    async def _look(self, ticket: str) -> None:
        try:
            line = await self.desk.line(ticket)
        except DeskError as error:
            self.board.message = str(error)
        else:
            if line is not None:
                self.board.put(line)
            if line is not None and self.board.page is not None and self.board.page["ticket"] == ticket:
                self.board.page |= line | {"calls": self.board.page["calls"]}
        self.draw()

    async def recount(self) -> None:
        """The whole list again."""
        try:
            lines = {line["ticket"]: line for line in await self.desk.tickets()}
        except DeskError as error:
            self.board.message = str(error)
        else:
            for gone in self.board.lines.keys() - lines.keys():
                self.board.drop(gone, "is no longer open")
            self.board.lines = lines
        self.draw()

    async def tick(self) -> None:
        """Time passes, connections come and go; the list is counted again after each, and now and then."""
        counted = float("-inf")
        while True:
            back = self.board.away and self.desk.connected
            self.board.away = not self.desk.connected
            if back or anyio.current_time() - counted > RECOUNT:
                counted = anyio.current_time()
                self.tasks.start_soon(self.recount)
            self.draw()
            await anyio.sleep(REFRESH)

    async def carry_out(self, wish: Wish) -> None:
        try:
            if wish.kind == "open":
                await self._open(wish.line["ticket"])
            else:
                said = await self.desk.resolve(wish.line, wish.kind, note=wish.note)
                self.board.message = _word(wish.line["ticket"], said)
        except DeskError as error:
            self.board.message = str(error)
        self.draw()

    async def _open(self, ticket: str) -> None:
        found = await self.desk.ticket(ticket)
        if found is None:
            self.board.drop(ticket, "is no longer open")
        else:
            self.board.show(found)


async def _show_board(desk: Desk) -> None:
    with _keyboard() as handle, Live(console=console, screen=True, auto_refresh=False) as live:
        async with anyio.create_task_group() as tasks:
            watching = _Watch(desk, live, tasks)
            desk.news = watching.hear
            tasks.start_soon(watching.tick)
            async for key in _keys(handle):
                wish = watching.board.press(key)
                if wish is not None and wish.kind == "quit":
                    break
                if wish is not None:
                    tasks.start_soon(watching.carry_out, wish)
                watching.draw()
            tasks.cancel_scope.cancel()


def _word(ticket: str, said: dict[str, Any]) -> str:
    if said.get("type") == "refusal":
        return f"not taken: {said['code']}: {said['reason']}"
    return f"{ticket} {ticket_text.became(said)}"


@contextmanager
def _keyboard() -> Iterator[int]:
    """The terminal hands over every key at once, and is left as it was."""
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)
        yield handle
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


async def _keys(handle: int) -> AsyncIterator[str]:
    """Keys by name. A lone escape is the key of that name; sequences that are no key here are passed over."""
    while True:
        await anyio.wait_readable(handle)
        piece = os.read(handle, 1024).decode(errors="replace")
        if not piece:
            return
        for key in _KEY.findall(piece):
            if key in KEYS or len(key) == 1:
                yield KEYS.get(key, key)
