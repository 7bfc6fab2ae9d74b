"""What `gated policy check` finds beyond load errors: rules that can never work, and rules that do less than they seem to.

    lint(policy) -> list[Advice]              # each with its place in the document
    threads(policy, states) -> list[Advice]   # what it would meet on threads that are there

A *warning* is something that does not do what it was written for, or leaves a door open; *advice* is worth a thought.
"""

from __future__ import annotations

from gated.core.lint.advice import Advice, Subject
from gated.core.lint.agents import agents
from gated.core.lint.barriers import barriers
from gated.core.lint.detectors import detectors
from gated.core.lint.lists import lists
from gated.core.lint.machines import machines
from gated.core.lint.patterns import comparisons, numbers, positionals
from gated.core.lint.people import people
from gated.core.lint.rules import rules
from gated.core.lint.threads import threads
from gated.core.policy import Policy

__all__ = ["Advice", "lint", "threads"]


def lint(policy: Policy) -> list[Advice]:
    """Every finding, part by part of the policy; what holds of several agents by a default is said once."""
    subject = Subject(policy)
    parts = (agents, lists, comparisons, numbers, positionals, barriers, machines, rules, detectors, people)
    return list(dict.fromkeys(advice for part in parts for advice in part(subject)))
