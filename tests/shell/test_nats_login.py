"""`gated serve` on a server that wants to know who comes: a private authority, a client certificate, a credentials file."""

import base64
import contextlib
import datetime
import ipaddress
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import nkeys
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from deploy.real_server import running
from gated.shell.connection import BusError
from gated.shell.nats_client import SturdyClient
from gated.shell.nats_login import client_context, credentials_file
from patience import PATIENCE, blocking_until, until
from shell import live

PEM = serialization.Encoding.PEM


class Authority:
    """A private certificate authority with its files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "private authority")])
        made = self._builder(self.name, self.key.public_key(), authority=True)
        (folder / "ca.crt").write_bytes(made.sign(self.key, hashes.SHA256()).public_bytes(PEM))

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePublicKey, *, authority: bool) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder(self.name, name, key, x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
            .add_extension(alternative, critical=False)
        )

    def issue(self, name: str, password: bytes | None = None) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key.public_key(), authority=False)
        (self.folder / f"{name}.crt").write_bytes(made.sign(self.key, hashes.SHA256()).public_bytes(PEM))
        hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        (self.folder / f"{name}.key").write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, hidden))


@contextlib.contextmanager
def serving(folder: Path, url: str, *options: object, policy: str = live.POLICY) -> Iterator[subprocess.Popen[bytes]]:
    live.write_policy(folder, policy)
    command = [sys.executable, "-m", "gated", "serve", "--nats", url, "--policy", str(folder / "policy.yaml")]
    with (folder / "serve.out").open("wb") as out:
        made = subprocess.Popen([*command, "--log", str(folder / "gate.db"), *map(str, options)], stdout=out, stderr=out)
    try:
        yield made
    finally:
        if made.poll() is None:
            made.send_signal(signal.SIGTERM)
            try:
                made.wait(PATIENCE)
            finally:
                made.kill()


def outcome(folder: Path, made: subprocess.Popen[bytes]) -> str:
    """`ready`, or what it said when it ended with status 2."""
    out = folder / "serve.out"
    blocking_until(lambda: made.poll() is not None or "ready" in out.read_text(), out.read_text)
    if "ready" in (said := out.read_text()):
        return "ready"
    assert made.returncode == 2, said
    return " ".join(said.split())


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[str]:
    authority = Authority(tmp_path)
    for name in ("server", "daemon"):
        authority.issue(name)
    config = tmp_path / "nats.conf"
    config.write_text(f"""
jetstream {{ store_dir: "{tmp_path / "store"}" }}
max_payload: 2097152
tls {{
  cert_file: "{tmp_path / "server.crt"}", key_file: "{tmp_path / "server.key"}"
  ca_file: "{tmp_path / "ca.crt"}", verify: true
}}
""")
    with running(config, tmp_path, os.environ) as host:
        yield f"tls://{host}"


def test_a_private_authority_and_a_client_certificate(tmp_path: Path, tls_server: str) -> None:
    own = ("--tls-ca", tmp_path / "ca.crt", "--tls-cert", tmp_path / "daemon.crt", "--tls-key", tmp_path / "daemon.key")
    with serving(tmp_path, tls_server, *own) as made:
        assert outcome(tmp_path, made) == "ready"
    assert made.returncode == 0
    with serving(tmp_path, tls_server, *own[2:]) as made:
        assert "cannot connect" in outcome(tmp_path, made)
    with serving(tmp_path, tls_server, *own[:2]) as made:
        assert "cannot connect" in outcome(tmp_path, made)


POLICY = """
version: 1
agents: {worker: {checks: [privilege], allowed_tools: [Read, pay], approval_required: [pay]}}
approvals: {default: {approvers: [user:ana]}}
"""
ASK = """
import sys
from gated.cli.shared import of_environment
from gated.client import sync
with sync.connect(sys.argv[1], agent="worker", **of_environment(sys.argv[1])) as gate, gate.run(run="r", task="t") as run:
    run.check("pay", {})
    run.detach()
