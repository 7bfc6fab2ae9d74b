"""The streams of a cluster, their settings, and the check that a server's streams have them.

| stream | subjects | what |
|---|---|---|
| `GATED_IN` | `gated.in.*.*.*.*`, stored as `gated.in.<p>.<thread>.<run>.<role>.<name>` | inputs |
| `GATED_TIMERS` | `gated.timer.<p>.<thread>.<run>`; `gated.due.<thread>.<run>` | deadlines to come; those that came |
| `GATED_LOG` | `gated.log.<p>.<thread>`, and what has three tokens: leases, policies, parts, checkpoints | the log |
| `GATED_SNAPSHOTS` | `gated.snapshot.<p>.<thread>.<n>` | the last snapshot of each thread |

`p` is the partition of the thread: FNV-1a of its name modulo P, as the server's own subject transform computes it. P is fixed
when the streams are made and stands in the log stream's metadata.
Deadlines are message schedules; when one has come the server stores a message that the stream of inputs takes over (`sources`).
They have a stream of their own. INVARIANT: nobody but the daemon may publish to a stream that takes schedules or roll-ups: in
the stream of inputs an agent could schedule an input in an approver's name, or roll up everybody's.

The server acknowledges an input on whatever subject its publisher names as reply, and asks nobody whether that one may publish
there. So the log, the timers and the snapshots listen on subjects that nobody can guess, `gated.write.<secret>.…`, and store what
comes there under the names above: else an agent could have an acknowledgement stored as a lease. The secret stands in the
streams' settings, which only the daemon and auditors may read.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import anyio
from nats.aio.client import Client

from gated import wire
from gated.shell.input_places import SPARE
from gated.shell.log import LogError, LogUnavailable
from gated.shell.log.jetstream_api import NOT_FOUND, JetStreamApi, Refused
from gated.shell.log.jetstream_inputs import Inputs, last_handled
from gated.shell.log.jetstream_names import Names

PARTITIONS: Final = 64
MIN_SERVER: Final = (2, 14, 0)  # atomic batches and schedules are of 2.12; the first with CONSUMER.RESET
PIN_SECONDS: Final = 2.5  # a worker that has not pulled for so long loses its partition
GROUP: Final = "gated"
ACK_WAIT: Final = 60.0
MAX_AGE: Final = 3600.0  # seconds that raw inputs stay
DUPLICATES: Final = 120.0  # seconds in which a message id is recognised
RACES: Final = 20  # workers that start at the same time make the same streams
IN_USE: Final = 10058
INFO_SECONDS: Final = 1.5  # for what one consumer's leader says
META: Final = "gated-partitions"
_NANO: Final = 1_000_000_000


class SetupError(LogError):
    """The server or its streams are not what a cluster needs: every fault, and how to mend it."""


def wanted_streams(names: Names, partitions: int, replicas: int, secret: str) -> list[dict[str, Any]]:
    """The settings of every stream."""
    common = {"storage": "file", "retention": "limits", "num_replicas": replicas, "max_msgs": -1, "max_bytes": -1}
    forever = {**common, "max_age": 0, "allow_direct": True, "allow_atomic": True, "discard": "new"}
    source = f"{names.prefix}.in.*.*.*.*"
    stored = f"{names.prefix}.in.{{{{partition({partitions},1)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}"
    due = names.due("*", "*")
    kept = [names.record("*", "*"), *(f"{names.prefix}.{kind}.*" for kind in ("lease", "part", "policy", "checkpoint"))]
    everything = {"src": names.written(f"{names.prefix}.>", secret), "dest": f"{names.prefix}.>"}
    return [
        {
            **forever,
            "discard": "old",  # a stream of schedules can have no other, and this one has no limit
            "name": names.timers,
            "subjects": [names.written(names.timer("*", "*", "*"), secret), due],
            "subject_transform": {
                "src": names.written(names.timer("*", "*", "*"), secret),
                "dest": names.timer("{{wildcard(1)}}", "{{wildcard(2)}}", "{{wildcard(3)}}"),
            },
            "allow_msg_ttl": True,
            "allow_msg_schedules": True,
        },
        {
            **common,
            "name": names.inputs,
            "subjects": [source],
            "subject_transform": {"src": source, "dest": f"{stored}.{{{{wildcard(3)}}}}.{{{{wildcard(4)}}}}"},
            "sources": [{"name": names.timers, "subject_transforms": [{"src": due, "dest": f"{stored}.timer.daemon"}]}],
            "max_age": int(MAX_AGE * _NANO),
            "duplicate_window": int(DUPLICATES * _NANO),
            "max_msg_size": 2 * wire.MAX_PAYLOAD,
            "deny_delete": True,
            "deny_purge": True,
            "allow_rollup_hdrs": False,
            "allow_msg_schedules": False,
        },
        {
            **forever,
            "name": names.log,
            "subjects": [names.written(subject, secret) for subject in kept],
            "subject_transform": everything,
            "max_msgs_per_subject": -1,
            "deny_delete": True,
            "deny_purge": True,
            "metadata": {META: str(partitions)},
        },
        {
            **forever,
            "name": names.snapshots,
            "subjects": [names.written(names.snapshot("*", "*", "*"), secret)],
            "subject_transform": everything,
            "max_msgs_per_subject": 1,
            "discard": "old",
        },
    ]


def wanted_consumer(names: Names, partition: int) -> dict[str, Any]:
    return {
        "durable_name": names.consumer(partition),
        "filter_subject": f"{names.prefix}.in.{partition}.>",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": int(ACK_WAIT * _NANO),
        "max_ack_pending": 5_000,
        "max_waiting": 64,
        "priority_groups": [GROUP],
        "priority_policy": "pinned_client",
        "priority_timeout": int(PIN_SECONDS * _NANO),
    }


# settings that an operator may choose: how long inputs are kept, limits of waiting; and more replicas than were asked for
_FREE: Final = ("duplicate_window", "max_msg_size", "ack_wait", "max_ack_pending", "max_waiting")


def differences(kind: str, wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What is wrong with a stream or consumer, a line each."""
    wrong = []
    for key, value in wanted.items():
        have = found.get(key)
        if key == "metadata":
            have = {META: (have or {}).get(META)}
        if key in _FREE or _fits(have, value) or (have is None and value in (False, -1, 0)):
            continue
        if (key == "max_age" and value and have) or (key == "num_replicas" and have >= value):
            continue
        if key == "subjects" and sorted(have or ()) == sorted(value):
            continue
        wrong.append(f"{kind}: `{key}` is `{have}`, it must be `{value}`")
    return wrong


