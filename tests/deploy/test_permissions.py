"""What each role may do on a real server that runs `deploy/nats/gated.conf`, proven by trying everything."""

import datetime
import ipaddress
import json
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from nats.errors import Error as NatsError

from deploy.real_server import Address, BusUser, bus_user, logged_in, running
from gated import wire
from gated.client.gate import connect
from gated.events import MessageRefused
from gated.shell import bus
from gated.shell.daemon import Settings, daemon
from gated.shell.log.sqlite import open_for_writing
from gated.shell.nats_config import User, UserRole, inbox_prefix, login, users_block, users_file
from gated.shell.policies import read_policy
from patience import PATIENCE, until

NATS = Path(__file__).parents[2] / "deploy" / "nats"
USERS: list[tuple[UserRole, str]] = [
    ("daemon", ""),
    ("console", ""),
    ("agent", "support"),
    ("agent", "billing"),
    ("runner", "sandbox"),
    ("approver", "ana"),
    ("approver", "bob"),
    ("operator", "olga"),
    ("auditor", "audit"),
    ("judge", "calls"),
]
POLICY = "version: 1\nagents: {support: {allowed_tools: [look], data_scope: any}}\n"
BCRYPT = ("correct horse", "$2a$04$Rs6gq9hQxmY.VEGfusPNjunKom.frq93CnrjzL4vRFzTvrzf/cvhq")


def secret(role: UserRole, name: str) -> str:
    return BCRYPT[0] if name == "bob" else f"secret of {login(role, name)}"


# --- the server ----------------------------------------------------------------------------------------------------------


