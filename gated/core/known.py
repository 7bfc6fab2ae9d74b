"""The policies that a log holds. Asking for one that it does not hold is an error of the log, told in its words."""

from __future__ import annotations

from gated.core.policy import Policy
from gated.errors import GatedError


class PolicyMissing(GatedError):
    """A record was decided under a policy whose text the log does not hold."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the log does not hold the policy `{digest}` that its records name: something was taken out of it")
        self.digest = digest


class Known(dict[str, Policy]):
    """By digest."""

    def __missing__(self, digest: str) -> Policy:
        raise PolicyMissing(digest)
