"""The log on JetStream when things go wrong under it: late writes, unknown outcomes, stale leases, servers set up wrong."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from gated.core.chain import verify_records
from gated.events import Record, RunId, ThreadId
from gated.shell.log import LogConflict, LogDamaged, LogError, LogLocked, LogUnavailable, jetstream, jetstream_api
from gated.shell.log.jetstream import JetStreamLog
from gated.shell.log.jetstream_api import Outcome, Outgoing, Refused, Stored, open_api
from gated.shell.log.jetstream_leases import EXPECTED, EXPECTED_ON
from gated.shell.log.jetstream_names import Names, partition_of
from gated.shell.log.jetstream_reader import HASH
from gated.shell.log.jetstream_streams import META, SetupError, ensure_streams, wanted_consumer, wanted_streams
from gated.shell.nats_client import header_lines
from shell.log.backends import JetStreamBackend, all_of, chained, intact

T, U = ThreadId("t"), ThreadId("u")


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JetStreamBackend]:
    made = JetStreamBackend(tmp_path, monkeypatch)
    yield made
    await made.disconnect()


def following(records: list[Record], count: int = 1, text: str = "more") -> list[Record]:
    return chained(records[-1].thread, count, records[-1], text)


async def raw(log: JetStreamLog, record: Record, headers: dict[str, str]) -> int:
    """Store a record by hand."""
    return await log.api.store(log.messages.of(log.subject(record.thread), record.body, {HASH: record.hash, **headers}))


# --- who writes ------------------------------------------------------------------------------------------------------


async def test_a_write_that_was_held_up_while_another_took_over_never_lands(cluster: JetStreamBackend) -> None:
    """The worker that slept for a minute: its decision leaves its machine when another has decided already."""
    first = chained()
    sleeper = await cluster.open()
    await sleeper.append(T, 0, first)
    with cluster.stalled():
        late = asyncio.create_task(sleeper.append(T, 3, following(first, text="late")))
        await anyio.sleep(0.05)
        other = await open_beside(cluster)
        await other.append(T, 3, following(first, text="the decision"))
    with pytest.raises(LogLocked, match="worker other"):
        await late
    assert await all_of(other) == [*first, *following(first, text="the decision")]
    with pytest.raises(LogLocked):
        await sleeper.get(T, 5)
    await sleeper.close()
    await other.close()


async def open_beside(cluster: JetStreamBackend, **options: Any) -> JetStreamLog:
    """A writer whose connection does not stall."""
    client = await cluster.client()
    client.stalled = False
    return await jetstream.open_for_writing(client, "other", prefix=cluster.prefix, partitions=4, owns=True, **options)


@pytest.mark.parametrize("count", [1, 3, 40], ids=["one", "one thread", "a batch"])
async def test_every_form_of_append_is_fenced(cluster: JetStreamBackend, count: int) -> None:
    stale = await cluster.open()
    await stale.append_many(chained("x", 1))
    fresh = await cluster.open()
    with pytest.raises(LogLocked):
        await stale.append_many(chained("t", count))
    with pytest.raises(LogLocked):
        await stale.append_many([chained(f"n{n}", 1)[0] for n in range(3)])
    assert await intact(fresh) == 1
    await fresh.append_many(chained("t", count))
    assert await intact(fresh) == 1 + count
    await stale.close()
    await fresh.close()


async def posted(api: jetstream_api.JetStreamApi, *groups: list[Outgoing] | None) -> list[Outcome]:
    """What became of messages that were sent together."""
    ended: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
    await api.post([group for group in groups if group is not None], ended.set_result)
    return await ended


async def test_of_appends_that_are_sent_together_one_that_is_fenced_fails_alone(cluster: JetStreamBackend) -> None:
    api = await open_api(await cluster.client())
    shape = await ensure_streams(api, Names(cluster.prefix), 4, 1)
    stale, sound = [JetStreamLog(api, Names(cluster.prefix), shape, worker) for worker in ("stale", "sound")]
    await stale.take_over([partition_of(T, 4)])
    await sound.take_over([partition_of(U, 4)])
    for log, thread in ((stale, T), (sound, U)):
        await log.append_many(chained(thread, 1))
    other = await open_beside(cluster, only=[partition_of(T, 4)])
    late, more = following(chained("t", 1)), following(chained("u", 1))
    refused, stored = await posted(api, await stale.begin(late), await sound.begin(more))
    assert isinstance(refused, Refused)
    assert isinstance(stored, list)
    stale.ended(late, None)
    sound.ended(more, stored)
    assert await sound.begin(late) is None  # not its next
    with pytest.raises(LogLocked, match="worker other"):
        await stale.append_many(late)
    await sound.append_many(following(more))
    assert [record.seq for record in await all_of(sound)] == [1, 1, 2, 3]
    await other.close()
    await api.close()


async def test_an_append_that_is_sent_with_others_does_not_wait_for_who_waited_before_it(cluster: JetStreamBackend) -> None:
    log, first = await cluster.open(), chained()
    await log.append(T, 0, first)
    more = following(first)
    begun = await log.begin(more)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.save_snapshot, T, 3, b"a snapshot")
        (stored,) = await posted(log.api, begun)
        assert isinstance(stored, list)
        log.ended(more, stored)
        assert await log.begin(following(more)) is None  # the snapshot is next, though its task was not woken yet
    assert await log.begin(following(more)) is not None
    log.ended(following(more), None)
    await log.close()


async def test_an_append_that_is_sent_with_others_begins_only_where_nothing_stands_in_its_way(cluster: JetStreamBackend) -> None:
    log, first, most = await cluster.open(), chained(), jetstream_api.SPARE
    more = following(first)
    assert await log.begin(first[:1]) is None  # it is not known where the thread ends
    await log.append(T, 0, first)
    assert await log.begin([*more, *following(more)]) is None  # two of a thread
    large = following(first, text="x" * (log.api.client.max_payload - most))
    assert await log.begin(large) is None  # it has parts
    assert await log.begin(more) is not None
    assert await log.begin(more) is None  # one is under way
    cluster.hurry()
    with cluster.stalled():
        (lost,) = await posted(log.api, log.messages.of_record(more[0], log.leases.held[partition_of(T, 4)]))
    assert isinstance(lost, LogUnavailable)
    log.ended(more, None)
    assert await log.begin(more) is None  # its outcome is not known
    assert await log.get(T, 4) == more[0]
    assert await log.begin(following(more)) is not None
    log.ended(more, None)
    await log.close()


async def test_a_connection_that_breaks_while_it_is_written_to_is_a_log_that_is_away(
    cluster: JetStreamBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_off(lines: bytes) -> None:
        raise ConnectionResetError("the connection is broken")

    log = await cluster.open()
    with monkeypatch.context() as patched:
        patched.setattr(log.api.client, "send", break_off)
        (lost,) = await posted(log.api, log.messages.of_record(chained()[0], log.leases.held[partition_of(T, 4)]))
        assert isinstance(lost, LogUnavailable)
        with pytest.raises(LogUnavailable, match="the connection is broken"):
            await log.append(T, 0, chained())
    await log.append(T, 0, chained())
    await log.close()


async def test_a_late_write_of_unknown_outcome_is_in_the_log_once(cluster: JetStreamBackend) -> None:
    """The answer is lost, not the write: asking settles it by a new lease, and what comes later than that is refused."""
    first, more = chained(), following(chained(), 2)
    log = await cluster.open()
    await log.append(T, 0, first)
    before = log.epoch
    cluster.hurry()
    with cluster.stalled():
        with pytest.raises(LogUnavailable, match="cannot write the log: no answer to an append within 1s"):
            await log.append(T, 3, more)
        with pytest.raises(LogUnavailable):
            await log.get(T, 4)
    assert await log.get(T, 5) == more[1]
    assert log.epoch > before
    with pytest.raises(LogConflict, match="the log is at 5"):
        await log.append(T, 3, more)
    assert await intact(log) == 5
    await log.close()


async def test_a_write_that_is_later_than_the_new_lease_is_refused(cluster: JetStreamBackend) -> None:
    first = chained()
    log = await cluster.open()
    await log.append(T, 0, first)
    partition = partition_of(T, 4)
    old = {EXPECTED: str(log.leases.held[partition]), EXPECTED_ON: log.names.lease(partition)}
    log._doubtful = True
    assert await log.get(T, 4) is None
    with pytest.raises(Refused, match="wrong last sequence"):
        await raw(log, following(first)[0], old)
    await log.append(T, 3, following(first))
    assert await intact(log) == 4
    await log.close()


async def test_who_succeeds_an_owner_does_so_only_while_its_lease_is_the_newest(cluster: JetStreamBackend) -> None:
    partition = partition_of(T, 4)
    owner = await cluster.open()
    await owner.append(T, 0, chained())
    place = owner.leases.place_of(partition)
    late, next_one = await open_beside(cluster, only=[]), await open_beside(cluster, only=[])
    await next_one.succeed(partition, place)
    with pytest.raises(LogLocked, match=f"another than lease {place}"):
        await late.succeed(partition, place)
    more = following(chained())
    with pytest.raises(LogLocked):  # what the owner writes yet is too late
        await owner.append(T, 3, more)
    with pytest.raises(LogLocked):
        await late.append(T, 3, more)
    head = await next_one.head_of(T)
    assert head is not None
    assert head.seq == 3
    await next_one.append(T, 3, more)
    assert await intact(next_one) == 4
    for log in (owner, late, next_one):
        await log.close()


async def test_a_fence_is_one_literal_lease_so_that_other_partitions_do_not_disturb(cluster: JetStreamBackend) -> None:
    """A wildcard over all leases would refuse who writes partition 0 because partition 1 changed hands."""
    names = {partition_of(f"t{n}", 4): f"t{n}" for n in range(100)}
    one = await open_beside(cluster, only=[0])
    two = await open_beside(cluster, only=[1])
    await one.append_many(chained(names[0], 1))
    await two.take_over([1])
    await one.append_many(chained(names[0], 2)[1:])
    with pytest.raises(LogLocked, match=r"partition 1 .*not taken over by this worker"):
        await one.append_many(chained(names[1], 1))
    fences = [found.headers for found in await one.api.get_batch(one.names.log, {"seq": 1, "batch": 99})]
    assert {f[EXPECTED_ON] for f in fences if HASH in f} == {one.names.lease(0)}
    assert await intact(two) == 2
    await one.close()
    await two.close()


async def test_workers_that_take_over_at_the_same_time_leave_one_writer(cluster: JetStreamBackend) -> None:
    await (await cluster.open()).close()
    logs = [await open_beside(cluster, only=()) for _ in range(5)]
    async with anyio.create_task_group() as tasks:
        for log in logs:
            tasks.start_soon(log.take_over, range(4))
    results = await asyncio.gather(*(log.append(T, 0, chained("t", 1)) for log in logs), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["LogLocked"] * 4 + ["NoneType"]
    assert await intact(logs[0]) == 1
    for log in logs:
        await log.close()


# --- what is stored --------------------------------------------------------------------------------------------------


async def test_a_record_larger_than_a_message_is_stored_in_parts_and_read_whole(cluster: JetStreamBackend) -> None:
    large = chained("t", 2, text="x" * 5_000_000)
    log = await cluster.open()
    await log.append(T, 0, large)
    await log.append_many(chained("u", 1))
    reader = await cluster.reader()
    assert await all_of(reader) == [*large, *chained("u", 1)]
    assert await all_of(reader, 1) == [large[1], *chained("u", 1)]
    assert await reader.get(T, 2) == large[1]
    assert [r async for r in reader.read(T, 1)] == [large[1]]
    assert await reader.head() == 3
    again = await cluster.open()
    await again.append(T, 2, following(large))
    assert await intact(again) == 4
    for each in (log, reader, again):
        await each.close()


async def test_a_record_is_found_by_its_number_wherever_it_stands(cluster: JetStreamBackend) -> None:
    long, other = chained("t", 300), chained("u", 300)
    log = await cluster.open()
    for n in range(0, 300, 50):
        await log.append_many([*long[n : n + 50], *other[n : n + 50]])
    reader = await cluster.reader()
    for seq in (1, 2, 150, 299, 300):
        assert await reader.get(T, seq) == long[seq - 1]
        assert [r async for r in reader.read(U, seq)] == other[seq:]
    assert await reader.get(T, 301) is None
    await reader.close()
    await log.close()


async def test_last_messages_that_are_too_many_for_one_answer_are_asked_for_in_parts(
    cluster: JetStreamBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = [ThreadId(f"t{n}") for n in range(40)]
    log = await cluster.open()
    await log.append_many([chained(t, 1, text="x" * 2000)[0] for t in threads])
    monkeypatch.setattr(jetstream_api, "BATCH_BYTES", 20_000)
    again = await cluster.open()
    await again.append_many([chained(t, 2, text="x" * 2000)[1] for t in threads])
    assert len(await again.heads()) == 40
    assert await intact(again) == 80
    await log.close()
    await again.close()


async def test_a_message_that_is_gone_is_damage(cluster: JetStreamBackend) -> None:
    """Nobody may remove one; whoever could all the same is found out."""
    log = await cluster.open()
    await log.append(T, 0, chained("t", 4))
    with pytest.raises(Refused, match="message delete not permitted"):
        await log.api.ask(f"STREAM.MSG.DELETE.{log.names.log}", {"seq": 6})
    with pytest.raises(Refused, match="stream purge not permitted"):
        await log.api.ask(f"STREAM.PURGE.{log.names.log}")
    with pytest.raises(Refused, match="can not cancel deny message deletes"):
        await log.api.ask(
            f"STREAM.UPDATE.{log.names.log}",
            {**(await log.api.ask(f"STREAM.INFO.{log.names.log}"))["config"], "deny_delete": False},
        )
    real = log.api.get_batch

    async def holey(stream: str, question: dict[str, Any]) -> list[Any]:
        return [found for found in await real(stream, question) if found.place != 6]

    log.api.get_batch = holey  # type: ignore[method-assign]
    with pytest.raises(LogDamaged, match=r"place 6 of the stream .* is missing"):
        await all_of(log)
    with pytest.raises(LogDamaged, match="record 3 of thread `t` stands where 2 should"):
        [r async for r in log.read(T)]
    await log.close()


async def test_a_record_written_by_hand_shows(cluster: JetStreamBackend) -> None:
    log = await cluster.open()
    await log.append(T, 0, chained())
    await raw(log, chained("t", 4, text="forged")[3], {})
    damage = verify_records([item async for item in log.read_all()]).damage
    assert damage is not None
    assert (damage.position, damage.what) == (4, "the previous hash is not that of the record before")
    await log.close()


async def test_a_snapshot_is_whole_or_none(cluster: JetStreamBackend) -> None:
    log = await cluster.open()
    await log.append(T, 0, chained())
    large = bytes(range(256)) * 20_000
    await log.save_snapshot(T, 2, large)
    assert await log.load_snapshot(T) == (2, large)
    assert [r.seq async for r in log.read(T, 2)] == [3]
    subject = log.names.snapshot(partition_of(T, 4), T, 1)
    await log.api.store(log.messages.of(subject, b"of another", {"Gated-SHA256": "0" * 64}))
    assert await log.load_snapshot(T) is None
    await log.save_snapshot(T, 3, b"small")
    assert await log.load_snapshot(T) == (3, b"small")
    await log.close()


async def test_a_new_thread_is_known_to_be_one_after_a_single_question(
    cluster: JetStreamBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await cluster.open()
    asked: list[str] = []
    ask = log.api.last_of

    async def counted(stream: str, subjects: Sequence[str], up_to: int = 0) -> dict[str, Stored]:
        asked.append(stream)
        return await ask(stream, subjects, up_to)

    monkeypatch.setattr(log.api, "last_of", counted)
    assert await log.load_snapshot(T) is None
    assert [r async for r in log.read(T)] == []
    await log.append(T, 0, chained())
    assert asked == [log.names.log]
    await log.close()


async def test_a_snapshot_whose_record_s_place_is_not_known_is_one_all_the_same(cluster: JetStreamBackend) -> None:
    """Found by reading: a place of 0 was believed, and the records behind it were looked for from the start of the log."""
    log = await cluster.open()
    await log.append(T, 0, chained())
    log._places.clear()
    await log.save_snapshot(T, 2, b"two")
    assert await log.load_snapshot(T) == (2, b"two")
    assert [r.seq async for r in log.read(T, 2)] == [3]
    await log.close()


# --- deadlines -------------------------------------------------------------------------------------------------------


async def stored(log: JetStreamLog, stream: str) -> dict[str, bytes]:
    """What stands on each subject of a stream that has no direct gets, the newest."""
    subjects = (await log.api.ask(f"STREAM.INFO.{stream}", {"subjects_filter": ">"}))["state"].get("subjects") or {}
    found = [(s, await log.api.ask(f"STREAM.MSG.GET.{stream}", {"last_by_subj": s})) for s in subjects]
    return {subject: base64.b64decode(said["message"].get("data", "")) for subject, said in found}


async def test_what_is_larger_than_the_server_takes_is_not_sent(cluster: JetStreamBackend) -> None:
    """The server would end the connection, and with it whatever else is under way on it."""
    log = await cluster.open()
    with pytest.raises(LogUnavailable, match=r"cannot write the policy: .*more than its `max_payload` takes"):
        await log.put_policy("0" * 64, b" " * log.api.client.max_payload)
    most = log.api.client.max_payload - jetstream_api.OWN_HEADERS - len(header_lines({EXPECTED: "0"}))
    await log.put_policy("1" * 64, b" " * most)
    large = Outgoing(log.names.written(log.names.part(0), log.messages._secret), b" " * most, b"")
    with pytest.raises(Refused):
        await log.api.store_together([large, large._replace(data=b" " * (most + jetstream_api.OWN_HEADERS))])
    await log.api.store_together([large, large])
    assert log.api.client.stats["reconnects"] == 0
    await log.close()


async def test_nobody_who_may_publish_inputs_can_schedule_or_roll_up(cluster: JetStreamBackend) -> None:
    """A schedule's target is not checked against who asked for it: an agent would speak in an approver's name."""
    log = await cluster.open()
    subject, target = f"{cluster.prefix}.in.t.r.agent.a", f"{cluster.prefix}.in.t.r.approver.bob"
    await log.api.store(Outgoing(subject, b"{}", b""))
    for headers in (
        {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": target},
        {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": target},
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
        {"Nats-TTL": "1s"},
        {"Nats-Incr": "1"},
    ):
        with pytest.raises(Refused):
            await log.api.store(Outgoing(subject, b"{}", header_lines(headers)))
    await anyio.sleep(1.2)
    assert set(await stored(log, log.names.inputs)) == {f"{cluster.prefix}.in.{partition_of('t', 4)}.t.r.agent.a"}
    await log.close()


async def test_an_acknowledgement_cannot_be_made_a_lease_or_a_record(cluster: JetStreamBackend) -> None:
    """The server sends it to whatever reply an agent names, also where that agent may publish nothing."""
    log = await cluster.open()
    await log.append(T, 0, chained())
    subject, lease = f"{cluster.prefix}.in.t.r.agent.a", log.names.lease(partition_of(T, 4))
    for stored_as in (log.subject(T), lease, log.names.timer(1, "t", "r"), log.names.snapshot(1, "t", 0)):
        await log.api.client.publish(subject, b"{}", reply=stored_as)
    await log.api.ask(f"STREAM.INFO.{log.names.log}")
    await anyio.sleep(0.2)
    await log.append(T, 3, following(chained()))
    assert await intact(log) == 4
    for stream in (log.names.timers, log.names.snapshots):
        assert await stored(log, stream) == {}
    await log.close()


async def test_workers_that_make_the_streams_at_the_same_time_agree(cluster: JetStreamBackend) -> None:
    apis = [await open_api(await cluster.client()) for _ in range(4)]
    shapes = await asyncio.gather(*(ensure_streams(api, Names(cluster.prefix), 4) for api in apis))
    assert len(set(shapes)) == 1


async def test_a_deadline_comes_back_as_an_input_of_its_partition(cluster: JetStreamBackend) -> None:
    log = await cluster.open()
    now = time.time_ns() // 1000
    await log.append_many([], [(T, RunId("r"), now + 10_000_000), (U, RunId("r"), now - 5_000_000)])
    await log.append_many([], [(T, RunId("r"), now + 300_000)])
    subjects = [f"{cluster.prefix}.in.{partition_of(t, 4)}.{t}.r.timer.daemon" for t in "tu"]
    found: dict[str, bytes] = {}
    for _ in range(100):
        found = await stored(log, log.names.inputs)
        if len(found) == 2:
            break
        await anyio.sleep(0.05)
    assert [found[s] for s in subjects] == [b'{"due":%d}' % (now + 300_000), b'{"due":%d}' % (now - 5_000_000)]
    assert [d async for d in log.open_deadlines()] == []
    await log.append_many([], [(T, RunId("r"), 0)])
    await log.append_many([], [(T, RunId("r"), now + 3_600_000_000)])
    await log.append_many([], [(T, RunId("r"), 0)])
    assert [d async for d in log.open_deadlines()] == []
    await log.close()


# --- servers and streams that are set up wrong -----------------------------------------------------------------------


async def changed(cluster: JetStreamBackend, stream: str, **changes: Any) -> None:
    client = await cluster.client()
    api = await open_api(client)
    names = Names(cluster.prefix)
    wanted = next(w for w in wanted_streams(names, 4, 1, "secret") if w["name"].endswith(stream))
    await api.ask(f"STREAM.CREATE.{wanted['name']}", {**wanted, **changes})
    await client.close()


@pytest.mark.parametrize(
    ("stream", "changes", "message"),
    [
        ("_LOG", {"deny_delete": False}, "stream .*_LOG: `deny_delete` is `False`, it must be `True`"),
        ("_LOG", {"deny_purge": False}, "`deny_purge` is `False`"),
        ("_LOG", {"allow_atomic": False}, "`allow_atomic` is `(False|None)`"),
        ("_LOG", {"allow_direct": False}, "`allow_direct` is `False`"),
        ("_LOG", {"max_age": 10**12}, "`max_age` is `1000000000000`, it must be `0`"),
        ("_IN", {"max_age": 0}, "`max_age` is `0`, it must be `3600000000000`"),
        ("_LOG", {"max_msgs": 1000}, "`max_msgs` is `1000`, it must be `-1`"),
        ("_LOG", {"storage": "memory"}, "`storage` is `memory`, it must be `file`"),
        ("_LOG", {"metadata": {META: "none"}}, f"`metadata` is .*none.*, it must be .*{META}.*4"),
        ("_IN", {"subject_transform": None}, "`subject_transform` is `None`"),
        (
            "_IN",
            {"allow_msg_schedules": True, "deny_purge": False, "sources": None},
            "`allow_msg_schedules` is `True`, it must be `False`",
        ),
        ("_IN", {"allow_rollup_hdrs": True, "deny_purge": False}, "`allow_rollup_hdrs` is `True`, it must be `False`"),
        ("_IN", {"sources": None}, "`sources` is `None`"),
        ("_TIMERS", {"allow_msg_schedules": False}, "`allow_msg_schedules` is `(False|None)`"),
        ("_IN", {"retention": "workqueue"}, "`retention` is `workqueue`, it must be `limits`"),
        ("_SNAPSHOTS", {"max_msgs_per_subject": -1}, "`max_msgs_per_subject` is `-1`, it must be `1`"),
    ],
)
async def test_a_stream_that_is_set_up_wrong_is_named_with_what_is_wrong(
    cluster: JetStreamBackend, stream: str, changes: dict[str, Any], message: str
) -> None:
    await changed(cluster, stream, **changes)
    client = await cluster.client()
    with pytest.raises(SetupError, match=message):
        await jetstream.open_for_writing(client, "w", prefix=cluster.prefix, partitions=4)
    await client.close()


async def test_every_wrong_setting_is_named_at_once(cluster: JetStreamBackend) -> None:
    await changed(cluster, "_LOG", deny_delete=False, deny_purge=False)
    await changed(cluster, "_IN", storage="memory")
    client = await cluster.client()
    with pytest.raises(SetupError) as caught:
        await jetstream.open_for_writing(client, "w", prefix=cluster.prefix, partitions=4)
    assert str(caught.value).count("it must be") == 3
    assert str(caught.value).endswith("correct these settings, or remove what is not gated's")
    await client.close()


async def test_a_consumer_that_is_set_up_wrong_is_named(cluster: JetStreamBackend) -> None:
    await (await cluster.open()).close()
    client = await cluster.client()
    names = Names(cluster.prefix)
    api = await open_api(client)
    await api.ask(f"CONSUMER.DELETE.{names.inputs}.gated-2")
    unpinned = {k: v for k, v in wanted_consumer(names, 2).items() if not k.startswith("priority")}
    question = {"stream_name": names.inputs, "config": unpinned, "action": "create"}
    await api.ask(f"CONSUMER.CREATE.{names.inputs}.gated-2", question)
    with pytest.raises(SetupError, match=r"consumer gated-2 of .*_IN: `priority_groups` is `None`.*pinned_client"):
        await ensure_streams(api, names, 4)
    await client.close()


async def test_a_server_that_is_too_old_or_takes_too_little_is_refused(
    cluster: JetStreamBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    api = await open_api(client)
    monkeypatch.setattr(client._current_server, "server_version", "2.11.9")
    with pytest.raises(SetupError, match=r"the server has version 2\.11\.9, a cluster needs at least 2\.14\.0"):
        await ensure_streams(api, Names(cluster.prefix), 4)
    monkeypatch.setattr(client._current_server, "server_version", "2.14.0")
    monkeypatch.setattr(client, "_max_payload", 1024)
    with pytest.raises(SetupError, match="the server's `max_payload` is 1024: set it to at least 2097152"):
        await ensure_streams(api, Names(cluster.prefix), 4)
    await client.close()


async def test_the_number_of_partitions_is_the_one_the_log_was_made_with(cluster: JetStreamBackend) -> None:
    await (await cluster.open()).close()
    client = await cluster.client()
    log = await jetstream.open_for_writing(client, "w", prefix=cluster.prefix, partitions=8, owns=True)
    assert log.partitions == 4
    await log.close()


async def test_where_there_is_no_log_a_reader_says_so(cluster: JetStreamBackend) -> None:
    client = await cluster.client()
    with pytest.raises(LogError, match=f"the server has no log: there is no stream {cluster.prefix.upper()}_LOG"):
        await jetstream.open_for_reading(client, cluster.prefix)
    await client.close()
