"""What a comparison cannot say: a rule would have to read what was taken out of the log, or what nobody looked at then."""

from __future__ import annotations

from collections.abc import Set

from gated.core.call import Call
from gated.core.policy import Policy, Profile
from gated.core.reading import NONE, hidden_in, reads_arguments
from gated.core.stages import semantic
from gated.core.whatif.compared import Verdict
from gated.events import ThreadId

Blind = Set[tuple[ThreadId, str]]  # machines of a thread whose moves rest on a redacted result


def unreadable(policy: Policy, profile: Profile, thread: ThreadId, blind: Blind, plea: Call) -> str | None:
    """Which rule would have to read what was redacted, or what was not recorded."""
    if plea.links is None and profile.privilege.scope.paths_to_resolve(plea.tool, plea.args):
        return "where its paths lead was not recorded"
    hidden = hidden_in(plea.args)
    if hidden != NONE:
        rule = reads_arguments(policy, profile, plea.tool, hidden)
        if rule is not None:
            return f"{rule} reads the arguments, which were redacted"
    for touch in profile.machines.touches(plea.tool, plea.args).touches if blind else ():
        if (thread, touch.machine) in blind:
            return f"machine `{touch.machine}` reads a result that was redacted"
    return None


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
