"""A real nats-server for the tests of a configuration, and users of it whose denials can be counted."""

import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

from gated.shell.nats_binary import server_binary
from gated.shell.nats_client import SturdyClient
from gated.shell.nats_config import UserRole, inbox_prefix, login
from patience import PATIENCE, blocking_until, until

NOWHERE = "nobody.may.this"


class Address(NamedTuple):
    url: str
    tls: ssl.SSLContext | None = None


@contextmanager
def running(config: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run a server with a configuration on a free loopback port; gives `host:port`."""
    command = [server_binary(), "-c", str(config), "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(folder)]
    with (folder / "out").open("w") as out:
        process = subprocess.Popen(command, env=dict(environment), stdout=out, stderr=out)
    try:
        ports = folder / f"nats-server_{process.pid}.ports"

        def listens() -> bool:
            assert process.poll() is None, (folder / "out").read_text()
            return ports.exists() and ports.read_text().endswith("}")

        blocking_until(listens, (folder / "out").read_text)
        ((url, *_), *_) = json.loads(ports.read_text()).values()
        yield url.partition("://")[2]
    finally:
        process.terminate()
        process.wait(PATIENCE)


class BusUser:
    """A connected user. The server tells each denial in the order of what was tried: that is what `denied_*` rests on."""

    def __init__(self, client: SturdyClient, violations: list[str]) -> None:
        self.client, self._violations = client, violations

    async def denied_publishing(self, subjects: Collection[str]) -> set[str]:
        """Which of these subjects the server refuses to take."""
        for subject in subjects:
            await self.client.publish(subject, b"{}")
        await self.client.publish(NOWHERE, b"")
        return await self._denied("publish", subjects)

    async def denied_subscribing(self, subjects: Collection[str]) -> set[str]:
        """Which of these subjects the server refuses to give."""
        made = [await self.client.subscribe(subject) for subject in [*subjects, NOWHERE]]
        found = await self._denied("subscription", subjects)
        for subscription in made:
            await subscription.unsubscribe()
        return found

    async def _denied(self, what: str, subjects: Collection[str]) -> set[str]:
        def denied(subject: str) -> bool:  # the client turns the server's words to lower case
            return any(f'permissions violation for {what} to "{subject}"'.lower() in said for said in self._violations)

        await until(lambda: denied(NOWHERE))
        found = {subject for subject in subjects if denied(subject)}
        self._violations.clear()
        return found


@asynccontextmanager
async def logged_in(address: Address, user: str, password: str, inbox: str) -> AsyncIterator[BusUser]:
    violations: list[str] = []

    async def failed(error: Exception) -> None:
        violations.append(str(error).lower())

    client = SturdyClient()
    try:
        await client.connect(
            address.url,
            user=user,
            password=password,
            inbox_prefix=inbox,
            tls=address.tls,
            error_cb=failed,
            allow_reconnect=False,
        )
        yield BusUser(client, violations)
    finally:
        await client.close()


@asynccontextmanager
async def bus_user(
    address: Address, role: UserRole, name: str = "", password: str | None = None, inbox: str | None = None
) -> AsyncIterator[BusUser]:
    """A user of the gate, with its own inbox and the password `secret of <login>` where no others are given."""
    own = login(role, name)
    async with logged_in(address, own, password or f"secret of {own}", inbox or inbox_prefix(role, name)) as user:
        yield user
