"""Notices through the real daemon, over real HTTP and SMTP: signed, in order, again after a failure, never lost by a restart."""

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from gated import wire
from gated.documents import parse_document
from gated.events import Sender
from gated.shell.log.open import open_log
from gated.shell.notify.following import NotifyError, follower
from gated.shell.notify.notifier import Cursor, pause
from gated.shell.notify.settings import NotifySettings, Retry, compile_settings
from gated.signatures import BadSignature, sign, verify
from patience import PATIENCE, until
from shell.live import POLICY, Clock, Live, agent, daemon_on, ears, intents, server, tell, write_policy
from shell.notify.servers import hooks, mailbox

SECRET = "s3cret-of-the-hook"
QUICK = "retry: {first: 1s, most: 1s, give_up: 1h, undelivered_after: 2}\n"


def settings(folder: Path, text: str) -> NotifySettings:
    (folder / "secret").write_text(SECRET + "\n")
    return compile_settings(parse_document(text, file="notify.yaml"), folder)


def webhook(url: str, more: str = "format: json") -> str:
    hook = f"{{kind: webhook, url: {url}, secret_file: secret, {more}}}"
    return f"version: 1\nconsole: https://gate.example\nchannels:\n  hook: {hook}\n"


async def ask(live: Live, call: str = "c1", run: str = "r1", **args: Any) -> wire.Verdict:
    """The payer wants a refund, which waits for people."""
    async with live.bus.user("agent", "payer") as payer:
        heard = await ears(payer, "payer")
        await tell(payer, agent("payer"), run, intents((call, "refund", args or {"amount": 5})))
        verdict = (await heard.count(1))[0]
    assert isinstance(verdict, wire.Verdict)
    assert verdict.decision == "suspend"
    return verdict


async def answer(live: Live, verdict: wire.Verdict, run: str = "r1", decision: str = "reject") -> None:
    said = {
        "type": "resolution",
        "ticket": verdict.ticket,
        "decision": decision,
        "decision_id": "d1",
        "args_sha256": verdict.args_sha256,
    }
    async with live.bus.user("approver", "ana") as ana:
        await tell(ana, Sender("approver", "ana"), run, json.dumps(said).encode())
        await ana.flush()


async def undelivered(live: Live) -> list[str]:
    async with live.bus.user("operator", "local") as operator:
        found = json.loads((await operator.request("gated.api.tickets.list", b"{}", timeout=PATIENCE)).data)
    tickets = found["tickets"] if isinstance(found, dict) else found
    return list(tickets[0]["undelivered"])


async def test_a_webhook_is_told_of_a_ticket_s_life_signed_and_in_order(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    with hooks() as hook:
        async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path, settings(tmp_path, webhook(hook.url))) as live:
            verdict = await ask(live)
            await until(lambda: len(hook.posts) == 1)
            await answer(live, verdict)
            await until(lambda: len(hook.posts) == 2)
            counts = live.daemon.notifier
            assert counts is not None
            await until(lambda: counts.counts.delivered == 2)
    opened, closed = (post.json for post in hook.posts)
    assert (opened["event"], opened["ticket"], opened["tool"], opened["agent"]) == ("opened", verdict.ticket, "refund", "payer")
    assert opened["preview"] == '{"amount":5}'
    assert opened["link"] == f"https://gate.example/tickets/{verdict.ticket}"
    assert (closed["event"], closed["state"], closed["answered_by"]) == ("closed", "rejected", ["ana"])
    for post in hook.posts:
        verify(SECRET.encode(), post.headers, post.body, time.time())
        with pytest.raises(BadSignature):
            verify(SECRET.encode(), post.headers, post.body + b" ", time.time())
        with pytest.raises(BadSignature):
            verify(b"another", post.headers, post.body, time.time())
        with pytest.raises(BadSignature, match="older"):
            verify(SECRET.encode(), post.headers, post.body, time.time() + 301)
    assert len({post.headers["Gated-Notice"] for post in hook.posts}) == 2


async def test_a_failing_webhook_holds_up_nothing_and_the_ticket_says_so(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    with hooks() as hook:
        hook.always = 500
        text = webhook(hook.url) + QUICK
        async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path, settings(tmp_path, text)) as live:
            await ask(live)
            await until(lambda: len(hook.posts) >= 2)
            await until(lambda: live.daemon.runs.health.records >= 2)
            assert await undelivered(live) == ["hook"]
            hook.always = None
            before = live.daemon.runs.health.records
            await until(lambda: live.daemon.runs.health.records > before)
            assert await undelivered(live) == []
        assert len({post.headers["Gated-Notice"] for post in hook.posts}) == 1
    async with open_log(str(tmp_path / "log.db")) as log:
        said = [json.loads(record.body) async for _, record in log.read_all()]
    noted = [decision for body in said for decision in body["decisions"] if decision["kind"] == "ticket_noted"]
    assert [(note["event"], note["channel"], note.get("reason")) for note in noted] == [
        ("undelivered", "hook", "HTTP 500"),
        ("delivered", "hook", None),
    ]
    assert hook.url not in json.dumps(said)


