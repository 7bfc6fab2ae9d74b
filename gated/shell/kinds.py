"""What a file is, told by its keys: a policy, scenarios, the schema of a policy, or nothing that can be told.

INVARIANT: what holds a key of a policy is a policy, so that nothing in a folder that says what agents may do is passed over.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from gated.core.policy_file import PolicyEntry
from gated.core.scenario.format import ScenarioFile
from gated.documents import Document, DocumentError, did_you_mean

_POLICY: Final = frozenset(PolicyEntry.__struct_encode_fields__)
_SCENARIOS: Final = frozenset(ScenarioFile.__struct_encode_fields__)
_SCHEMAS: Final = "https://json-schema.org/"


class Kind(Enum):
    policy = auto()
    scenarios = auto()
    schema = auto()
    neither = auto()


def kind_of(document: Document) -> Kind:
    data = document.data if isinstance(document.data, dict) else {}
    keys = frozenset(data)
    if keys & (_POLICY - {"version"}) or keys == {"version"}:
        return Kind.policy
    if keys and keys <= _SCENARIOS:
        return Kind.scenarios
    return Kind.schema if str(data.get("$schema", "")).startswith(_SCHEMAS) else Kind.neither


def neither(document: Document) -> DocumentError:
    """What is said of a file that is of no kind, at its first key that no file has."""
    known = _POLICY | _SCENARIOS
    for key in document.data if isinstance(document.data, dict) else ():
        if key not in known:
            message = f"neither a policy nor scenarios: `{key[:80]}` is a key of neither{did_you_mean(key, known)}"
            return document.error((key,), message)
    return document.error((), "neither a policy, which begins with `version: 1`, nor scenarios, which begin with `policy:`")
