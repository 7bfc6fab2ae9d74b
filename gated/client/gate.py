"""A connection of one agent to the gate: asks its questions, hears answers on one long-lived subscription, routes them.

It fails closed: no verdict in time is `GateUnavailable`, and so at once are what the server refuses and a connection that ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from gated import ingress, wire
from gated.client.errors import GateUnavailable, Refused
from gated.client.line import Ears, Line, Place
from gated.client.question import Key, Question
from gated.client.reminders import Inbox
from gated.client.run import Run
from gated.events import RunId, ThreadId
from gated.shell.nats_client import Heard, headers_of
from gated.wire import Origin, ReminderMessage, Verdict

TIMEOUT: Final = 10.0  # seconds for a verdict
HEADERS: Final = 512  # bytes that the headers of an input may take of the server's `max_payload`

CallKey = tuple[str, str, str]  # thread, run, call


class Gate:
    """What `connect` gives: `gate.run(...)` opens runs of its agent."""

    def __init__(self, agent: str, prefix: str, timeout: float) -> None:
        self.agent, self.timeout = agent, timeout
        self.line: Line
        self._prefix = prefix
        self._questions: dict[str, Question] = {}
        self._by_call: dict[CallKey, list[Question]] = defaultdict(list)
        self._made: set[CallKey] = set()
        self._inboxes: WeakValueDictionary[tuple[str, str], Inbox] = WeakValueDictionary()  # of runs that somebody speaks of
        self._deaf, self._ended = "", False
        self._loop = asyncio.get_running_loop()

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
        """A run to be opened by `async with`. Ids are made up where none are given; a run without a thread is its own.

        `resume` goes on with the run `run` that an earlier process of this agent opened: nothing is opened then.
        Raises `Refused` for what can be no id.
        """
        if resume and run is None:
            raise ValueError("`resume` needs the id of the run to go on with: gate.run(run=…, resume=True)")
        for given in (run, thread, parent):
            if given is not None and not ingress.is_id(given):
                raise Refused("ingress.id", f"`{given}` cannot be the id of a run or a thread: use 1-128 of A-Z a-z 0-9 _ -")
        run_id = run or uuid.uuid4().hex
        start = None if resume else wire.RunStart(task=task, labels=labels or {}, tools=tools, parent_run=parent)
        return Run(self, ThreadId(thread or run_id), RunId(run_id), start)

    # --- asking ------------------------------------------------------------------------------------------------------

    @contextmanager
    def question(self, origin: Origin, message: Struct, wanted: Sequence[Key]) -> Iterator[Question]:
        """A message whose answers are heard while the block runs. `wanted` are call ids, or None for the message itself.

        Raises `Refused` for a message that the bus would not take, `GateUnavailable` where answers cannot be heard.
        """
        if self._ended:
            raise GateUnavailable("the connection was closed")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the gate was connected in another event loop: connect in this one, or use `gated.client.sync`")
        asked = self._question(origin, message, wanted)
        most = min(wire.MAX_PAYLOAD, self.line.max_payload - HEADERS)
        if asked.size > most:
            raise Refused("ingress.too_large", f"the message has {asked.size} bytes, at most {most} are taken")
        if self._deaf:
            raise GateUnavailable(f"the bus refused to let this agent hear its answers: {self._deaf}")
        verdicts = isinstance(message, wire.Intents | wire.Recall)
        keys = [(origin.thread, origin.run, call) for call in asked.wanted if call is not None and verdicts]
        self._questions[asked.id] = asked
        for key in keys:
            self._by_call[key].append(asked)
        try:
            yield asked
        finally:
            del self._questions[asked.id]
            for key in keys:
                self._by_call[key].remove(asked)
                if not self._by_call[key]:
                    del self._by_call[key]

    def _question(self, origin: Origin, message: Struct, wanted: Sequence[Key]) -> Question:
        try:
            return Question(self.line, self._prefix, origin, message, wanted)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Refused("ingress.shape", f"the message is not JSON: {error}") from error

    def reminders_of(self, thread: ThreadId, run: RunId) -> Inbox:
        """Where the reminders of a run are kept, the same for all who speak of it through this gate."""
        return self._inboxes.setdefault((thread, run), Inbox())

    def claim(self, origin: Origin, call: str | None) -> bool:
        """Whether this process makes the call for the first time. A call whose id was made up here is nobody else's."""
        key = (origin.thread, origin.run, call or "")
        if call is None or key not in self._made:
            self._made |= {key} if call else set()
            return True
        return False

    def release(self, origin: Origin, call: str) -> None:
        """The call was not made to its end: whoever asks for it again may make it."""
        self._made.discard((origin.thread, origin.run, call))

    async def ask(self, origin: Origin, message: Struct, wanted: Sequence[Key], timeout: float | None = None) -> list[Any]:
        """Ask and wait for the answers, in the order of `wanted`. Raises `Refused`, `GateUnavailable`."""
        with self.question(origin, message, wanted) as asked:
            return await asked.answers(self.timeout if timeout is None else timeout)

    # --- hearing -----------------------------------------------------------------------------------------------------

    def hear(self, message: Heard) -> None:
        """A verdict concerns whoever waits for its call, reminders the run; any other answer only the message that it answers."""
        try:
            said = wire.decode_out(message.data)
        except msgspec.MsgspecError:
            return  # an answer of a newer gate that this client does not know
        call: str | None = getattr(said, "call", None)
        if isinstance(said, Verdict | ReminderMessage):
            thread, run = message.subject.decode().split(".")[2:4]
            if isinstance(said, Verdict):
                for asked in self._by_call.get((thread, run, said.call), ()):
                    asked.hear(said.call, said)
                return
            inbox = self._inboxes.get((thread, run))
            if inbox is not None:
                inbox.hear(said)
        answered = self._questions.get(headers_of(message.headers).get(wire.RE, ""))
        if answered is not None:
            answered.hear(call, said)

    def back(self) -> None:
        """Connected again: what was published or answered meanwhile may be lost."""
        for asked in self._questions.values():
            asked.again()

    def denied(self, what: str, subject: str, why: str) -> None:
        """The server's word is in lower case, subjects included."""
        if what == "subscription":
            self._deaf = why
        for asked in self._questions.values():
            if what == "subscription" or asked.subject.lower() == subject.lower():
                asked.deny(why)

    def end(self) -> None:
        """Nothing will be answered any more."""
        self._ended = True
        for asked in self._questions.values():
            asked.deny("the connection was closed")


