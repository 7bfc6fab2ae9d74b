"""The SDK for code without an event loop: the async one, run in a thread of its own, and callable from any other thread.

with connect(agent="coder") as gate, gate.run(task="fix the test") as run:
    verdict = run.check("Read", {"file_path": "a.py"})

INVARIANT: nothing is decided here. Every method is the async one of the same name behind anyio's blocking portal; only tools run
on the thread that calls them.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Literal, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from gated import wire
from gated.client import binding, gate, run
from gated.client.calls import Admitted, Call, Outcome, inside
from gated.client.errors import GateUnavailable
from gated.client.run import Facts, Wait
from gated.events import Reminder, RunId, Status, ThreadId
from gated.wire import Remaining, RunStatus, Verdict

__all__ = ["Gate", "Run", "connect"]

T = TypeVar("T")


class Portal:
    """The thread with the event loop. A caller that is interrupted cancels what it waited for."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self.open = True

    def __call__(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Raises what the function raises, and `GateUnavailable` where the connection was closed."""
        if not self.open:
            raise GateUnavailable("the connection was closed")
        future = self._portal.start_task_soon(partial(function, *args, **kwargs))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class Gate:
    """What `connect` gives: `gate.run(...)` opens runs of its agent."""

    def __init__(self, asynchronous: gate.Gate, portal: Portal) -> None:
        self._gate, self._portal = asynchronous, portal

    @property
    def agent(self) -> str:
        return self._gate.agent

    def run(
        self,
        *,
        task: str | None = None,
        run: str | None = None,
        thread: str | None = None,
        labels: dict[str, str] | None = None,
        tools: list[str] | None = None,
        parent: str | None = None,
        resume: bool = False,
    ) -> Run:
        """A run to be opened by `with`; see the async `Gate.run`."""
        made = self._gate.run(task=task, run=run, thread=thread, labels=labels, tools=tools, parent=parent, resume=resume)
        return Run(made, self._portal)


class Run:
    """Opened by `with`; ends as the async `Run` does. Its methods wait, and may be called from any thread."""

    def __init__(self, asynchronous: run.Run, portal: Portal) -> None:
        self._run, self._portal = asynchronous, portal

    @property
    def id(self) -> RunId:
        return self._run.id

    @property
    def thread(self) -> ThreadId:
        return self._run.thread

    @property
    def status(self) -> RunStatus | None:
        """What the gate said last of the run's end."""
        return self._run.status

    def __enter__(self) -> Run:
        self._portal(self._run.__aenter__)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._portal(self._run.__aexit__, kind, error, trace)

    def check(
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
        """Ask for one call; the verdict, whatever it is. See the async `Run.check`."""
        return self._portal(self._run.check, tool, args, cost_usd=cost_usd, call=call, parent=parent, wait=wait, timeout=timeout)

    def check_batch(
        self,
        calls: Sequence[Call],
        *,
        mode: Literal["each", "atomic"] = "each",
        wait: Wait = False,
        timeout: float | None = None,
    ) -> list[Verdict]:
        """Ask for several calls in one message. See the async `Run.check_batch`."""
        return self._portal(self._run.check_batch, calls, mode=mode, wait=wait, timeout=timeout)

    def resume(self, call: str | Verdict | Call, *, wait: Wait = True, timeout: float | None = None) -> Verdict:
        """The verdict of a call that was asked for before. See the async `Run.resume`."""
        return self._portal(self._run.resume, call, wait=wait, timeout=timeout)

    def can_i(self, calls: Sequence[Call] = (), *, timeout: float | None = None) -> Remaining:
        """What is left of the run's budgets, and what would be decided on `calls`. See the async `Run.can_i`."""
        return self._portal(self._run.can_i, calls, timeout=timeout)

    def report(
        self,
        call: str,
        status: Status,
        *,
        content: Any = None,
        facts: Mapping[str, Any] | None = None,
        cost_usd: float | None = None,
        tokens: int = 0,
    ) -> Outcome:
        """Say how an allowed call ended. See the async `Run.report`."""
        return self._portal(self._run.report, call, status, content=content, facts=facts, cost_usd=cost_usd, tokens=tokens)

    def take_reminders(self) -> tuple[Reminder, ...]:
        """What machines have had to say to the model since this was last asked. See the async `Run.take_reminders`."""
        return self._run.take_reminders()

    def call(
        self,
        tool: str,
        args: Mapping[str, Any],
        function: Callable[..., T],
        *,
        call: str | None = None,
        cost_usd: float | None = None,
        wait: Wait = False,
        facts: Facts | None = None,
    ) -> T:
        """Check, run `function(**args)` with the verdict's arguments on this thread, report. See the async `Run.call`."""
        return self._make(tool, args, lambda given: function(**given), facts, call=call, cost_usd=cost_usd, wait=wait)

    def _make(
        self, tool: str, args: Mapping[str, Any], function: Callable[[Mapping[str, Any]], T], facts: Facts | None, **how: Any
    ) -> T:
        admitted = self.admit(tool, args, **how)
        if not admitted.execute:
            return admitted.result  # type: ignore[no-any-return]  # a person's answer in the place of the tool's
        try:
            with inside(self._run.origin, admitted.verdict):
                result = function(admitted.args)
                binding.finished(tool, result)
            found = None if facts is None else facts(result)
        except BaseException as error:
            self.failed(admitted.call, error)
            raise
        self.succeeded(admitted.call, result, facts=found)
        return result

    def admit(
        self, tool: str, args: Mapping[str, Any], *, call: str | None = None, cost_usd: float | None = None, wait: Wait = False
    ) -> Admitted:
        """Permission for one call, for those who run the tool themselves. See the async `Run.admit`."""
        return self._portal(self._run.admit, tool, args, call=call, cost_usd=cost_usd, wait=wait)

    def succeeded(self, call: str, result: Any = None, *, facts: Mapping[str, Any] | None = None) -> Outcome:
        """Report a success. See the async `Run.succeeded`."""
        return self._portal(self._run.succeeded, call, result, facts=facts)

    def failed(self, call: str, error: Any) -> None:
        """Report the tool's error. See the async `Run.failed`."""
        self._portal(self._run.failed, call, error)

    def paused(self, call: str) -> None:
        """The tool stopped on its way, to be run again under the same id. See the async `Run.paused`."""
        self._run.paused(call)

    def guard(
        self,
        function: Callable[..., Any] | None = None,
        tool: str | None = None,
        *,
        cost_usd: float | None = None,
        wait: Wait = False,
        facts: Facts | None = None,
    ) -> Callable[..., Any]:
        """The function behind the gate; also a decorator, as the async `Run.guard`. It runs on the thread that calls it."""
        if function is None:
            return partial(self.guard, tool=tool, cost_usd=cost_usd, wait=wait, facts=facts)
        binding.guardable(function)
        if iscoroutinefunction(function):
            raise TypeError(f"`{binding.name_of(function)}` is async: guard it with a run of `gated.client`")
        guarded_function, name = function, tool or binding.name_of(function)

        @wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            bound = binding.bind(guarded_function, args, kwargs)
            return self._make(name, bound, partial(binding.apply, guarded_function), facts, cost_usd=cost_usd, wait=wait)

        return guarded

    def finish(self) -> RunStatus:
        """The answer is there: `complete`, `failed`, or `steer` with what the model must still do."""
        return self._portal(self._run.finish)

    def abort(self, reason: str = "") -> RunStatus:
        """End the run without an answer. What waits for people is cancelled."""
        return self._portal(self._run.abort, reason)

    def detach(self) -> None:
        """Leave the run open when the block ends. See the async `Run.detach`."""
        self._run.detach()


@contextmanager
def connect(
    url: str | None = None,
    *,
    agent: str,
    data: str | os.PathLike[str] = ".gated",
    timeout: float = gate.TIMEOUT,
    prefix: str = wire.PREFIX,
    **options: Any,
) -> Iterator[Gate]:
    """Connect `agent` to the gate as the async `connect` does; while the block runs, the event loop is in a thread of its own."""
    connecting = gate.connect(url, agent=agent, data=data, timeout=timeout, prefix=prefix, **options)
    with start_blocking_portal() as started:
        portal = Portal(started)
        connected = portal(connecting.__aenter__)
        try:
            yield Gate(connected, portal)
        finally:
            portal(connecting.__aexit__, None, None, None)
            portal.open = False
