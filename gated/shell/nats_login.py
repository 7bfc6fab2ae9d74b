"""How a daemon shows who it is to a NATS server of yours: a credentials file, a certificate; and whom it trusts itself."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

from gated.shell.connection import BusError

_PARTS: Final = ("NATS USER JWT", "USER NKEY SEED")


def credentials_file(path: Path) -> dict[str, Any]:
    """What a connection needs of a `.creds` file (a user's JWT and its key). Raises `BusError` where it is none."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BusError(f"the credentials `{path}` cannot be read: {_why(error)}") from error
    missing = [part for part in _PARTS if f"-----BEGIN {part}-----" not in text]
    if missing:
        raise BusError(f"`{path}` is no credentials file of NATS: it has no {' and no '.join(missing)}")
    return {"user_credentials": str(path)}


def client_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What a connection is checked by; None where nothing is given: then the URL and the server decide. Raises `BusError`.

    `ca` replaces the system's authorities, it does not add to them. `key` may be left out where `cert` holds both.
    """
    if ca is None and cert is None and key is None:
        return None
    if cert is None and key is not None:
        raise BusError(f"the key `{key}` needs its certificate: name it with --tls-cert")
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise BusError(f"the certificate authority `{ca}` cannot be used: {_why(error)}") from error
    if cert is not None:
        try:
            context.load_cert_chain(cert, key, password=_refuse_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            named = f"`{cert}`" + (f" with the key `{key}`" if key else "")
            raise BusError(f"the certificate {named} cannot be used: {_why(error)}") from error
    return context


def _refuse_password() -> str:
    """A daemon has nobody to ask."""
    raise ValueError("its key is encrypted: give one that is not, in a file that only the daemon can read")


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