def _fits(have: Any, want: Any) -> bool:
    """Whether a setting is as it should be; the server may tell more of it."""
    if isinstance(want, dict):
        return isinstance(have, dict) and all(_fits(have.get(key), value) for key, value in want.items())
    if isinstance(want, list):
        return isinstance(have, list) and len(have) == len(want) and all(map(_fits, have, want))
    return bool(have == want)


def check_server(client: Client) -> None:
    """Raises `SetupError` where the server is too old or takes too little at once."""
    version = client.connected_server_version
    if (version.major, version.minor, version.patch) < MIN_SERVER:
        wanted = ".".join(map(str, MIN_SERVER))
        raise SetupError(
            f"the server has version {version.major}.{version.minor}.{version.patch}, a cluster needs at least {wanted}"
        )
    if client.max_payload < wire.MAX_PAYLOAD + 8192:
        raise SetupError(
            f"the server's `max_payload` is {client.max_payload}: set it to at least {2 * wire.MAX_PAYLOAD} in its configuration"
        )


class Shape(NamedTuple):
    """What a log was made with."""

    partitions: int
    replicas: int
    secret: str


async def ensure_streams(api: JetStreamApi, names: Names, partitions: int = PARTITIONS, replicas: int = 1) -> Shape:
    """Make what is missing, check what is there. Raises `SetupError`, `LogUnavailable`."""
    check_server(api.client)
    for _ in range(RACES):
        try:
            return await _ensure(api, names, partitions, replicas)
        except Refused as error:
            if error.code != IN_USE:
                raise
            await anyio.sleep(0.1)  # another worker makes the streams at this moment: take what it made
    raise LogUnavailable("others make the streams again and again")


async def _ensure(api: JetStreamApi, names: Names, partitions: int, replicas: int) -> Shape:
    wrong: list[str] = []
    found = {name: await _stream(api, name) for name in (names.timers, names.inputs, names.log, names.snapshots)}
    log = found[names.log]
    if log is not None:
        partitions = _partitions(log["config"]) or partitions
    secret = _secret(names, found) or secrets.token_hex(16)
    first = await _first_input(api, names, partitions, found) if log is not None else {}
    for wanted in wanted_streams(names, partitions, replicas, secret):
        if wanted["name"] == names.inputs:
            wanted |= first
        try:
            have = found[wanted["name"]] or await api.ask(f"STREAM.CREATE.{wanted['name']}", wanted)
        except Refused as error:
            if error.code == IN_USE:
                raise
            wrong.append(f"stream {wanted['name']}: {error.why}")
            continue
        replicas = max(replicas, have["config"]["num_replicas"])
        wrong += differences(f"stream {wanted['name']}", wanted, have["config"])
    if not wrong:
        wrong = await _ensure_consumers(api, names, partitions)
    if wrong:
        raise SetupError("; ".join(wrong) + ": correct these settings, or remove what is not gated's")
    return Shape(partitions, replicas, secret)


