"""Whether a cluster's stream of inputs is the one that its log was made of: `gated/shell/input_places.py` says why it must be."""

from __future__ import annotations

import base64

import anyio

from gated.shell.input_places import place_in
from gated.shell.log.jetstream_api import NOT_FOUND, JetStreamApi, Refused
from gated.shell.log.jetstream_names import Names


class Inputs:
    """The stream of inputs, as one worker has seen it."""

    def __init__(self, api: JetStreamApi, names: Names, partitions: int) -> None:
        self._api, self._names, self._partitions = api, names, partitions
        self._made, self._last = "", 0  # when the stream was made, by its own word; its last place at the last look

    async def why_not(self) -> str:
        """Why it may not be worked on: the log has inputs that it never had. Raises `Refused` where it is gone."""
        info = await self._api.ask(f"STREAM.INFO.{self._names.inputs}")
        made, last = str(info["created"]), int(info["state"]["last_seq"])
        if made != self._made or last < self._last:
            handled = await last_handled(self._api, self._names, self._partitions)
            if last < handled:
                return (
                    f"the stream {self._names.inputs} ends at {last}, and the log has inputs up to {handled}: it was made anew, "
                    "or lost its end, and new inputs would pass for old ones. Stop the workers and remove the stream: the first "
                    "one that starts makes it again, and it counts on from behind the log (docs/reliability.md)"
                )
        self._made, self._last = made, last
        return ""


async def last_handled(api: JetStreamApi, names: Names, partitions: int) -> int:
    """The highest place of an input among the newest records of all partitions; 0 where there is none."""
    found, limit = [0], anyio.CapacityLimiter(16)

    async def ask(partition: int) -> None:
        async with limit:
            found.append(await _newest(api, names, partition))

    async with anyio.create_task_group() as tasks:
        for partition in range(partitions):
            tasks.start_soon(ask, partition)
    return max(found)


async def _newest(api: JetStreamApi, names: Names, partition: int) -> int:
    try:
        said = await api.ask(f"STREAM.MSG.GET.{names.log}", {"last_by_subj": names.record(partition, "*")})
    except Refused as error:
        if error.code in NOT_FOUND:
            return 0
        raise
    return place_in(base64.b64decode(said["message"]["data"]))