def certificate(folder: Path, *hosts: str) -> ssl.SSLContext:
    """Writes a certificate for 127.0.0.1 and hosts, and its key; gives a client's side that trusts only it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gated test")])
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([loopback, *map(x509.DNSName, hosts)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, encoding = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    (folder / "server.crt").write_bytes(made.public_bytes(encoding))
    (folder / "server.key").write_bytes(key.private_bytes(encoding, pem, serialization.NoEncryption()))
    return ssl.create_default_context(cafile=str(folder / "server.crt"))


def environment(folder: Path) -> dict[str, str]:
    """What the head of the configuration asks for. Values stand in quotes of their own."""
    given = {
        "GATED_TLS_CERT": str(folder / "server.crt"),
        "GATED_TLS_KEY": str(folder / "server.key"),
        "GATED_STORE": str(folder / "store"),
        "GATED_SYS": '"secret of sys"',
    }
    for variable in re.findall(r"\$(GATED_\w+)", (NATS / "users.conf").read_text()):
        said = variable.removeprefix("GATED_").lower().replace("_", ":", 1)
        given[variable] = f'"{BCRYPT[1] if said == "approver:bob" else f"secret of {said}"}"'
    return given


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    folder = tmp_path_factory.mktemp("nats")
    context = certificate(folder)
    with running(NATS / "gated.conf", folder, environment(folder)) as host:
        yield Address(f"tls://{host}", context)


@pytest.fixture
async def daemon_user(deployed: Address) -> AsyncIterator[BusUser]:
    async with bus_user(deployed, "daemon", password=secret("daemon", "")) as user:
        await bus.ensure_stream(user.client)
        yield user


# --- everything that can be tried ----------------------------------------------------------------------------------------

INPUTS = [
    "gated.in.t.r.agent.support",
    "gated.in.other.run.agent.support",
    "gated.in.t.r.agent.billing",
    "gated.in.t.r.approver.ana",
    "gated.in.t.r.approver.bob",
    "gated.in.t.r.approver.support",
    "gated.in.t.r.agent.ana",
    "gated.in.t.r.operator.olga",
    "gated.in.t.r.operator.ana",
    "gated.in.t.r.runner.sandbox",
    "gated.in.t.r.daemon.gate",
]
MISSHAPEN = [
    "gated.in.t.r.agent",
    "gated.in.t.r.agent.support.more",
    "gated.in.7.t.r.agent.support",
    "gated.in.agent.support",
    "other.in.t.r.agent.support",
]
OUTPUTS = [
    *("gated.out.t.r.agent.support", "gated.out.t.r.agent.billing", "gated.tickets.t.r", "gated.events.t.r"),
    *("gated.notices.ops", "gated.checkpoints"),
]
LOG = ["gated.log.7.t", "gated.lease.7", "gated.part.7", "gated.policy.d", "gated.checkpoint.log"]
LOG += ["gated.snapshot.7.t.0", "gated.timer.7.t.r", "gated.due.t.r"]  # nobody: what is stored so comes in another way
WRITING = ["gated.write.secret.log.7.t", "gated.write.secret.lease.7", "gated.cluster.beat.w", "gated.cluster.drain.w"]
CLUSTER_READING = ["$JS.API.STREAM.INFO.GATED_LOG", "$JS.API.STREAM.MSG.GET.GATED_LOG", "$JS.API.DIRECT.GET.GATED_LOG"]
CLUSTER_WRITING = ["$JS.API.STREAM.PURGE.GATED_LOG", "$JS.API.STREAM.MSG.DELETE.GATED_LOG", "$JS.API.DIRECT.GET.GATED_SNAPSHOTS"]
JETSTREAM = [  # of a stream that is not there, so that what is allowed does no harm
    "$JS.API.INFO",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.CREATE.NONE",
    "$JS.API.STREAM.UPDATE.NONE",
    "$JS.API.STREAM.INFO.NONE",
    "$JS.API.STREAM.PURGE.NONE",
    "$JS.API.STREAM.DELETE.NONE",
    "$JS.API.STREAM.MSG.GET.NONE",
    "$JS.API.STREAM.MSG.DELETE.NONE",
    "$JS.API.DIRECT.GET.NONE",
    "$JS.API.CONSUMER.CREATE.NONE.c",
    "$JS.API.CONSUMER.DURABLE.CREATE.NONE.c",
    "$JS.API.CONSUMER.INFO.NONE.c",
    "$JS.API.CONSUMER.DELETE.NONE.c",
    "$JS.API.CONSUMER.RESET.NONE.c",
    "$JS.API.CONSUMER.MSG.NEXT.NONE.c",
    "$JS.ACK.NONE.c.1.1.1.1.0",
]
INBOXES = ["_INBOX.daemon.x", "_INBOX.agent.support.x", "_INBOX.agent.billing.x", "_INBOX.approver.ana.x", "_INBOX.x"]
READING = ["gated.api.health", "gated.api.policy.show", "gated.api.runs.show", "gated.api.tickets.list"]
LOG_READING = ["gated.api.log.head", "gated.api.log.read", "gated.api.log.thread"]
API = [*READING, "gated.api.tickets.forget"]
FORESEEING = ["gated.api.can_i"]
CLUSTER = ["gated.api.cluster.status", "gated.api.cluster.drain"]  # whoever drains a worker is an operator
JUDGES = ["gated.judge.calls", "gated.judge.other"]
SYSTEM = ["$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.PING.STATZ", "$SRV.PING", "$SRV.INFO.gated", "$KV.any.key"]
PUBLISHING = [*INPUTS, *MISSHAPEN, *OUTPUTS, *LOG, *WRITING, *JETSTREAM, *CLUSTER_READING, *CLUSTER_WRITING]
PUBLISHING += [*INBOXES, *API, *FORESEEING, *LOG_READING, *CLUSTER, *JUDGES, *SYSTEM]

MAY_PUBLISH: dict[tuple[UserRole, str], list[str]] = {
    ("daemon", ""): [*OUTPUTS, *WRITING, *JETSTREAM, *CLUSTER_READING, *CLUSTER_WRITING, *INBOXES, *JUDGES],
    ("console", ""): [*READING, *FORESEEING, *LOG_READING],
    ("agent", "support"): ["gated.in.t.r.agent.support", "gated.in.other.run.agent.support", "gated.api.health"],
    ("agent", "billing"): ["gated.in.t.r.agent.billing", "gated.api.health"],
    ("runner", "sandbox"): ["gated.in.t.r.runner.sandbox", "gated.api.health"],
    ("approver", "ana"): ["gated.in.t.r.approver.ana", *API],
    ("approver", "bob"): ["gated.in.t.r.approver.bob", *API],
    ("operator", "olga"): ["gated.in.t.r.operator.olga", *API, *FORESEEING, *LOG_READING, *CLUSTER],
    ("auditor", "audit"): [*READING, *FORESEEING, *LOG_READING, *CLUSTER_READING],
    ("judge", "calls"): ["_INBOX.daemon.x"],
}

SUBSCRIBING = [
    *(">", "*.>", "gated.>", "*.*.*.*.*.*"),
    *("gated.in.>", "gated.in.t.r.agent.support", "gated.in.*.*.approver.ana"),
    *("gated.out.>", "gated.out.*.*.agent.*", "gated.out.*.*.*.support", "gated.out.t.r.>", "*.out.*.*.agent.support"),
    *("gated.out.*.*.agent.support", "gated.out.t.r.agent.support", "gated.out.*.*.agent.billing"),
    *("gated.out.*.*.runner.sandbox", "gated.out.*.*.approver.ana", "gated.out.*.*.approver.bob"),
    *("gated.out.*.*.approver.*", "gated.out.*.*.operator.olga"),
    *("gated.judge.>", "gated.judge.calls", "gated.judge.other"),
    *("gated.tickets.>", "gated.events.>", "gated.events.t.r", "gated.log.>", "gated.lease.>", "gated.cluster.>"),
    *("gated.notices.>", "gated.checkpoints"),
    *("gated.api.>", "gated.api.health", "$SRV.>", "$SRV.PING"),
    *("_INBOX.>", "_INBOX.*.>", "_INBOX.agent.>", "_INBOX.agent.*.>", "_INBOX.daemon.>", "_INBOX.console.>"),
    *("_INBOX.agent.support.>", "_INBOX.agent.billing.>", "_INBOX.runner.sandbox.>", "_INBOX.approver.ana.>"),
    *("_INBOX.approver.bob.>", "_INBOX.operator.olga.>", "_INBOX.auditor.audit.>", "_INBOX.judge.calls.>"),
    *("$JS.>", "$JS.API.>", "$JS.ACK.>", "$JS.EVENT.>", "$SYS.>"),
]

MAY_SUBSCRIBE: dict[tuple[UserRole, str], list[str]] = {
    ("daemon", ""): [
        *("_INBOX.daemon.>", "gated.api.>", "gated.api.health", "$SRV.>", "$SRV.PING", "gated.cluster.>", "gated.tickets.>")
    ],
    ("console", ""): ["_INBOX.console.>", "gated.tickets.>"],
    ("agent", "support"): ["_INBOX.agent.support.>", "gated.out.*.*.agent.support", "gated.out.t.r.agent.support"],
    ("agent", "billing"): ["_INBOX.agent.billing.>", "gated.out.*.*.agent.billing"],
    ("runner", "sandbox"): ["_INBOX.runner.sandbox.>", "gated.out.*.*.runner.sandbox"],
    ("approver", "ana"): ["_INBOX.approver.ana.>", "gated.tickets.>", "gated.notices.>", "gated.out.*.*.approver.ana"],
    ("approver", "bob"): ["_INBOX.approver.bob.>", "gated.tickets.>", "gated.notices.>", "gated.out.*.*.approver.bob"],
    ("operator", "olga"): ["_INBOX.operator.olga.>", "gated.tickets.>", "gated.out.*.*.operator.olga"],
    ("auditor", "audit"): [
        *("_INBOX.auditor.audit.>", "gated.tickets.>", "gated.events.>", "gated.events.t.r"),
        *("gated.notices.>", "gated.checkpoints"),
    ],
    ("judge", "calls"): ["_INBOX.judge.calls.>", "gated.judge.calls"],
}


@pytest.mark.parametrize(("role", "name"), USERS)
async def test_everything_but_its_own_is_denied_to_a_publisher(deployed: Address, role: UserRole, name: str) -> None:
    async with bus_user(deployed, role, name, secret(role, name)) as user:
        assert set(PUBLISHING) - await user.denied_publishing(PUBLISHING) == set(MAY_PUBLISH[role, name])


@pytest.mark.parametrize(("role", "name"), USERS)
async def test_everything_but_its_own_is_denied_to_a_subscriber(deployed: Address, role: UserRole, name: str) -> None:
    async with bus_user(deployed, role, name, secret(role, name)) as user:
        assert set(SUBSCRIBING) - await user.denied_subscribing(SUBSCRIBING) == set(MAY_SUBSCRIBE[role, name])


# --- what is allowed works -----------------------------------------------------------------------------------------------


async def test_an_input_is_stored_acknowledged_and_answered_to_its_agent_only(deployed: Address, daemon_user: BusUser) -> None:
    async with bus_user(deployed, "agent", "support") as agent, bus_user(deployed, "agent", "billing") as other:
        answers = await agent.client.subscribe("gated.out.*.*.agent.support")
        others = await other.client.subscribe("gated.out.*.*.agent.billing")
        await agent.client.flush()
        await other.client.flush()
        stored = await agent.client.jetstream().publish("gated.in.t1.r1.agent.support", b"{}")
        assert stored.stream == wire.STREAM
        inbox = await daemon_user.client.subscribe(daemon_user.client.new_inbox())
        await daemon_user.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{wire.STREAM}.{bus.CONSUMER}", b"1", reply=inbox.subject)
        pulled = await inbox.next_msg(5)
        assert pulled.subject.startswith("gated.in.")
        await daemon_user.client.publish(pulled.reply, b"+ACK")
        await daemon_user.client.publish("gated.out.t1.r1.agent.support", b"verdict")
        assert (await answers.next_msg(5)).data == b"verdict"
        await daemon_user.client.publish("gated.out.t1.r1.agent.billing", b"other")
        assert (await others.next_msg(5)).data == b"other"
        assert answers.pending_msgs == 0


async def test_tickets_events_and_the_api_reach_who_they_are_for(deployed: Address, daemon_user: BusUser) -> None:
    async with bus_user(deployed, "approver", "ana") as approver, bus_user(deployed, "auditor", "audit") as auditor:
        tickets = await approver.client.subscribe("gated.tickets.>")
        events = await auditor.client.subscribe("gated.events.>")
        asked = await daemon_user.client.subscribe("gated.api.>")
        for user in (approver, auditor, daemon_user):
            await user.client.flush()
        await daemon_user.client.publish("gated.tickets.t.r", b"ticket")
        await daemon_user.client.publish("gated.events.t.r", b"record")
        assert (await tickets.next_msg(5)).data == b"ticket"
        assert (await events.next_msg(5)).data == b"record"
        async with anyio.create_task_group() as tasks:
            for user, verb in ((approver, "tickets.list"), (auditor, "runs.show")):
                tasks.start_soon(_request, user, f"gated.api.{verb}")
                question = await asked.next_msg(5)
                await question.respond(question.subject.encode())


async def _request(user: BusUser, subject: str) -> None:
    assert (await user.client.request(subject, b"", timeout=PATIENCE)).data == subject.encode()


async def test_the_daemon_and_the_sdk_need_no_more(deployed: Address, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    policy = read_policy(path)
    own = {"user": "daemon", "password": "secret of daemon", "inbox_prefix": inbox_prefix("daemon", ""), "tls": deployed.tls}
    event_log = await open_for_writing(tmp_path / "log.db")
    try:
        async with daemon(Settings(deployed.url, path, own), event_log, policy):
            agent: dict[str, Any] = {"user": "agent:support", "password": "secret of agent:support", "tls": deployed.tls}
            async with connect(deployed.url, agent="support", **agent) as gate, gate.run() as run:
                assert (await run.check("look", {})).decision == "allow"
                assert (await run.check("write", {})).decision == "deny"
            async with bus_user(deployed, "auditor", "audit") as auditor:
                health = json.loads((await auditor.client.request("gated.api.health", b"", timeout=PATIENCE)).data)
                assert health["ok"], health
                assert health["verdicts"] == 2
    finally:
        await event_log.close()


async def test_an_acknowledgement_that_is_sent_elsewhere_is_no_message_of_the_contract(
    deployed: Address, daemon_user: BusUser
) -> None:
    """The server acknowledges to whatever reply an input names, and no permission stops that. Its words are its own, though:
    in another's name they are a refused message, and as a verdict they are none."""
    subject = "gated.in.t9.r9.approver.ana"
    async with bus_user(deployed, "agent", "support") as agent:
        await agent.client.publish("gated.in.t9.r9.agent.support", b"{}", reply=subject)
        forged = await _last(daemon_user, subject)
    assert set(json.loads(forged)) == {"stream", "seq"}
    origin = wire.parse_in_subject(subject)
    assert origin is not None
    assert isinstance(wire.read(origin, forged), MessageRefused)
    with pytest.raises(ValueError, match="type"):
        wire.decode_out(forged)


