"""Waiting for a partition: the first input may come at any moment, also while the server is asked about something else."""

from typing import Any, cast

import anyio

from gated.shell.log.jetstream_names import Names
from gated.shell.nats_client import Heard
from gated.shell.place import Host, Place
from gated.shell.stand_by import Claim, StandBy
from patience import PATIENCE


class Server:
    """A client and its server in one. The owner has gone with an input in its hands: it comes again when it is asked to."""

    def __init__(self) -> None:
        self.rewinds = 0

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe(self, _: str, cb: Any) -> "Server":
        self.hear = cb.hear
        return self

    async def unsubscribe(self) -> None:
        pass

    async def publish(self, *_: Any) -> None:
        pass

    async def ask(self, verb: str) -> dict[str, Any]:
        if "RESET" in verb:
            self.rewinds += 1
            self.hear(Heard(b"inbox", b"$JS.ACK.x", b"{}", b"NATS/1.0\r\nNats-Pin-Id: p1\r\n\r\n"))  # before the answer
        return {"num_ack_pending": 1, "priority_groups": [{"group": "gated"}]}


class Wanting:
    turns = None

    def wants(self, partition: int) -> bool:
        return True

    def has_owner(self, partition: int) -> bool:
        return False

    async def changed(self) -> None:
        await anyio.sleep_forever()


async def test_an_input_that_comes_while_the_consumer_is_rewound_is_heard() -> None:
    """It was passed over, pinned to a worker that did not know it, and so on until the minute of its owner was over."""
    there = Server()
    place = Place(there, there, Names(), *[None] * 8)  # type: ignore[arg-type]
    with anyio.fail_after(PATIENCE):
        claim = await StandBy(0, place, cast(Host, Wanting())).wait()
    assert (claim, there.rewinds) == (Claim("p1"), 1)
