"""What the SDK raises. A tool must not run after any of these but `Unreported`, after which it has run."""

from __future__ import annotations

from typing import Any

from gated.errors import GatedError
from gated.wire import Verdict


class GateError(GatedError):
    """The call may not run, or the gate did not say that it may."""


class Denied(GateError):
    """The gate said no; `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"{verdict.code}: {verdict.reason}")
        self.verdict = verdict


class Rejected(Denied):
    """A person said no."""


class Expired(Denied):
    """Nobody answered in time."""


class Suspended(GateError):
    """A person must answer first; `verdict.ticket` is where."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"waits for an approval (ticket {verdict.ticket}): {verdict.reason}")
        self.verdict = verdict


class AlreadyMade(GateError):
    """The call was allowed, and was made by this process or has its outcome (or lapsed): it does not run a second time."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"call `{verdict.call}` was made already: it does not run again")
        self.verdict = verdict


class Refused(GateError):
    """The message, or one call of it, was not taken: malformed, or not this agent's to send.

    `verdicts` are those of the other calls of its batch: what they allow may run, and is to be reported.
    """

    def __init__(self, code: str, reason: str, verdicts: tuple[Verdict, ...] = ()) -> None:
        super().__init__(f"{code}: {reason}")
        self.code, self.reason, self.verdicts = code, reason, verdicts


class GateUnavailable(GateError):
    """No verdict came: the gate or the bus is out of reach. The tool does not run."""


class Unreported(GateError):
    """The tool ran and gave `result`, but the gate did not take its outcome: `code` says why, where it was refused.

    Do not run it again; its outcome may be reported again (`run.report`) until the call's time is over.
    """

    def __init__(self, call: str, result: Any, why: GateError) -> None:
        super().__init__(f"call `{call}` ran, and its outcome could not be reported: {why}")
        self.call, self.result = call, result
        self.code = why.code if isinstance(why, Refused) else None


def described(error: BaseException) -> str:
    """As a line for the log: its kind, and what it says where it says something."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def waits(error: BaseException | None) -> bool:
    """Whether nothing but answers of people is missing: `Suspended`, or of several tasks only such."""
    if isinstance(error, BaseExceptionGroup):
        return all(waits(one) for one in error.exceptions)
    return isinstance(error, Suspended)


def error_of(verdict: Verdict) -> GateError:
    """The exception for a verdict after which the call may not run (now)."""
    if verdict.decision == "suspend":
        return Suspended(verdict)
    if verdict.decision == "allow":
        return AlreadyMade(verdict)
    kinds = {"approvals.rejected": Rejected, "approvals.expired": Expired}
    return kinds.get(verdict.code or "", Denied)(verdict)
