"""One run of an agent: checks, guarded tools, outcomes, the end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import anyio
from msgspec import UNSET, Struct

from gated import wire
from gated.client import binding
from gated.client.calls import Admitted, Call, Outcome, content_of, cost_of, digest, id_of, inside, wanted
from gated.client.errors import (
    AlreadyMade,
    GateError,
    GateUnavailable,
    Refused,
    Unreported,
    described,
    error_of,
    waits,
)
from gated.events import Reminder, RunId, Sender, Status, ThreadId
from gated.wire import Origin, Refusal, Remaining, ReminderMessage, RunStatus, Verdict

if TYPE_CHECKING:
    from gated.client.gate import Gate

END_SECONDS = 2.0  # how long a failing block, or tool, waits for the gate to hear of it

Wait = bool | float
Facts = Callable[[Any], Mapping[str, Any]]  # of a tool's result


class Run:
    """Opened by `async with`; finished when the block ends, aborted where it raises.

    Left open where it raises `Suspended` (or a group of nothing else), since people may still answer, after `detach()`, and
    where the gate steers: `status` is what it said last of the run's end.
    """

    status: RunStatus | None = None

    def __init__(self, gate: Gate, thread: ThreadId, run: RunId, start: wire.RunStart | None) -> None:
        self.thread, self.id = thread, run
        self._gate, self._start = gate, start
        self.origin = Origin(thread, run, Sender("agent", gate.agent))
        self._left = False
        self._reminders = gate.reminders_of(thread, run)

    async def __aenter__(self) -> Run:
        if self._start is not None:
            try:
                await self._say(self._start)
            except GateError:
                raise
            except BaseException as error:  # cancelled, and the gate may have opened it
                await self.__aexit__(type(error), error, None)
                raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._left or waits(error):
            return
        if error is None:
            await self.finish()
            return
        with anyio.move_on_after(END_SECONDS, shield=True):
            try:
                await self.abort(described(error)[:1000])
            except (GateUnavailable, Refused):
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
        wait: Wait = False,
        timeout: float | None = None,
    ) -> Verdict:
        """Ask for one call; the verdict, whatever it is.

        With `wait`, a suspended call's final verdict is awaited: for as long as its ticket lives, or so many seconds (it may
        still be suspended then). Asked again under the same id `call`, also by another process, it is the recorded verdict.
        Raises `Refused` where the message was not taken, `GateUnavailable` where no verdict came in `timeout` seconds.
        """
        return (await self.check_batch([Call(tool, args or {}, cost_usd, call, parent)], wait=wait, timeout=timeout))[0]

    async def check_batch(
        self,
        calls: Sequence[Call],
        *,
        mode: Literal["each", "atomic"] = "each",
        wait: Wait = False,
        timeout: float | None = None,
    ) -> list[Verdict]:
        """Ask for several calls in one message: one verdict each, in order. Waits and raises like `check`."""
        asked = [wanted(call, self.origin) for call in calls]
        message = wire.Intents(calls=asked, mode=mode, nesting="explicit")
        return await self._verdicts(message, [call.id for call in asked], wait, timeout)

    async def resume(self, call: str | Verdict | Call, *, wait: Wait = True, timeout: float | None = None) -> Verdict:
        """The verdict of a call that was asked for before, also by an earlier process or where it came meanwhile.

        By its id, by a verdict on it, or by the call itself with its id: then it is asked for where the gate never heard of it.
        `settled` says that it has its outcome already: it must not run again. Waits and raises like `check`.
        """
        if isinstance(call, Call):
            id_of(call.id)
            return (await self.check_batch([call], wait=wait, timeout=timeout))[0]
        known = id_of(call.call if isinstance(call, Verdict) else call)
        return (await self._verdicts(wire.Recall(call=known), [known], wait, timeout))[0]

    async def can_i(self, calls: Sequence[Call] = (), *, timeout: float | None = None) -> Remaining:
        """What is left of the run's budgets, and what would be decided on `calls` if they were asked for in one message.

        Nothing is taken, recorded or promised by it. Raises like `check`.
        """
        asked = wire.CanI(calls=[wanted(call, self.origin) for call in calls], nesting="explicit")
        (answer,) = await self._gate.ask(self.origin, asked, [None], timeout)
        if isinstance(answer, Refusal):
            raise Refused(answer.code, answer.reason)
        assert isinstance(answer, Remaining)
        return answer

    async def _verdicts(self, message: Struct, ids: list[str], wait: Wait, timeout: float | None) -> list[Verdict]:
        with self._gate.question(self.origin, message, ids) as asked:
            answers = await asked.answers(self._gate.timeout if timeout is None else timeout)
            if wait is not False:
                answers = await asked.final(None if wait is True else wait)
        refused = next((answer for answer in answers if isinstance(answer, Refusal)), None)
        if refused is not None:
            others = tuple(answer for answer in answers if isinstance(answer, Verdict))
            raise Refused(refused.code, refused.reason, others)
        return answers

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
        cost = cost_of(cost_usd)
        message = wire.Outcome(call=call, status=status, content=content, facts=dict(facts or {}), cost_usd=cost, tokens=tokens)
        with self._gate.question(self.origin, message, [call]) as asked:
            (answer,) = await asked.answers(self._gate.timeout)
        if isinstance(answer, Refusal):
            if asked.attempts > 1 and answer.code == "lifecycle.already_settled":
                return Outcome(call)  # it was taken the first time, and the answer was lost on the way
            raise Refused(answer.code, answer.reason)
        assert isinstance(answer, ReminderMessage)
        return Outcome(call, answer.reminders, answer.ungated)

    def take_reminders(self) -> tuple[Reminder, ...]:
        """What machines have had to say to the model since this was last asked, however the calls were made and ended: the
        newest 64. `report` returns those of its outcome as well."""
        return self._reminders.take()

    async def call(
        self,
        tool: str,
        args: Mapping[str, Any],
        function: Callable[..., Any],
        *,
        call: str | None = None,
        cost_usd: float | None = None,
        wait: Wait = False,
        facts: Facts | None = None,
    ) -> Any:
        """Check, run `function(**args)` with the verdict's arguments, report; the function's result.

        `facts` makes of the result what is reported beside it (a machine may want `{"complete": True}` of a read).
        Where a person answered for the tool, their result, and the function does not run. Under an id `call` it is safe after
        a restart of the agent: what has its outcome already does not run again.
        Raises `Denied` (`Rejected`, `Expired`), `Suspended`, `AlreadyMade`, what `check` raises, and what the tool raises.
        """
        return await self._make(tool, args, lambda given: function(**given), facts, call=call, cost_usd=cost_usd, wait=wait)

    async def _make(
        self, tool: str, args: Mapping[str, Any], function: Callable[[Mapping[str, Any]], Any], facts: Facts | None, **how: Any
    ) -> Any:
        admitted = await self.admit(tool, args, **how)
        if not admitted.execute:
            return admitted.result
        try:
            with inside(self.origin, admitted.verdict):
                result = function(admitted.args)
                if inspect.isawaitable(result):
                    result = await result
                binding.finished(tool, result)
            found = None if facts is None else facts(result)
        except BaseException as error:
            await self.failed(admitted.call, error)
            raise
        await self.succeeded(admitted.call, result, facts=found)
        return result

    async def admit(
        self, tool: str, args: Mapping[str, Any], *, call: str | None = None, cost_usd: float | None = None, wait: Wait = False
    ) -> Admitted:
        """Permission for one call, for those who run the tool themselves: with `args` of what is returned, and then
        `succeeded` or `failed`. Raises like `call`."""
        before = digest(tool, args)
        verdict = await self.check(tool, args, cost_usd=cost_usd, call=call, wait=wait)
        if verdict.decision != "allow":
            raise error_of(verdict)
        if verdict.execute and (verdict.settled or not self._gate.claim(self.origin, call)):
            raise AlreadyMade(verdict)
        if verdict.args is None and digest(tool, args) != before:
            await self._tell(verdict.call, "not_run", "the arguments changed")
            raise GateError(f"the arguments of `{tool}` changed after they were decided: the call did not run")
        given = args if verdict.args is None else verdict.args
        result = None if verdict.result is UNSET else verdict.result
        return Admitted(verdict.call, given, verdict.execute, result, verdict)

    async def succeeded(self, call: str, result: Any = None, *, facts: Mapping[str, Any] | None = None) -> Outcome:
        """Report a success. Raises `Unreported`, with the result, where the gate does not take it."""
        try:
            return await self.report(call, "success", content=content_of(result), facts=facts)
        except GateError as error:
            raise Unreported(call, result, error) from error

    async def failed(self, call: str, error: Any) -> None:
        """Report the tool's error (or a result that says it is one): it is what its caller must see, also where the gate
        cannot be told of it."""
        told = described(error)[:4000] if isinstance(error, BaseException) else content_of(error)
        await self._tell(call, "error", told)

    def paused(self, call: str) -> None:
        """The tool stopped on its way, to be run again from its beginning under the same id (a graph that asks a person): the
        call stays in flight until then, or until it lapses by its `call_timeout`."""
        self._gate.release(self.origin, call)

    async def _tell(self, call: str, status: Status, content: Any) -> None:
        with anyio.move_on_after(END_SECONDS, shield=True):
            try:
                await self.report(call, status, content=content)
            except (GateUnavailable, Refused):
                pass  # the call lapses by its timeout, as an error

    def guard(
        self,
        function: Callable[..., Any] | None = None,
        tool: str | None = None,
        *,
        cost_usd: float | None = None,
        wait: Wait = False,
        facts: Facts | None = None,
    ) -> Callable[..., Any]:
        """The function behind the gate: its bound arguments are the call's arguments, its name the tool unless `tool` is given.

        Also a decorator: `@run.guard`, or `@run.guard(tool="Read", wait=True)`. `facts` as of `call`.
        """
        if function is None:
            return partial(self.guard, tool=tool, cost_usd=cost_usd, wait=wait, facts=facts)
        binding.guardable(function)
        guarded_function, name = function, tool or binding.name_of(function)

        @wraps(function)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            bound = binding.bind(guarded_function, args, kwargs)
            return await self._make(name, bound, partial(binding.apply, guarded_function), facts, cost_usd=cost_usd, wait=wait)

        return guarded

    # --- the end -----------------------------------------------------------------------------------------------------

    async def finish(self) -> RunStatus:
        """The answer is there: `complete`, `failed`, or `steer` with what the model must still do."""
        self.status = await self._say(wire.RunFinish())
        self._left = self.status.status != "steer"
        return self.status

    async def abort(self, reason: str = "") -> RunStatus:
        """End the run without an answer. What waits for people is cancelled."""
        self.status = await self._say(wire.RunAbort(reason=reason))
        self._left = True
        return self.status

    def detach(self) -> None:
        """Leave the run open when the block ends: another process goes on with `gate.run(run=…, resume=True)`."""
        self._left = True

    async def _say(self, message: Struct) -> RunStatus:
        (answer,) = await self._gate.ask(self.origin, message, [None])
        if isinstance(answer, Refusal):
            raise Refused(answer.code, answer.reason)
        assert isinstance(answer, RunStatus)
        return answer