async def test_what_was_not_said_is_said_after_a_restart(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    with hooks() as hook:
        hook.always = 503
        text = webhook(hook.url) + QUICK
        async with server(tmp_path) as (_, bus):
            async with daemon_on(bus, tmp_path, settings(tmp_path, text)) as live:
                await ask(live)
                await until(lambda: len(hook.posts) >= 1)
            failed = len(hook.posts)
            hook.always = None
            async with daemon_on(bus, tmp_path, settings(tmp_path, text)):
                await until(lambda: len(hook.posts) > failed)
            said = len(hook.posts)
            async with daemon_on(bus, tmp_path, settings(tmp_path, text)) as live:
                await ask(live, call="c2", run="r2")
                await until(lambda: len(hook.posts) > said)
    assert [post.json["run"] for post in hook.posts[failed:]] == ["r1", "r2"]


async def test_of_a_ticket_that_closed_meanwhile_only_the_end_is_said(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    with hooks() as hook:
        hook.always = 500
        text = webhook(hook.url) + QUICK
        async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path, settings(tmp_path, text)) as live:
            verdict = await ask(live)
            await until(lambda: len(hook.posts) >= 1)
            await answer(live, verdict)
            await until(lambda: any(post.json["event"] == "closed" for post in hook.posts))
            hook.always = None
            notifier = live.daemon.notifier
            assert notifier is not None
            await until(lambda: notifier.counts.delivered == 1)
    events = [post.json["event"] for post in hook.posts]
    assert events == sorted(events, key=["opened", "closed"].index)


async def test_a_slow_or_dead_channel_does_not_hold_up_another(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    with hooks() as hook:
        text = webhook(hook.url) + "  dead: {kind: webhook, url: 'http://127.0.0.1:9/x'}\n" + QUICK
        async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path, settings(tmp_path, text)) as live:
            await ask(live)
            await until(lambda: len(hook.posts) == 1)
            await until(lambda: live.daemon.runs.health.records >= 2)
            assert await undelivered(live) == ["dead"]


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
async def test_mail_goes_to_who_may_answer(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    (tmp_path / "password").write_text("pw\n")
    with mailbox(login=("gate", "pw")) as box:
        text = (
            "version: 1\npeople: {ana: ana@x.example, bob: bob@x.example, eve: eve@x.example}\nchannels:\n"
            f"  mail: {{kind: mail, host: {box.host}, port: {box.port}, security: none, user: gate, password_file: password,"
            " from: gate@x.example, to: [approvers, ops@x.example]}\n" + QUICK
        )
        async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path, settings(tmp_path, text)) as live:
            box.refuse = "451 later"
            verdict = await ask(live, note="line\nSubject: injected\u202e")
            await until(lambda: live.daemon.runs.health.records >= 2)
            box.refuse = None
            await until(lambda: len(box.mails) == 1)
            await answer(live, verdict)
            await until(lambda: len(box.mails) == 2)
    opened, closed = box.mails
    assert sorted(box.recipients[0]) == ["ana@x.example", "bob@x.example", "ops@x.example"]
    assert opened["Subject"] == "[gated] refund of agent payer waits for an approval"
    assert "injected" in opened.get_content()
    assert "\u202e" not in opened.get_content()
    assert closed["Subject"] == "[gated] refund of agent payer is rejected"
    assert closed["References"]
    assert opened["Message-ID"] != closed["Message-ID"]


async def test_the_bus_and_filters(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    text = (
        "version: 1\nchannels:\n  bus: {kind: subject, subject: gated.notices.all}\n"
        "  closed: {kind: subject, subject: gated.notices.closed, events: [closed]}\n"
        "  other: {kind: subject, subject: gated.notices.other, agents: ['mail*']}\n"
        "  tool: {kind: subject, subject: gated.notices.tool, tools: ['ref*']}\n"
    )
    heard: list[str] = []
    async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path, settings(tmp_path, text)) as live:
        async with bus.user("auditor", "local") as listener:

            async def hear(message: Any) -> None:
                heard.append(f"{message.subject.rpartition('.')[2]} {json.loads(message.data)['event']}")

            await listener.subscribe("gated.notices.>", cb=hear)
            await listener.flush()
            verdict = await ask(live)
            await until(lambda: len(heard) == 2)
            await answer(live, verdict)
            await until(lambda: len(heard) == 5)
    assert sorted(heard) == ["all closed", "all opened", "closed closed", "tool closed", "tool opened"]


async def test_a_first_start_tells_nothing_of_the_past(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    with hooks() as hook:
        async with server(tmp_path) as (_, bus):
            async with daemon_on(bus, tmp_path) as live:
                await ask(live)
            async with daemon_on(bus, tmp_path, settings(tmp_path, webhook(hook.url))) as live:
                await ask(live, call="c2", run="r2")
                await until(lambda: len(hook.posts) >= 1)
    assert [post.json["run"] for post in hook.posts] == ["r2"]


async def test_a_place_behind_the_end_of_the_log_is_of_another_log(tmp_path: Path) -> None:
    """Found by reading: with a new log and the old file, nobody was told of anything until the log had grown past it."""
    write_policy(tmp_path, POLICY)
    (tmp_path / "notify.json").write_text('{"position": 1000000}')
    with hooks() as hook:
        async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path, settings(tmp_path, webhook(hook.url))) as live:
            await until(lambda: "1000000" not in (tmp_path / "notify.json").read_text())
            await ask(live)
            await until(lambda: len(hook.posts) == 1)


@pytest.mark.parametrize(("failures", "seconds"), [(1, 1.0), (3, 4.0), (7, 60.0), (5000, 60.0)])
def test_the_pause_grows_to_its_most_however_often_it_fails(failures: int, seconds: float) -> None:
    """Found by reading: after 1,024 failures the notifier itself failed, and began to count anew."""
    assert pause(Retry(1.0, 60.0, 86_400.0, 3), failures) == seconds


async def test_a_ticket_that_nobody_answers_is_told_of_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_policy(tmp_path, POLICY.replace("timeout: 15m", "timeout: 100s, escalate: {after: 50s, to: [user:boss]}"))
    clock = Clock(monkeypatch)
    with hooks() as hook:
        async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path, settings(tmp_path, webhook(hook.url))) as live:

            async def told_of(count: int) -> None:
                await until(lambda: len(hook.posts) == count)

            await ask(live)
            for count, seconds in ((1, 50), (2, 30), (3, 20)):
                await told_of(count)
                clock.forward(live, seconds)
            await told_of(4)
    told = [post.json for post in hook.posts]
    assert [said["event"] for said in told] == ["opened", "escalated", "expiring_soon", "closed"]
    assert (told[3]["state"], told[3]["answered_by"]) == ("expired", [])
    assert told[1]["rules"][0]["escalate_to"] == ["user:boss"]


