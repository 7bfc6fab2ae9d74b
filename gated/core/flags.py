"""Logic flags: where this gated decides otherwise than one that wrote a record before.

A record says which of them its decisions asked for, and a replay decides by those alone: so old logs keep their meaning.
INVARIANT: a number is never given again.
"""

from __future__ import annotations

from typing import Final

LISTED: Final = 1  # a run that is bound to another policy lists its first strangers and counts the others

FLAGS: Final = (LISTED,)
