"""What a partition knows of the worker that it may be in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import anyio

from gated.core.policy import Policy
from gated.core.redaction.vault import Vault
from gated.shell.deciding import Decide
from gated.shell.keyring import Keyring
from gated.shell.ledger import Ledgers
from gated.shell.log.jetstream_api import JetStreamApi
from gated.shell.log.jetstream_names import Names
from gated.shell.log.jetstream_streams import Shape
from gated.shell.nats_client import SturdyClient
from gated.shell.scoring import Scorer
from gated.shell.telemetry import Telemetry
from gated.shell.together import Together
from gated.shell.verdict_tokens import VerdictSigner


class Place(NamedTuple):
    """Where a worker works: its connection, the cluster, its name."""

    client: SturdyClient
    api: JetStreamApi
    names: Names
    shape: Shape
    worker: str
    decide: Decide
    vault: Vault
    scorer: Scorer
    signer: VerdictSigner | None
    keyring: Keyring | None
    ledgers: Ledgers

    def consumer(self, partition: int) -> str:
        """The consumer of a partition, as the server's API names it."""
        return f"{self.names.inputs}.{self.names.consumer(partition)}"

    @property
    def wishes(self) -> str:
        """The subject on which owners are asked for partitions."""
        return f"{self.names.prefix}.cluster.wish"


class Host(Protocol):
    """What a partition asks of its worker."""

    telemetry: Telemetry
    together: Together
    turns: anyio.CapacityLimiter  # of partitions that are taken over from an owner that lives: a few at a time

    def policy(self) -> Policy: ...

    def wants(self, partition: int) -> bool:
        """Whether the partition should be here."""

    async def changed(self) -> None:
        """Until what is wanted may have changed."""

    def left(self, partition: int) -> None:
        """A session has ended."""

    def has_owner(self, partition: int) -> bool:
        """Whether another worker says that it has the partition."""

    def has_heirs(self) -> bool:
        """Whether there are others that could have partitions."""

    async def known(self, digests: Iterable[str]) -> Mapping[str, Policy]:
        """Policies that are known here, those of the log that are asked for among them. Raises `LogError`."""
