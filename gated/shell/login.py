"""How a program logs in to a NATS server: what it was told by options, the environment, or files. No secret is an argument.

| variable | what |
|---|---|
| `GATED_NATS_URL` | one URL, or several with commas between them |
| `GATED_NATS_USER` | a user as `deploy/` names them: `daemon`, `operator:ann`, `auditor:bob` |
| `GATED_NATS_PASSWORD`, `GATED_NATS_PASSWORD_FILE` | its password, or the file that holds it |
| `GATED_NATS_CREDS` | a NATS credentials file, instead of user and password |
| `GATED_NATS_CA` | the certificate authority of the server, where the system does not know it |
| `GATED_NATS_CERT`, `GATED_NATS_KEY` | the program's own certificate, and its key where the certificate's file does not hold it |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from gated.shell.connection import BusError
from gated.shell.nats_config import inbox_prefix
from gated.shell.nats_login import client_context, credentials_file

DEFAULT_URL: Final = "nats://127.0.0.1:4222"


class Login(Struct, frozen=True):
    """Where to and as whom."""

    url: str
    user: str = ""
    password: str = ""
    creds: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    @property
    def credentials(self) -> dict[str, Any]:
        """What the NATS client wants to know. Raises `BusError` for files that cannot be read."""
        role, _, name = self.user.partition(":")
        made: dict[str, Any] = {"inbox_prefix": inbox_prefix(role or "daemon", name)}
        if self.creds:
            made |= credentials_file(Path(self.creds))
        elif self.user:
            made |= {"user": self.user, "password": self.password}
        tls = client_context(*(Path(file) if file else None for file in (self.ca, self.cert, self.key)))
        return made if tls is None else {**made, "tls": tls}


def login(
    url: str = "",
    environment: Mapping[str, str] = os.environ,
    *,
    password_file: Path | None = None,
    **told: str | Path | None,
) -> Login:
    """What was told, and for the rest the environment. Raises `BusError` for files that cannot be read."""
    names = ("user", "password", "creds", "ca", "cert", "key")
    fields = {name: str(told.get(name) or "") or environment.get(f"GATED_NATS_{name.upper()}", "") for name in names}
    if password_file is not None:
        fields["password"] = secret_of(password_file)
    elif not fields["password"] and (file := environment.get("GATED_NATS_PASSWORD_FILE", "")):
        fields["password"] = secret_of(Path(file))
    return Login(url or environment.get("GATED_NATS_URL", "") or DEFAULT_URL, **fields)


def secret_of(file: Path) -> str:
    """The secret that a file holds. Raises `BusError`."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BusError(f"cannot read the secret in `{file}`: {why}") from error