async def _last(daemon_user: BusUser, subject: str) -> bytes:
    async def stored() -> bytes | None:
        with suppress(NatsError):
            return (await daemon_user.client.jetstream().get_last_msg(wire.STREAM, subject)).data
        return None

    return bytes(await until(stored))


# --- credentials and TLS -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", ["wrong", "$GATED_APPROVER_BOB", BCRYPT[1]])
async def test_a_wrong_password_is_refused_even_where_it_is_the_hash(deployed: Address, password: str) -> None:
    with pytest.raises(NatsError, match="Authorization Violation"):
        async with bus_user(deployed, "approver", "bob", password):
            pytest.fail("it was let in")


def test_nobody_is_heard_without_tls(deployed: Address) -> None:
    with _plain(deployed) as raw:
        assert json.loads(raw.recv(65_536).partition(b" ")[2])["tls_required"]
        raw.sendall(b'CONNECT {"user": "agent:support", "pass": "secret of agent:support"}\r\nPING\r\n')
        try:
            assert b"PONG" not in raw.recv(65_536)
        except ConnectionResetError:
            pass  # the server hung up


def test_an_older_tls_is_refused(deployed: Address) -> None:
    assert deployed.tls is not None
    for version, refused in ((ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, False)):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = version
        with _plain(deployed) as raw:
            raw.recv(65_536)
            if refused:
                with pytest.raises(ssl.SSLError):
                    context.wrap_socket(raw)
            else:
                context.wrap_socket(raw).close()


