"""MCP: a client session whose tools are called through the gate (extra `gated[mcp]`).

async with ClientSession(read, write) as session:
    tools = GatedSession(session, run, prefix="mcp__github__")
    result = await tools.call_tool("create_issue", {"title": "…"})
"""

from __future__ import annotations

from typing import Any, Protocol

from mcp.types import CallToolResult, TextContent

from gated.client.adapters import NOT_RUN, for_model, text_of
from gated.client.run import Run, Wait


class Session(Protocol):
    """What is gated: `mcp.ClientSession`, `mcp.Client` or anything that calls tools as they do."""

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None, /) -> Any: ...


class GatedSession:
    """Calls tools of a session through the gate. What is denied is a result with `is_error`, which models read.

    `prefix` stands before each tool's name in the policy, so that two servers' tools can be told apart. Everything else of the
    session is its own.
    """

    def __init__(self, session: Session, run: Run, *, prefix: str = "", wait: Wait = False) -> None:
        self._session, self._run, self._prefix, self._wait = session, run, prefix, wait

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def session(self) -> GatedSession:
        """That of an `mcp.Client`, behind the same gate."""
        return GatedSession(self._session.session, self._run, prefix=self._prefix, wait=self._wait)  # type: ignore[attr-defined]

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None, *more: Any, **how: Any) -> CallToolResult:
        """As the session's own; what a server wants first (`allow_input_required`) is an outcome, and the next try another call.

        Raises `Unreported` where the tool ran and the gate did not take its outcome.
        """
        try:
            admitted = await self._run.admit(f"{self._prefix}{name}", arguments or {}, wait=self._wait)
        except NOT_RUN as error:
            return _said(for_model(error), error=True)
        if not admitted.execute:
            return _said(text_of(admitted.result))
        try:
            result: CallToolResult = await self._session.call_tool(name, dict(admitted.args), *more, **how)
        except BaseException as error:
            await self._run.failed(admitted.call, error)
            raise
        said = result.model_dump(mode="json", exclude_none=True)
        content = said.get("content", said)
        if getattr(result, "is_error", False):
            await self._run.failed(admitted.call, content)
        else:
            await self._run.succeeded(admitted.call, content)
        return result


def _said(text: str, *, error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=error)
