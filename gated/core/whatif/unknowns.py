"""What a comparison cannot say: a rule would have to read what was taken out of the log, or what nobody looked at then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from gated import canonical
from gated.core.call import Call
from gated.core.policy import Policy, Profile
from gated.core.reading import NONE, hidden_in, keyed_by, unread
from gated.core.stages import semantic
from gated.core.whatif.compared import Verdict
from gated.events import ThreadId, Touch

Machines = Set[tuple[ThreadId, str]]


def unreadable(policy: Policy, profile: Profile, thread: ThreadId, blind: Machines, lost: Machines, plea: Call) -> str | None:
    """Which rule would have to read what was redacted, or what was not recorded."""
    if plea.links is None and profile.privilege.scope.paths_to_resolve(plea.tool, plea.args):
        return "where its paths lead was not recorded"
    rule = unread(policy, profile, plea.tool, plea.args)
    if rule is not None:
        return rule
    for touch in profile.machines.touches(plea.tool, plea.args).touches if blind else ():
        if (thread, touch.machine) in blind:
            return f"machine `{touch.machine}` reads a result that was redacted"
    for touch in profile.machines.touches(plea.tool, plea.args).touches if lost and _was_opened(plea) else ():
        if (thread, touch.machine) in lost:
            return f"machine `{touch.machine}` was moved by calls whose arguments were redacted"
    return None


def _was_opened(plea: Call) -> bool:
    """Whether something of the call was redacted, and is read with its key: the log knows it by a keyed digest."""
    return plea.args_sha256 != canonical.args_digest(plea.tool, plea.args)


def lost_by(profile: Profile, plea: Call, touches: Iterable[Touch]) -> Iterator[str]:
    """The machines that a call moves under keys that were redacted: the same keys in calls that are opened are others."""
    hidden = hidden_in(plea.args)
    if hidden != NONE:
        yield from (touch.machine for touch in touches if keyed_by(profile.machines.by_name[touch.machine], hidden))


def unscored(policy: Policy, seen: semantic.Seen, plea: Call, recorded: Verdict, derived: Verdict) -> str | None:
    """Which detector would have to say what nobody asked it when the call was decided."""
    rules = policy.semantic
    if rules is None or derived.code != "semantic.unavailable" or recorded.code == derived.code:
        return None
    for name in semantic.unasked(rules, seen, plea.tool, plea.args, plea.scores):
        return f"`{name}` was not asked about the call"
    if semantic.NOT_READ in (seen.injection_unknown, seen.fingerprints_unknown):
        return "no detector looked at earlier results"
    return None
