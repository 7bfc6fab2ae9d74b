"""The names that a policy file may give: to agents and people, to tools, and to its own parts. A name that nobody can have, or
nobody can read, is a load error.

Where a policy wants the name of a tool, a pattern would count, pair or ground nothing, in silence.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gated.ingress import ID_PATTERN, TOOL_PATTERN

Name = Annotated[str, Meta(pattern=ID_PATTERN, description="a name: 1 to 128 of A-Z a-z 0-9 _ -")]
Label = Annotated[str, Meta(pattern=r"\S", max_length=128, description="a name: 1 to 128 characters, not all of them blank")]
Words = Annotated[str, Meta(pattern=r"\S", description="a text that is not blank")]
ToolName = Annotated[
    str, Meta(pattern=TOOL_PATTERN, description="the name of one tool: 1 to 128 of A-Z a-z 0-9 _ . : / -, no pattern")
]