@asynccontextmanager
async def connect(
    url: str | None = None,
    *,
    agent: str,
    data: str | os.PathLike[str] = ".gated",
    timeout: float = TIMEOUT,
    prefix: str = wire.PREFIX,
    **options: Any,
) -> AsyncIterator[Gate]:
    """Connect `agent` to the gate. Without a URL, to the one that `gated up` runs with the folder `data`.

    `timeout` is how many seconds a verdict may take. `options` go to the NATS client (`user`, `password`, `user_credentials`,
    `tls`, `inbox_prefix`, …). Raises `GateUnavailable` where the bus is out of reach.
    """
    options.setdefault("inbox_prefix", f"_INBOX.agent.{agent}")
    gate = Gate(agent, prefix, timeout)
    find = partial(_place, url, Path(data), f"agent:{agent}", options)
    gate.line = Line(find, f"{prefix}.out.*.*.agent.{agent}", Ears(gate.hear, gate.back, gate.denied))
    await gate.line.open(timeout)
    try:
        yield gate
    finally:
        gate.end()
        await gate.line.close()


def _place(url: str | None, data: Path, login: str, options: dict[str, Any]) -> Place:
    """URL and options as they were given, or without a URL those of the folder of `gated up`."""
    if url is not None:
        return Place(url, options)
    try:
        bus = json.loads((data / "bus" / "bus.json").read_text())
    except (OSError, ValueError) as error:
        missing = f"no gate runs with the folder `{data.absolute()}`: start one with `gated up`, or give a URL"
        raise GateUnavailable(missing) from (None if isinstance(error, FileNotFoundError) else error)
    if login not in bus["users"]:
        raise GateUnavailable(f"the gate in `{data}` has no user `{login}`: the policy must name the agent")
    return Place(str(bus["url"]), {"user": login, "password": bus["users"][login], **options})