async def _first_input(
    api: JetStreamApi, names: Names, partitions: int, found: Mapping[str, dict[str, Any] | None]
) -> dict[str, int]:
    """From where a stream of inputs that is made anew counts. Raises `SetupError` where the one there is behind the log."""
    if found[names.inputs] is not None:
        if behind := await Inputs(api, names, partitions).why_not():
            raise SetupError(behind)
        return {}
    handled = await last_handled(api, names, partitions)
    return {"first_seq": handled + SPARE} if handled else {}


def _secret(names: Names, found: Mapping[str, dict[str, Any] | None]) -> str:
    """The token that the streams which are there listen on."""
    start = f"{names.prefix}.write."
    for stream in found.values():
        for subject in [] if stream is None else stream["config"].get("subjects") or []:
            if subject.startswith(start):
                return str(subject[len(start) :].partition(".")[0])
    return ""


async def _stream(api: JetStreamApi, name: str) -> dict[str, Any] | None:
    try:
        return await api.ask(f"STREAM.INFO.{name}")
    except Refused as error:
        if error.code in NOT_FOUND:
            return None
        raise


def _partitions(config: dict[str, Any]) -> int | None:
    text = (config.get("metadata") or {}).get(META, "")
    return int(text) if text.isdigit() and int(text) > 0 else None


async def partitions_of(api: JetStreamApi, names: Names) -> int:
    """How many partitions a log has. Raises `LogUnavailable` where there is none."""
    found = await _stream(api, names.log)
    if found is None:
        raise LogUnavailable(f"the server has no log: there is no stream {names.log}")
    count = _partitions(found["config"])
    if count is None:
        raise LogUnavailable(f"the stream {names.log} is not a log of gated: its metadata has no `{META}`")
    return count


async def _ensure_consumers(api: JetStreamApi, names: Names, partitions: int) -> list[str]:
    """Make the consumers that are missing, and say what is wrong with the others."""
    made, wrong = await make_missing_consumers(api, names, partitions), []
    infos = made | await consumers(api, names, [partition for partition in range(partitions) if partition not in made])
    for partition, info in infos.items():
        kind = f"consumer {names.consumer(partition)} of {names.inputs}"
        wrong += differences(kind, wanted_consumer(names, partition), info["config"])
    return sorted(wrong)


async def make_missing_consumers(api: JetStreamApi, names: Names, partitions: int) -> dict[int, dict[str, Any]]:
    """What the server says of those that were missing, by partition. Raises `Refused`, `LogUnavailable`."""
    have, made, limit = await _consumer_names(api, names), dict[int, dict[str, Any]](), anyio.CapacityLimiter(16)

    async def make(partition: int) -> None:
        async with limit:
            name = names.consumer(partition)
            question = {"stream_name": names.inputs, "config": wanted_consumer(names, partition), "action": "create"}
            made[partition] = await api.ask(f"CONSUMER.CREATE.{names.inputs}.{name}", question)

    async with anyio.create_task_group() as tasks:
        for partition in range(partitions):
            if names.consumer(partition) not in have:
                tasks.start_soon(make, partition)
    return made


async def faults_of_streams(api: JetStreamApi, names: Names, shape: Shape) -> list[str]:
    """What is wrong with the streams of a cluster that runs. Raises `Refused`, `LogUnavailable`."""
    wrong: list[str] = []
    for wanted in wanted_streams(names, *shape):
        have, kind = await _stream(api, wanted["name"]), f"stream {wanted['name']}"
        wrong += [f"{kind} is gone"] if have is None else differences(kind, wanted, have["config"])
    return wrong


async def _consumer_names(api: JetStreamApi, names: Names) -> set[str]:
    found: set[str] = set()
    while True:
        page = await api.ask(f"CONSUMER.NAMES.{names.inputs}", {"offset": len(found)})
        found.update(page.get("consumers") or ())
        if not page.get("consumers") or len(found) >= page["total"]:
            return found


async def consumers(api: JetStreamApi, names: Names, partitions: Iterable[int]) -> dict[int, dict[str, Any]]:
    """What the server says of the consumer of each partition, without those that have no leader just now, or are gone.

    They are asked for one by one: a list of all waits for every server of a cluster, also for one that is away.
    """
    found: dict[int, dict[str, Any]] = {}

    async def ask(partition: int) -> None:
        with suppress(LogUnavailable, Refused):
            found[partition] = await api.ask(f"CONSUMER.INFO.{names.inputs}.{names.consumer(partition)}", seconds=INFO_SECONDS)

    async with anyio.create_task_group() as tasks:
        for partition in partitions:
            tasks.start_soon(ask, partition)
    return found
