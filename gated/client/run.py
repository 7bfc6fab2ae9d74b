"""One run of an agent: checks, guarded tools, outcomes, the end."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct

from gated import wire
from gated.client.errors import GateUnavailable, Refused, error_of
from gated.events import Reminder, RunId, Sender, Status, ThreadId
from gated.wire import Origin, Refusal, ReminderMessage, RunStatus, Verdict, WantedCall

if TYPE_CHECKING:
    from gated.client.gate import Gate

_PARENT: ContextVar[str | None] = ContextVar("gated_parent", default=None)

END_SECONDS = 2.0  # how long a leaving block waits for the gate to hear of its abort


class Call(NamedTuple):
    """One call of a batch."""

    tool: str
    args: Mapping[str, Any] = {}
    cost_usd: float | None = None
    id: str | None = None
    parent: str | None = None


class Outcome(Struct, frozen=True):
    """The gate's acknowledgement of an outcome. `ungated`: the call never had an allow verdict."""

    call: str
    reminders: tuple[Reminder, ...] = ()
    ungated: bool = False

    def messages(self) -> list[dict[str, str]]:
        """The reminders as messages of a chat: `{role, content}`, where they belong in the order of the targets."""
        roles = {"system": "system", "suffix_system": "system"}
        return [{"role": roles.get(r.target, r.role), "content": r.content} for r in self.reminders]


