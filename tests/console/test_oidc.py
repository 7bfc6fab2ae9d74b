"""Logging in with a provider that lies in every way it can."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from console.world import Visitor, World, world
from gated.console.oidc import Oidc, OidcError, Provider
from gated.console.people import Person

ISSUER = "https://login.example"


async def _issued_by(issuer: str, **more: str) -> str:
    """What is wrong with a provider that says this of itself."""
    said = {"issuer": issuer, "jwks_uri": f"{issuer}/keys", "authorization_endpoint": f"{issuer}/a", **more}
    provider = Oidc(
        Provider(issuer, "gated"), "https://gate.example", httpx.MockTransport(lambda _: httpx.Response(200, json=said))
    )
    try:
        with pytest.raises(OidcError) as wrong:
            await provider.address("state", "nonce", "verifier")
    finally:
        await provider.close()
    return str(wrong.value)


async def test_a_provider_is_asked_under_https_and_says_all_that_is_needed() -> None:
    """Found by reading: `http://localhost.evil.example` began like an address of this machine."""
    for issuer in ("http://login.example", "http://localhost.evil.example", "http://127.0.0.1.evil.example"):
        assert "is no https address" in await _issued_by(issuer)
    assert await _issued_by(ISSUER) == "the provider does not say its token_endpoint"
    assert "`http://login.example/keys` is no https" in await _issued_by(
        ISSUER, token_endpoint=f"{ISSUER}/t", jwks_uri="http://login.example/keys"
    )


class Fake:
    """A provider. `claims` change what its next ID token says, `sign` how it is signed."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "k1"})
        self.claims: dict[str, Any] = {}
        self.header: dict[str, Any] = {"alg": "RS256", "kid": "k1"}
        self.signing: Any = self.key
        self.asked: dict[str, str] = {}
        self.issuer = ISSUER

    def hear(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("openid-configuration"):
            names = {f"{name}_endpoint": f"{ISSUER}/{name}" for name in ("authorization", "token")}
            return httpx.Response(200, json={"issuer": self.issuer, "jwks_uri": f"{ISSUER}/keys", **names})
        if request.url.path == "/keys":
            return httpx.Response(200, json={"keys": [self.key.as_dict(private=False)]})
        form = dict(parse_qsl(request.content.decode()))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if form["code"] != "the-code" or challenge != self.asked["code_challenge"] or form["client_secret"] != "hush":
            return httpx.Response(400, json={"error": "invalid_grant"})
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": "gated",
            "sub": "7",
            "iat": now,
            "exp": now + 300,
            "nonce": self.asked["nonce"],
            "email": "ana@corp.example",
            "email_verified": True,
            **self.claims,
        }
        token = jwt.encode(self.header, claims, self.signing) if self.signing is not None else self._forged(claims)
        return httpx.Response(200, json={"id_token": token})

    def _forged(self, claims: dict[str, Any]) -> str:
        """Unsigned, or signed with what everybody knows: a library of one's own makes neither."""

        def part(data: bytes) -> str:
            return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

        signed = f"{part(json.dumps(self.header).encode())}.{part(json.dumps(claims).encode())}"
        secret = self.key.as_pem(private=False)
        mac = hmac.digest(secret, signed.encode(), "sha256") if self.header["alg"] == "HS256" else b""
        return f"{signed}.{part(mac)}"


FAKE = Fake()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    def oidc(address: str) -> Oidc:
        return Oidc(Provider(ISSUER, "gated", "hush", name="Corp"), address, httpx.MockTransport(FAKE.hear))

    with world(tmp_path_factory.mktemp("world"), oidc=oidc) as running:
        running.desk.people.put(Person("ana", "", oidc="ana@corp.example"))
        yield running


@pytest.fixture(autouse=True)
def honest() -> None:
    FAKE.claims, FAKE.header, FAKE.signing = {}, {"alg": "RS256", "kid": "k1"}, FAKE.key


def go(visitor: Visitor) -> str:
    """To the provider; the state that it was sent."""
    sent = visitor.get("/oidc")
    address = urlsplit(sent.headers["location"])
    assert f"{address.scheme}://{address.netloc}{address.path}" == f"{ISSUER}/authorization"
    FAKE.asked = {key: values[0] for key, values in parse_qs(address.query).items()}
    assert FAKE.asked["code_challenge_method"] == "S256"
    assert FAKE.asked["redirect_uri"].endswith("/oidc/back")
    return FAKE.asked["state"]


def back(visitor: Visitor, state: str, code: str = "the-code") -> httpx.Response:
    return visitor.http.get("/oidc/back", params={"code": code, "state": state})


def test_a_known_person_logs_in_and_goes_where_they_wanted(made: World) -> None:
    with made.visitor() as ana:
        assert "Log in with Corp" in ana.get("/login").text
        ana.get("/runs")
        assert back(ana, go(ana)).headers["location"] == "/runs"
        assert ana.get("/").status_code == 200


def test_who_logs_in_with_the_provider_has_no_password_here(made: World) -> None:
    with made.visitor() as nobody:
        assert nobody.log_in("ana", "").status_code == 401


LIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another person": ({"email": "mallory@corp.example"}, {}),
    "an address that was not verified": ({"email_verified": False}, {}),
    "a verified address in words": ({"email_verified": "true"}, {}),
    "another log-in's token": ({"nonce": "other"}, {}),
    "another client's token": ({"aud": "other"}, {}),
    "a token handed on": ({"aud": ["gated", "other"], "azp": "other"}, {}),
    "another issuer's token": ({"iss": "https://evil.example"}, {}),
    "an old token": ({"exp": 1_000_000_000}, {}),
    "a token from the future": ({"iat": 4_000_000_000}, {}),
    "no signature": ({}, {"alg": "none"}),
    "the public key as a secret": ({}, {"alg": "HS256"}),
    "a key of somebody else": ({}, {"alg": "RS256", "kid": "k1", "other": True}),
}


@pytest.mark.parametrize("lie", LIES)
def test_nobody_gets_in_with(made: World, lie: str) -> None:
    FAKE.claims, header = LIES[lie]
    if header:
        FAKE.header = {key: value for key, value in header.items() if key != "other"}
        FAKE.signing = RSAKey.generate_key(2048) if "other" in header else None
    with made.visitor() as visitor:
        answer = back(visitor, go(visitor))
        assert answer.status_code == 403, json.dumps(dict(answer.headers))
        assert visitor.get("/").headers["location"] == "/login"


def test_a_way_back_is_for_the_browser_that_left_and_for_once(made: World) -> None:
    with made.visitor() as ana, made.visitor() as mallory:
        state = go(ana)
        assert back(mallory, state).status_code == 403
        go(mallory)
        assert back(mallory, state).status_code == 403
        state = go(ana)
        assert back(ana, "guessed").status_code == 403
        assert back(ana, state).status_code == 403
        state = go(ana)
        assert back(ana, state, "wrong-code").status_code == 403
        assert back(ana, go(ana)).status_code == 303


async def test_a_provider_of_another_name_is_not_used() -> None:
    fake = Fake()
    fake.issuer = "https://evil.example"
    oidc = Oidc(Provider(ISSUER, "gated"), "http://127.0.0.1/oidc/back", httpx.MockTransport(fake.hear))

    with pytest.raises(OidcError, match=r"calls itself `https://evil\.example`"):
        await oidc.address("s", "n", "v")
    await oidc.close()
