"""The policies that a log holds. Asking for one that it does not hold is an error of the log, told in its words."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from gated.core.policy import Policy
from gated.errors import GatedError
from gated.events import Record


class PolicyMissing(GatedError):
    """A record was decided under a policy whose text the log does not hold."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the log does not hold the policy `{digest}` that its records name: something was taken out of it")
        self.digest = digest


class Known(dict[str, Policy]):
    """By digest."""

    def __missing__(self, digest: str) -> Policy:
        raise PolicyMissing(digest)


class _Named(Struct, gc=False):
    policy: str = ""


_NAMED: Final = msgspec.json.Decoder(_Named)


def policy_named(record: Record) -> str:
    """The digest of the policy that a record was decided under. Raises `msgspec.MsgspecError` where its body is none."""
    return _NAMED.decode(record.body).policy


def without_policy(digest: str) -> str:
    """What is wrong with a log in which a record names a policy that it does not hold."""
    return f"it was decided under the policy `{digest}`, which the log does not hold"