async def test_a_log_is_followed_from_outside(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    with hooks() as hook:
        hook.answers = [500]
        made = settings(tmp_path, webhook(hook.url) + QUICK)
        async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path) as live, anyio.create_task_group() as tasks:
            async with open_log(str(live.log)) as opened:
                notifier = follower(made, opened, Cursor(tmp_path / "cursor.json"))
                tasks.start_soon(notifier.run_on)
                await until((tmp_path / "cursor.json").exists)
                verdict = await ask(live)
                await until(lambda: notifier.counts.delivered == 1)
                await answer(live, verdict)
                await until(lambda: notifier.counts.delivered == 2)
                tasks.cancel_scope.cancel()
    assert [post.json["event"] for post in hook.posts] == ["opened", "opened", "closed"]
    on_bus = "version: 1\nchannels: {b: {kind: subject, subject: gated.notices.x}}\n"
    async with open_log(str(tmp_path / "log.db")) as opened:
        with pytest.raises(NotifyError, match="speaks on the bus"):
            follower(settings(tmp_path, on_bus), opened, Cursor(tmp_path / "other.json"))


async def test_nothing_secret_is_told(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    with hooks() as hook:
        async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path, settings(tmp_path, webhook(hook.url))) as live:
            await ask(live, password="hunter22")
            await until(lambda: len(hook.posts) == 1)
    assert b"hunter22" not in hook.posts[0].body


def test_a_signature_is_checked_whatever_the_case_of_the_headers() -> None:
    headers = sign(b"k", 100, b"body")
    verify(b"k", {name.lower(): value for name, value in headers.items()}, b"body", now=200)
    for broken in ({}, {"Gated-Timestamp": "x"}, {**headers, "Gated-Signature": "v1="}, {**headers, "Gated-Timestamp": "101"}):
        with pytest.raises(BadSignature):
            verify(b"k", broken, b"body", now=100)


async def test_a_damaged_record_ends_no_notices(tmp_path: Path) -> None:
    """It was read again and again, and nobody was told of anything behind it."""
    write_policy(tmp_path, POLICY)
    with hooks() as hook:
        text = webhook(hook.url)
        async with server(tmp_path) as (_, bus):
            async with daemon_on(bus, tmp_path) as live:
                for run in ("r1", "r2"):
                    await ask(live, run=run)
            with closing(sqlite3.connect(tmp_path / "log.db")) as log:
                log.execute("drop trigger records_no_update")
                log.execute("update records set body = x'ff' where thread = 'r1'")
                log.commit()
            Cursor(tmp_path / "notify.json").save(0)
            async with daemon_on(bus, tmp_path, settings(tmp_path, text)):
                await until(lambda: hook.posts)
    assert [post.json["run"] for post in hook.posts] == ["r2"]
