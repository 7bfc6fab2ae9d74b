"""What must hold after a chaos run, checked on the log, the stream of inputs, and what the agents heard."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from benchmarks.chaos.agents import Asked
from gated.core.chain import ChainChecker
from gated.core.replay import Replayer
from gated.events import Body, CallDecided, RunEnded, RunOpened, unseal
from gated.shell.log import jetstream
from gated.shell.log.jetstream_api import JetStreamApi, open_api
from gated.shell.log.jetstream_reader import JetStreamReader
from gated.shell.nats_client import SturdyClient
from gated.shell.policies import load_stored


@dataclass
class Found:
    """All of `lost`, `duplicate`, `out_of_order`, `over_admitted`, `contradicted` and `damaged` must be 0."""

    intents: int = 0
    lost: int = 0  # calls without a verdict, or without a decision in the log
    duplicate: int = 0  # calls that were decided more than once
    out_of_order: int = 0  # calls not decided by the first input that asked for them, or inputs that overtook one another
    over_admitted: int = 0  # calls allowed beyond what barriers and budgets let a thread have; runs open beyond `max_open`
    contradicted: int = 0  # verdicts that were heard and are not the log's
    damaged: int = 0  # records that break a chain, or come out differently when they are decided again
    records: int = 0
    examples: list[str] = field(default_factory=list)

    def wrong(self, kind: str, what: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.examples) < 20:
            self.examples.append(f"{kind}: {what}")


async def verify(
    client: SturdyClient, asked: Mapping[str, Asked], limits: Mapping[str, int], max_open: Mapping[str, int]
) -> Found:
    """`limits`: by tool, how many calls of it a thread may ever have allowed. `max_open`: of an agent, its runs at once."""
    log = await jetstream.open_for_reading(client)
    found = Found(intents=len(asked))
    bodies = await _records(log, found)
    inputs = await _inputs(await open_api(client), log.names.inputs)
    await log.close()
    check_open(found, bodies, max_open)
    return check(found, bodies, asked, limits, inputs)


def check(
    found: Found, bodies: list[Body], asked: Mapping[str, Asked], limits: Mapping[str, int], inputs: Mapping[int, bytes]
) -> Found:
    """The records, the verdicts that were heard and the inputs by their places, held against one another."""
    decided = _decisions(bodies)
    _check_calls(found, asked, decided)
    _check_limits(found, decided, limits)
    _check_order(found, bodies, decided, inputs)
    return found


async def _records(log: JetStreamReader, found: Found) -> list[Body]:
    known = {digest: load_stored(text, digest, lenient=False) for digest, text in (await log.policies()).items()}
    checker, replayer = ChainChecker(), Replayer(known.get)
    bodies: list[Body] = []
    async for position, record in log.read_all():
        if (damage := checker.feed(position, record)) is not None:
            found.wrong("damaged", str(damage))
        if (difference := replayer.feed(record)) is not None:
            found.wrong("damaged", str(difference))
        bodies.append(unseal(record))
    if replayer.skipped:
        found.wrong("damaged", f"{replayer.skipped} records could not be decided again")
    found.records = len(bodies)
    return bodies


def _decisions(bodies: list[Body]) -> dict[str, list[tuple[Body, CallDecided]]]:
    made: dict[str, list[tuple[Body, CallDecided]]] = defaultdict(list)
    for body in bodies:
        for decision in body.decisions:
            if isinstance(decision, CallDecided):
                made[decision.call].append((body, decision))
    return made


def _check_calls(found: Found, asked: Mapping[str, Asked], decided: Mapping[str, list[tuple[Body, CallDecided]]]) -> None:
    for call, one in asked.items():
        made = decided.get(call, [])
        if not one.verdicts or not made:
            found.wrong("lost", f"{call}: {len(one.verdicts)} verdicts heard, {len(made)} in the log")
            continue
        if len(made) > 1:
            found.wrong("duplicate", f"{call}: records {[body.seq for body, _ in made]}")
        body, decision = made[0]
        for verdict in one.verdicts:
            if (verdict.decision, verdict.seq, verdict.args_sha256) != (decision.decision, body.seq, decision.args_sha256):
                found.wrong(
                    "contradicted",
                    f"{call}: heard {verdict.decision} of record {verdict.seq}, record {body.seq} says {decision.decision}",
                )


def _check_limits(found: Found, decided: Mapping[str, list[tuple[Body, CallDecided]]], limits: Mapping[str, int]) -> None:
    admitted = Counter((body.thread, d.tool) for made in decided.values() for body, d in made if d.decision == "allow")
    for (thread, tool), count in admitted.items():
        for _ in range(count - limits.get(tool, count)):
            found.wrong("over_admitted", f"{thread}: {count} calls of {tool}")


def check_open(found: Found, bodies: list[Body], max_open: Mapping[str, int]) -> None:
    """The runs that are open at once, in the order of the log."""
    whose: dict[tuple[str, str], str] = {}
    count: Counter[str] = Counter()
    for body in bodies:
        for decision in body.decisions:
            if isinstance(decision, RunOpened):
                agent = whose[body.thread, body.run] = decision.agent
                count[agent] += 1
                if count[agent] > max_open.get(agent, count[agent]):
                    found.wrong("over_admitted", f"{body.thread}: {agent} has {count[agent]} runs open")
            elif isinstance(decision, RunEnded):
                count[whose[body.thread, body.run]] -= 1


def _check_order(
    found: Found,
    bodies: list[Body],
    decided: Mapping[str, list[tuple[Body, CallDecided]]],
    inputs: Mapping[int, bytes],
) -> None:
    last: dict[str, int] = {}
    for body in bodies:
        if body.input and body.input <= last.get(body.thread, 0):
            found.wrong("out_of_order", f"{body.thread}: record {body.seq} is of input {body.input}, after {last[body.thread]}")
        last[body.thread] = max(last.get(body.thread, 0), body.input)
    first: dict[str, int] = {}
    for place in sorted(inputs):
        for call in _calls(inputs[place]):
            first.setdefault(call, place)
    for call, made in decided.items():
        if first.get(call) != made[0][0].input:
            found.wrong("out_of_order", f"{call}: first asked by input {first.get(call)}, decided by {made[0][0].input}")


def _calls(data: bytes) -> list[str]:
    message: dict[str, Any] = msgspec.json.decode(data)
    return [call["id"] for call in message.get("calls", ())]


async def _inputs(api: JetStreamApi, stream: str) -> dict[int, bytes]:
    """Everything that was ever stored, by its place."""
    last = int((await api.ask(f"STREAM.INFO.{stream}"))["state"]["last_seq"])
    made: dict[int, bytes] = {}
    limit = asyncio.Semaphore(64)

    async def get(place: int) -> None:
        async with limit:
            said = await api.ask(f"STREAM.MSG.GET.{stream}", {"seq": place})
            made[place] = base64.b64decode(said["message"].get("data", ""))

    await asyncio.gather(*(get(place) for place in range(1, last + 1)))
    return made
