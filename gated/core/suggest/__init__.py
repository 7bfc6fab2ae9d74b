"""A policy out of recorded runs: what was allowed and ran is allowed, and nothing else.

    watch = Watch(); for record in log: watch.feed(record); data = suggest(watch, known)

What people decide (machines, contracts, approvals, patterns) cannot be read off a log and is not made up.
"""

from gated.core.suggest.making import suggest
from gated.core.suggest.watching import Watch

__all__ = ["Watch", "suggest"]