def _plain(address: Address) -> socket.socket:
    host, _, port = address.url.removeprefix("tls://").partition(":")
    return socket.create_connection((host, int(port)), timeout=5)


async def test_a_borrowed_inbox_gets_no_reply(deployed: Address, daemon_user: BusUser) -> None:
    async with bus_user(deployed, "agent", "support", inbox="_INBOX.agent.billing") as agent:
        with pytest.raises((NatsError, TimeoutError)):
            await agent.client.jetstream().publish("gated.in.t.r.agent.support", b"{}", timeout=0.3)


async def test_the_system_user_neither_hears_nor_reaches_the_gate(deployed: Address, daemon_user: BusUser) -> None:
    async with logged_in(deployed, "sys", "secret of sys", "_INBOX") as system:
        heard = await system.client.subscribe("gated.>")
        await system.client.flush()
        await daemon_user.client.publish("gated.events.t.r", b"record")
        await daemon_user.client.flush()
        before = (await daemon_user.client.jetstream().stream_info(wire.STREAM)).state.last_seq
        await system.client.publish("gated.in.t.r.agent.support", b"{}")
        assert (await heard.next_msg(5)).subject == "gated.in.t.r.agent.support"  # its own, and not the record before it
        assert (await daemon_user.client.jetstream().stream_info(wire.STREAM)).state.last_seq == before


