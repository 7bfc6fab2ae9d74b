"""`gated asyncapi`: the bus contract."""

from __future__ import annotations

import json
import sys

from gated.asyncapi import document
from gated.cli.help import single

app = single()


@app.command(epilog="Example: gated asyncapi > docs/asyncapi.json")
def asyncapi() -> None:
    """The bus contract as an AsyncAPI document."""
    sys.stdout.write(json.dumps(document(), indent=1) + "\n")