"""


def test_everybody_trusts_the_private_authority_that_they_are_told_of(tmp_path: Path, tls_server: str) -> None:
    """Found by reading: only `gated serve` could be told; who answers, operates or asks was at a loss."""
    files = {"CA": "ca.crt", "CERT": "daemon.crt", "KEY": "daemon.key"}
    told = (
        os.environ | {f"GATED_NATS_{name}": str(tmp_path / file) for name, file in files.items()} | {"GATED_NATS_URL": tls_server}
    )
    nobody = {name: value for name, value in told.items() if name != "GATED_NATS_CA"}

    def gated(*words: str, environment: dict[str, str] = told) -> tuple[int, str]:
        command = [sys.executable, "-m", "gated", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
        return done.returncode, done.stdout + done.stderr

    own = ("--tls-ca", tmp_path / "ca.crt", "--tls-cert", tmp_path / "daemon.crt", "--tls-key", tmp_path / "daemon.key")
    with serving(tmp_path, tls_server, *own, policy=POLICY) as made:
        assert outcome(tmp_path, made) == "ready"
        asked = [sys.executable, "-c", ASK, tls_server]
        assert subprocess.run(asked, env=told, timeout=PATIENCE, check=False).returncode == 0
        (ticket,) = json.loads(gated("tickets", "ls", "--as", "ana", "--json")[1])
        approve = f"tickets approve {ticket['ticket']} --as ana"
        for command in (approve, "doctor", "runs can-i r", f"tickets ls --tls-ca {tmp_path / 'ca.crt'}"):
            assert gated(*command.split())[0] == 0, command
        for command in ("tickets ls", "doctor", "mcp --agent worker -- cat"):
            status, said = gated(*command.split(), environment=nobody)
            assert (status, "its certificate is not trusted here" in said) == (2, True), said


async def test_a_connection_by_tls_ends_without_a_word(tmp_path: Path, tls_server: str, caplog: pytest.LogCaptureFixture) -> None:
    """asyncio warned at each end of one that `eof_received() has no effect`: nobody had told the protocol that it is over TLS."""
    context = client_context(*(tmp_path / file for file in ("ca.crt", "daemon.crt", "daemon.key")))
    client, heard = SturdyClient(), list[int]()
    await client.connect(tls_server, tls=context, allow_reconnect=False)

    async def hear(message: Msg) -> None:
        heard.append(len(message.data))

    await client.subscribe("much", cb=hear)
    for _ in range(20):
        await client.publish("much", b"x" * 1_000_000)
    await until(lambda: heard == [1_000_000] * 20)
    await client.close()
    refused = SturdyClient()
    with pytest.raises((NatsError, OSError)):  # this server lets nobody in without a certificate
        await refused.connect(tls_server, tls=client_context(tmp_path / "ca.crt", None, None), allow_reconnect=False)
    await refused.close()
    await anyio.sleep(0.1)
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_files_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("daemon")
    authority.issue("locked", b"password")
    (tmp_path / "odd").write_text("odd")
    cert, key = tmp_path / "daemon.crt", tmp_path / "daemon.key"
    assert client_context(None, None, None) is None
    assert isinstance(client_context(None, cert, key), ssl.SSLContext)
    for given, said in (
        ((tmp_path / "missing", None, None), "authority"),
        ((tmp_path / "odd", None, None), "authority"),
        ((None, None, key), "needs its certificate"),
        ((None, cert, None), "certificate"),
        ((None, cert, tmp_path / "missing"), "certificate"),
        ((None, tmp_path / "locked.crt", tmp_path / "locked.key"), "encrypted"),
    ):
        with pytest.raises(BusError, match=said):
            client_context(*given)
    for path, said in ((tmp_path / "missing", "cannot be read"), (tmp_path / "odd", "no credentials file")):
        with pytest.raises(BusError, match=said):
            credentials_file(path)


# --- credentials files ---------------------------------------------------------------------------------------------------


def pair(prefix: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


def jwt(issuer: nkeys.KeyPair, subject: bytes, name: str, claims: dict[str, Any]) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    body = {"jti": name, "iat": int(time.time()), "iss": issuer.public_key.decode(), "sub": subject.decode(), "name": name}
    text = f"{part(head)}.{part({**body, 'nats': {**claims, 'version': 2}})}"
    return f"{text}.{base64.urlsafe_b64encode(issuer.sign(text.encode())).rstrip(b'=').decode()}"


def test_a_credentials_file(tmp_path: Path) -> None:
    operator, user = pair(nkeys.PREFIX_BYTE_OPERATOR), pair(nkeys.PREFIX_BYTE_USER)
    account, system = pair(nkeys.PREFIX_BYTE_ACCOUNT), pair(nkeys.PREFIX_BYTE_ACCOUNT)
    everything = {"subs": -1, "data": -1, "payload": -1}
    limits = {**everything, "imports": -1, "exports": -1, "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1}
    limits |= {"streams": -1, "consumer": -1, "wildcards": True}
    own = jwt(operator, operator.public_key, "operator", {"type": "operator"})
    held = jwt(operator, account.public_key, "account", {"type": "account", "limits": limits})
    watching = jwt(operator, system.public_key, "system", {"type": "account", "limits": {**everything, "conn": -1}})
    token = jwt(account, user.public_key, "daemon", {"type": "user", "pub": {}, "sub": {}, **everything})
    (tmp_path / "operator.jwt").write_text(own)
    (tmp_path / "nats.conf").write_text(f"""
operator: "{tmp_path / "operator.jwt"}"
resolver: MEMORY
resolver_preload: {{ {account.public_key.decode()}: {held}, {system.public_key.decode()}: {watching} }}
system_account: {system.public_key.decode()}
jetstream {{ store_dir: "{tmp_path / "store"}" }}
max_payload: 2097152
""")
    creds = tmp_path / "daemon.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    with running(tmp_path / "nats.conf", tmp_path, os.environ) as host:
        with serving(tmp_path, f"nats://{host}", "--creds", creds) as made:
            assert outcome(tmp_path, made) == "ready"
        with serving(tmp_path, f"nats://{host}") as made:
            assert "cannot connect" in outcome(tmp_path, made)