# --- the configuration ---------------------------------------------------------------------------------------------------


def test_the_users_in_deploy_are_those_that_the_code_writes() -> None:
    written = (NATS / "users.conf").read_text()
    assert written == users_file([login(role, name) for role, name in USERS])


def test_no_secret_stands_in_deploy() -> None:
    for file in NATS.iterdir():
        assert not re.search(r"password: (?!\$GATED_[A-Z_]+[, ])", file.read_text()), file


@pytest.mark.parametrize("left_out", ["GATED_DAEMON", "GATED_SYS", "GATED_TLS_KEY"])
def test_a_variable_that_is_not_set_stops_the_server_at_its_start(tmp_path: Path, left_out: str) -> None:
    certificate(tmp_path)
    given = environment(tmp_path)
    del given[left_out]
    with (
        pytest.raises(AssertionError, match=f"variable reference for '{left_out}'"),
        running(NATS / "gated.conf", tmp_path, given),
    ):
        pytest.fail("it started")


async def test_an_agent_can_be_kept_to_listed_threads(tmp_path: Path) -> None:
    kept = User("agent", "a", secret("agent", "a"), threads=("t1", "t2"))
    config = tmp_path / "nats.conf"
    config.write_text(f"authorization {{\n{users_block([kept])}}}\n")
    tried = [f"gated.in.{thread}.r.agent.a" for thread in ("t1", "t2", "t3", "t11")]
    with running(config, tmp_path, os.environ) as host:
        async with bus_user(Address(f"nats://{host}"), "agent", "a") as agent:
            assert await agent.denied_publishing(tried) == {"gated.in.t3.r.agent.a", "gated.in.t11.r.agent.a"}
            assert await agent.denied_subscribing(["gated.out.*.*.agent.a"]) == set()
