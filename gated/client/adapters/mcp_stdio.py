"""A proxy before an MCP server on standard input and output: any host, any server, and every tool call through the gate.

It needs no MCP package: of the protocol it knows JSON-RPC lines and the method `tools/call`; all else passes through.
INVARIANT: what is passed on is what was parsed, strictly, and written again: no line means one thing here and another there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gated import strict_json
from gated.client.adapters import for_model, text_of
from gated.client.calls import content_of
from gated.client.errors import GateError, Refused
from gated.client.run import Run, Wait
from gated.events import Reminder

LINE: Final = 64 * 2**20  # bytes of a message, at most
LIMITS: Final = strict_json.Limits(payload=LINE, depth=200, values=5_000_000, key=65_536)

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Proxy:
    """Between `to_host` and `to_server`; a call that was let through is reported when the server answers it."""

    def __init__(self, run: Run, to_host: Send, to_server: Send, *, prefix: str = "", wait: Wait = False) -> None:
        self._run, self._to_host, self._to_server = run, to_host, to_server
        self._prefix, self._wait = prefix, wait
        self._asking: dict[str, asyncio.Task[None]] = {}  # at the gate
        self._running: dict[str, str] = {}  # at the server: the request, and the call that it is

    # --- from the host -----------------------------------------------------------------------------------------------

    async def from_host(self, line: bytes) -> None:
        """Pass a line on, ask the gate for it, or say that it is no message."""
        try:
            said = strict_json.parse_value(line, LIMITS)
        except strict_json.BadJson as error:
            await self._to_host(_error(None, -32700, str(error)))
            return
        for message in said if isinstance(said, list) else [said]:
            await self._hear_host(message)

    async def _hear_host(self, message: Any) -> None:
        if not isinstance(message, dict):
            await self._to_host(_error(None, -32600, "a message is a JSON object"))
        elif message.get("method") == "tools/call":
            await self._hear_call(message)
        elif message.get("method") == "notifications/cancelled":
            await self._cancelled(message)
        else:
            await self._to_server(message)

    async def _hear_call(self, message: Message) -> None:
        key = _key(message)
        if key is None or key in self._asking or key in self._running:
            await self._to_host(_error(message.get("id"), -32600, "a call needs an id of its own"))
            return
        task = self._asking[key] = asyncio.create_task(self._ask(key, message))
        task.add_done_callback(lambda _: self._asking.pop(key, None))

    async def _ask(self, key: str, message: Message) -> None:
        params = message.get("params")
        try:
            tool, args = _wanted(params)
            admitted = await self._run.admit(f"{self._prefix}{tool}", args, wait=self._wait)
        except GateError as error:
            await self._to_host(_result(message, for_model(error), error=True))
            return
        if not admitted.execute:
            await self._to_host(_result(message, text_of(admitted.result)))
            return
        self._running[key] = admitted.call
        self._asking.pop(key, None)  # from here on a cancellation is the server's to hear
        await self._to_server({**message, "params": {**(params or {}), "arguments": dict(admitted.args)}})

    async def _cancelled(self, message: Message) -> None:
        """What is still at the gate never reaches the server; what is there already ends as an error."""
        params = message.get("params")
        key = _key({"id": params.get("requestId")}) if isinstance(params, dict) else None
        asking = self._asking.get(key or "")
        if asking is not None:
            asking.cancel()
            return
        await self._to_server(message)
        if key is not None and key in self._running:
            await self._report(self._running.pop(key), "error", "cancelled by the host")

    # --- from the server ---------------------------------------------------------------------------------------------

    async def from_server(self, line: bytes) -> None:
        """Pass an answer on once the gate knows of it. What is no JSON is passed on by no proxy and read by no host."""
        try:
            said = strict_json.parse_value(line, LIMITS)
        except strict_json.BadJson:
            return
        for message in said if isinstance(said, list) else [said]:
            if isinstance(message, dict):
                await self._hear_server(message)

    async def _hear_server(self, message: Message) -> None:
        key = None if "method" in message else _key(message)
        call = None if key is None else self._running.pop(key, None)
        if call is not None:
            result = message.get("result")
            failed = "error" in message or (isinstance(result, dict) and result.get("isError") is True)
            content = message.get("error") if "error" in message else _content(result)
            reminders = await self._report(call, "error" if failed else "success", content)
            message = _reminding(message, reminders)
        await self._to_host(message)

    async def ended(self, why: str) -> None:
        """The server or the host is gone: nothing is asked any more, and what was running ended as an error."""
        for task in list(self._asking.values()):
            task.cancel()
        while self._running:
            await self._report(self._running.popitem()[1], "error", why)

    async def _report(self, call: str, status: Any, content: Any) -> tuple[Reminder, ...]:
        """The reminders that the gate answers with."""
        try:
            return (await self._run.report(call, status, content=content_of(content))).reminders
        except GateError:
            return ()  # it ran, and the host must have its answer; the call lapses by its timeout


def _wanted(params: Any) -> tuple[str, Message]:
    """Raises `Refused`."""
    name = params.get("name") if isinstance(params, dict) else None
    args = (params.get("arguments") or {}) if isinstance(params, dict) else None
    if not isinstance(name, str) or not isinstance(args, dict):
        raise Refused("ingress.shape", "a call names a tool and gives its arguments as an object")
    return name, args


def _key(message: Message) -> str | None:
    number = message.get("id")
    return json.dumps(number) if isinstance(number, str | int) and not isinstance(number, bool) else None


def _reminding(message: Message, reminders: tuple[Reminder, ...]) -> Message:
    """An answer with reminders for the model behind what the tool said: a host has no other place for them."""
    result = message.get("result")
    said = result.get("content") if isinstance(result, dict) else None
    if not reminders or not isinstance(result, dict) or not isinstance(said, list):
        return message
    content = [*said, *({"type": "text", "text": reminder.content} for reminder in reminders)]
    return {**message, "result": {**result, "content": content}}


def _content(result: Any) -> Any:
    return result.get("content") if isinstance(result, dict) else result


def _result(message: Message, text: str, *, error: bool = False) -> Message:
    """`resultType` is wanted by newer hosts and passed over by older ones."""
    said = {"content": [{"type": "text", "text": text}], "isError": error, "resultType": "complete"}
    return {"jsonrpc": "2.0", "id": message.get("id"), "result": said}


def _error(number: Any, code: int, text: str) -> Message:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}
