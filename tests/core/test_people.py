"""Names of people are tokens of the bus: one that nobody can have on it is a load error, since it would hold for nothing."""

from __future__ import annotations

import pytest

from gated.core.policy import load_text
from gated.documents import DocumentError

ASKING = "version: 1\nagents:\n  a: {allowed_tools: [T], approval_required: [T]%s}\n%s"


@pytest.mark.parametrize("name", ["ana.smith", "ana@corp.example", "zoë", "a b", "*", ">", "x" * 129, ""])
@pytest.mark.parametrize(
    ("agent", "more", "line"),
    [
        (", owner: {name}", "", 3),
        ("", "groups: {{leads: [{name}]}}\n", 4),
        ("", "approvals: {{default: {{approvers: [{user}]}}}}\n", 4),
        ("", "approvals: {{rules: [{{on: T, stages: [[{user}]]}}]}}\n", 4),
        ("", "approvals: {{default: {{escalate: {{after: 1s, to: [{user}]}}}}}}\n", 4),
    ],
)
def test_a_name_that_nobody_can_have_is_a_load_error(name: str, agent: str, more: str, line: int) -> None:
    quoted = {"name": f'"{name}"', "user": f'"user:{name}"'}
    with pytest.raises(DocumentError) as found:
        load_text(ASKING % (agent.format(**quoted), more.format(**quoted)), "policy.yaml")
    assert (found.value.file, found.value.line) == ("policy.yaml", line)


def test_a_name_that_somebody_may_have_is_none() -> None:
    load_text(
        ASKING % (", owner: ana-2", "groups: {leads: [Bob_3]}\napprovals: {default: {approvers: ['user:cy']}}\n"), "policy.yaml"
    )
