"""Agents that open and end runs on a cluster, and what its log says of how many were open at once."""

from collections import Counter
from collections.abc import Sequence

import anyio
from nats.aio.msg import Msg

from gated import wire
from gated.client import Verdict
from gated.core.chain import ChainChecker
from gated.core.replay import Replayer
from gated.events import AgentId, Body, RunEnded, RunOpened, unseal
from gated.shell.log import jetstream
from gated.shell.nats_client import SturdyClient
from gated.shell.policies import load_stored
from patience import PATIENCE
from shell.live import Bus, agent, intents, tell

AGAIN = 2.0  # seconds without an answer after which the same is said again
LIMIT = "lifecycle.limit"


class Opener:
    """Opens runs of an agent, each on a thread of its own, and ends them; asks again where nobody answers."""

    def __init__(self, client: SturdyClient, name: str) -> None:
        self._client, self._name = client, name
        self._came: dict[str, anyio.Event] = {}
        self._said: dict[str, wire.Outbound] = {}
        self.refused = 0

    async def listen(self) -> None:
        await self._client.subscribe(f"gated.out.*.*.agent.{self._name}", cb=self._hear)
        await self._client.flush()

    async def _hear(self, message: Msg) -> None:
        said = wire.decode_out(message.data)
        key = said.call if isinstance(said, Verdict) else f"end of {message.subject.split('.')[3]}"
        self._said[key] = said
        self._came.setdefault(key, anyio.Event()).set()

    async def _ask(self, run: str, key: str, message: wire.Intents | wire.RunFinish) -> wire.Outbound:
        came = self._came.setdefault(key, anyio.Event())
        with anyio.fail_after(3 * PATIENCE):
            while not came.is_set():
                await tell(self._client, agent(self._name), run, message)
                with anyio.move_on_after(AGAIN):
                    await came.wait()
        return self._said[key]

    async def attempt(self, run: str, call: str) -> bool:
        """Whether the run may be opened."""
        said = await self._ask(run, call, intents((call, "T", {})))
        assert isinstance(said, Verdict)
        assert (said.decision, said.code) in (("allow", None), ("deny", LIMIT))
        return said.decision == "allow"

    async def open(self, run: str) -> None:
        number = 0
        while not await self.attempt(run, f"{run}-{number}"):
            self.refused += 1
            number += 1
            await anyio.sleep(0.05)

    async def finish(self, run: str) -> None:
        assert isinstance(await self._ask(run, f"end of {run}", wire.RunFinish()), wire.RunStatus)

    async def flood(self, runs: Sequence[str], stay: float = 0.0) -> None:
        """Open and end them all, at once."""

        async def one(run: str) -> None:
            await self.open(run)
            await anyio.sleep(stay)
            await self.finish(run)

        async with anyio.create_task_group() as tasks:
            for run in runs:
                tasks.start_soon(one, run)


async def bodies(bus: Bus) -> list[Body]:
    """All records of the cluster's log, each chain verified and each record decided again."""
    found: list[Body] = []
    async with bus.user("daemon") as client:
        log = await jetstream.open_for_reading(client)
        known = {digest: load_stored(text, digest, lenient=False) for digest, text in (await log.policies()).items()}
        checker, replayer = ChainChecker(), Replayer(known.get)
        async for position, record in log.read_all():
            assert checker.feed(position, record) is None
            assert replayer.feed(record) is None
            found.append(unseal(record))
        await log.close()
    return found


async def most_open(bus: Bus, name: str) -> tuple[int, int]:
    """How many runs of an agent the log has open at once at most, and at its end."""
    open_now: Counter[AgentId] = Counter()
    most, whose = 0, {}
    for body in await bodies(bus):
        for decision in body.decisions:
            if isinstance(decision, RunOpened):
                whose[body.thread, body.run] = decision.agent
                open_now[decision.agent] += 1
                most = max(most, open_now[AgentId(name)])
            elif isinstance(decision, RunEnded):
                open_now[whose[body.thread, body.run]] -= 1
    return most, open_now[AgentId(name)]
