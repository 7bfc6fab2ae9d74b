"""The streams and consumers of a cluster while it runs: somebody may remove by hand, or change, what its workers made.

A consumer that is gone is made again: what the stream has of its partition comes again, and what the log decided of it is
answered from there. A stream is not, since inputs are counted by their places in it: what is wrong with one is said.
INVARIANT: a worker that finds the stream of inputs behind the log ends: it would acknowledge what it never decides.
"""

from __future__ import annotations

from typing import Final

import anyio
import structlog

from gated.shell.log import LogError
from gated.shell.log.jetstream_inputs import Inputs
from gated.shell.log.jetstream_streams import SetupError, faults_of_streams, make_missing_consumers
from gated.shell.place import Place

EVERY: Final = 10.0  # seconds between two looks

log = structlog.get_logger("gated.worker")


async def keep_streams(place: Place) -> None:
    """Look after them until cancelled. Raises `SetupError` where the stream of inputs is not the one that the log is of."""
    said, inputs = list[str](), Inputs(place.api, place.names, place.shape.partitions)
    while True:
        try:
            if behind := await inputs.why_not():
                raise SetupError(behind)
            wrong = await faults_of_streams(place.api, place.names, place.shape)
            if wrong and wrong != said:
                log.error("the streams are not as they must be: correct them", why="; ".join(wrong))
            said = wrong
            made = await make_missing_consumers(place.api, place.names, place.shape.partitions)
            if made:
                log.error("consumers were gone: made again, and what is stored comes again", partitions=sorted(made))
        except* SetupError:
            raise
        except* LogError as errors:
            log.warning("cannot look after the streams just now", error="; ".join(str(error) for error in errors.exceptions))
        await anyio.sleep(EVERY)