class Run:
    """Opened by `async with`; finished when the block ends, aborted where it raises."""

    def __init__(self, gate: Gate, thread: ThreadId, run: RunId, start: wire.RunStart) -> None:
        self.thread, self.id = thread, run
        self._gate, self._start = gate, start
        self._origin = Origin(thread, run, Sender("agent", gate.agent))
        self._ended = False

    async def __aenter__(self) -> Run:
        await self._say(self._start)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ended:
            return
        if error is None:
            await self.finish()
            return
        try:
            await asyncio.wait_for(asyncio.shield(self.abort(f"{type(error).__name__}: {error}"[:1000])), END_SECONDS)
        except (GateUnavailable, Refused, TimeoutError):
            pass  # the block's own error is what its caller must see; the run lapses by its own limits

    # --- verdicts ----------------------------------------------------------------------------------------------------

    async def check(
        self,
        tool: str,
        args: Mapping[str, Any] | None = None,
        *,
        cost_usd: float | None = None,
        call: str | None = None,
        parent: str | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> Verdict:
        """Ask for one call; the verdict, whatever it is. With `wait`, a suspended call's final verdict is awaited.

        Raises `Refused` where the message was not taken, `GateUnavailable` where no verdict came in `timeout` seconds.
        """
        verdicts = await self.check_batch([Call(tool, args or {}, cost_usd, call, parent)], timeout=timeout)
        verdict = verdicts[0]
        return await self.resume(verdict) if wait and verdict.decision == "suspend" else verdict

    async def check_batch(
        self, calls: Sequence[Call], *, mode: Literal["each", "atomic"] = "each", timeout: float | None = None
    ) -> list[Verdict]:
        """Ask for several calls in one message: one verdict each, in order. Raises like `check`."""
        wanted = [
            WantedCall(
                id=call.id or uuid.uuid4().hex,
                tool=call.tool,
                args=dict(call.args),
                parent=call.parent or _PARENT.get(),
                cost_usd=call.cost_usd,
            )
            for call in calls
        ]
        message = wire.Intents(calls=wanted, mode=mode, nesting="explicit")
        answers, _ = await self._gate.ask(self._origin, message, [("call", call.id) for call in wanted], timeout)
        return [_verdict(answer) for answer in answers]

    async def resume(self, verdict: Verdict) -> Verdict:
        """The final verdict of a suspended call: waits for people as long as the ticket lives."""
        while verdict.decision == "suspend":
            answer = await self._gate.expect((self.thread, self.id, "call", verdict.call))
            verdict = _verdict(answer)
        return verdict

    # --- outcomes ----------------------------------------------------------------------------------------------------

    async def report(
        self,
        call: str,
        status: Status,
        *,
        content: Any = None,
        facts: Mapping[str, Any] | None = None,
        cost_usd: float | None = None,
        tokens: int = 0,
    ) -> Outcome:
        """Say how an allowed call ended. Raises like `check`."""
        message = wire.Outcome(
            call=call, status=status, content=content, facts=dict(facts or {}), cost_usd=cost_usd, tokens=tokens
        )
        (answer,), times = await self._gate.ask(self._origin, message, [("outcome", call)])
        if isinstance(answer, Refusal):
            if times > 1 and answer.code == "lifecycle.already_settled":
                return Outcome(call)  # it was taken the first time, and the answer was lost on the way
            raise Refused(answer.code, answer.reason)
        assert isinstance(answer, ReminderMessage)
        return Outcome(call, answer.reminders, answer.ungated)

    async def call(
        self,
        tool: str,
        args: Mapping[str, Any],
        function: Callable[..., Any],
        *,
        cost_usd: float | None = None,
        wait: bool = False,
    ) -> Any:
        """Check, run `function(**args)` with the verdict's arguments, report.

        Raises `Denied`, `Suspended`, and what the tool raises.
        """
        verdict = await self.check(tool, args, cost_usd=cost_usd, wait=wait)
        if verdict.decision != "allow":
            raise error_of(verdict)
        if not verdict.execute:
            return verdict.result
        token = _PARENT.set(verdict.call)
        try:
            result = function(**(verdict.args if verdict.args is not None else args))
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            await asyncio.shield(self._report_failure(verdict.call, error))
            raise
        finally:
            _PARENT.reset(token)
        await self.report(verdict.call, "success", content=_plain(result))
        return result

    async def _report_failure(self, call: str, error: BaseException) -> None:
        """The tool's own error is what the caller must see, also where the gate cannot be told of it."""
        try:
            await self.report(call, "error", content=f"{type(error).__name__}: {error}"[:4000])
        except (GateUnavailable, Refused):
            pass  # the call lapses by its timeout, as an error

    def guard(
        self, function: Callable[..., Any], tool: str | None = None, *, cost_usd: float | None = None, wait: bool = False
    ) -> Callable[..., Awaitable[Any]]:
        """The function behind the gate: its bound arguments are the call's arguments. Also usable as a decorator."""
        signature = inspect.signature(function)

        @wraps(function)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            name = tool or str(getattr(function, "__name__", "tool"))
            return await self.call(name, dict(bound.arguments), function, cost_usd=cost_usd, wait=wait)

        return guarded

    # --- the end -----------------------------------------------------------------------------------------------------

    async def finish(self) -> RunStatus:
        """The answer is there: `complete`, `failed`, or `steer` with what the model must still do."""
        status = await self._say(wire.RunFinish())
        self._ended = status.status != "steer"
        return status

    async def abort(self, reason: str = "") -> RunStatus:
        status = await self._say(wire.RunAbort(reason=reason))
        self._ended = True
        return status

    async def _say(self, message: Struct) -> RunStatus:
        (answer,), _ = await self._gate.ask(self._origin, message, [()])
        if isinstance(answer, Refusal):
            raise Refused(answer.code, answer.reason)
        assert isinstance(answer, RunStatus)
        return answer


def _verdict(answer: Any) -> Verdict:
    if isinstance(answer, Refusal):
        raise Refused(answer.code, answer.reason)
    assert isinstance(answer, Verdict)
    return answer


def _plain(result: Any) -> Any:
    """A tool's result as an outcome carries it: JSON as it is, anything else as text."""
    try:
        wire.encode(wire.Outcome(call="c", status="success", content=result))
    except (TypeError, ValueError, OverflowError):
        return str(result)[:65_536]
    return result
