"""Logging in with an OpenID provider: the authorization code flow with PKCE, and nothing of the provider is believed unchecked.

INVARIANT: who may log in stands in the file of users, not with the provider: a claim of a verified ID token names one of them.
An e-mail address counts only where the provider says that it has verified it. Needs the extra `gated[oidc]`, so it is imported
only where a provider is configured.
"""

from __future__ import annotations

import base64
import hashlib
import time
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from msgspec import Struct

from gated.errors import GatedError

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
KEPT: Final = 3600.0  # seconds that what the provider says of itself is kept
LEEWAY: Final = 60  # seconds by which its clock may differ
TIMEOUT: Final = 10.0
WANTED: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")  # of what a provider says of itself
LOCAL: Final = (("http", "127.0.0.1"), ("http", "localhost"))  # a provider on this machine, to try it out


class OidcError(GatedError):
    """The provider cannot be used, or what it says is not to be believed: why."""


class Provider(Struct, frozen=True):
    """`claim` of the ID token says who it is; `name` is what the log-in page calls the provider."""

    issuer: str
    client_id: str
    client_secret: str = ""
    claim: str = "email"
    name: str = "OpenID"
    scope: str = "openid email"


class Oidc:
    """A provider, and what it last said of itself."""

    def __init__(self, provider: Provider, redirect_uri: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.provider, self.redirect_uri = provider, redirect_uri
        self._http = httpx.AsyncClient(timeout=TIMEOUT, transport=transport)
        self._said: tuple[float, dict[str, Any], dict[str, Any]] | None = None

    async def close(self) -> None:
        await self._http.aclose()

    async def _about(self, *, anew: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
        """The provider's configuration and keys. Raises `OidcError`."""
        if self._said is None or anew or time.monotonic() - self._said[0] > KEPT:
            issuer = self.provider.issuer.rstrip("/")
            found = await self._json("GET", f"{issuer}/.well-known/openid-configuration")
            if str(found.get("issuer", "")).rstrip("/") != issuer:
                raise OidcError(f"the provider calls itself `{found.get('issuer')}`, not `{self.provider.issuer}`")
            if missing := [key for key in WANTED if not isinstance(found.get(key), str)]:
                raise OidcError(f"the provider does not say its {' and '.join(missing)}")
            self._said = (time.monotonic(), found, await self._json("GET", found["jwks_uri"]))
        return self._said[1], self._said[2]

    async def _json(self, method: str, url: str, **more: Any) -> dict[str, Any]:
        parts = urlsplit(url)
        if parts.scheme != "https" and (parts.scheme, parts.hostname) not in LOCAL:
            raise OidcError(f"`{url}` is no https address")
        try:
            answer = await self._http.request(method, url, headers={"accept": "application/json"}, **more)
            answer.raise_for_status()
            found = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise OidcError(f"the provider does not answer at `{url}`: {error or type(error).__name__}") from error
        if not isinstance(found, dict):
            raise OidcError(f"the provider does not answer with an object at `{url}`")
        return found

    async def address(self, state: str, nonce: str, verifier: str) -> str:
        """Where the browser is sent to. Raises `OidcError`."""
        about, _ = await self._about()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self.provider.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": self.provider.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return f"{about['authorization_endpoint']}?{urlencode(asked)}"

    async def who(self, code: str, nonce: str, verifier: str) -> str:
        """The value of the claim, out of the ID token that the code stands for. Raises `OidcError`."""
        about, _ = await self._about()
        asked = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "client_id": self.provider.client_id,
            "code_verifier": verifier,
        }
        if self.provider.client_secret:
            asked["client_secret"] = self.provider.client_secret
        answer = await self._json("POST", about["token_endpoint"], data=asked)
        claims = await self._verified(str(answer.get("id_token", "")), nonce)
        if self.provider.claim == "email" and claims.get("email_verified") is not True:
            raise OidcError("the provider has not verified the e-mail address")
        value = claims.get(self.provider.claim)
        if not isinstance(value, str) or not value:
            raise OidcError(f"the ID token has no `{self.provider.claim}`")
        return value

    async def _verified(self, token: str, nonce: str) -> dict[str, Any]:
        registry = jwt.JWTClaimsRegistry(
            leeway=LEEWAY,
            iss={"essential": True, "value": (await self._about())[0]["issuer"]},
            aud={"essential": True, "value": self.provider.client_id},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        for anew in (False, True):  # once more with new keys, since providers change them
            _, keys = await self._about(anew=anew)
            try:
                found = jwt.decode(token, KeySet.import_key_set(keys), algorithms=list(ALGORITHMS))  # type: ignore[arg-type]
                registry.validate(found.claims)
                if found.claims.get("azp", self.provider.client_id) != self.provider.client_id:
                    raise OidcError("the ID token was made for another client")
                return dict(found.claims)
            except (JoseError, ValueError) as error:
                problem = error
        raise OidcError(f"the ID token is not to be believed: {problem}")
