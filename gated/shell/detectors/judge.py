"""The external judge: a service that is asked about a call, over the bus or by HTTP, and answers with a score.

It is asked with `{v, thread, run, call, agent, tool, args, task}` and answers `{"score": 0.4, "reason": "…"}`; the reason may be
left out. Anything else (other fields, a score that is no number from 0 to 1, an error beside it, another status than 200) is no
answer: the call is not let through on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from gated import canonical, strict_json
from gated.core.order.templates import escape_text
from gated.core.stages.semantic import JudgeEntry
from gated.errors import GatedError
from gated.events import MILLION, Score

MAX_ANSWER: Final = 65_536  # bytes
MAX_REASON: Final = 200  # characters that are recorded


class Question(Struct, frozen=True):
    """What a judge is told of a call."""

    thread: str
    run: str
    call: str
    agent: str
    tool: str
    args: dict[str, Any]
    task: str | None
    v: int = 1


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    score: float | int
    reason: str = ""


class NoAnswer(Exception):
    """Why there is no score."""


class JudgeMissing(GatedError, RuntimeError):
    """The judge cannot be asked by this installation: what is missing and how to mend it."""


class Judge(Protocol):
    async def ask(self, question: Question, seconds: float) -> Score:
        """Raises `NoAnswer`."""

    async def close(self) -> None: ...


def read_answer(data: bytes) -> Score:
    """Raises `NoAnswer`."""
    if len(data) > MAX_ANSWER:
        raise NoAnswer(f"its answer has {len(data)} bytes, at most {MAX_ANSWER} are read")
    try:
        answer = msgspec.convert(strict_json.parse(data), Answer)
    except (strict_json.BadJson, msgspec.ValidationError) as error:
        raise NoAnswer(f"its answer makes no sense: {error}") from error
    if isinstance(answer.score, bool) or not 0 <= answer.score <= 1:
        raise NoAnswer(f"its score {answer.score} is not from 0 to 1")
    return Score(int(Decimal(repr(answer.score)) * MILLION), escape_text(answer.reason, MAX_REASON))


class NatsJudge:
    """Listens on a subject of the bus."""

    def __init__(self, client: Client, subject: str) -> None:
        self._client, self._subject = client, subject

    async def ask(self, question: Question, seconds: float) -> Score:
        try:
            answer = await self._client.request(self._subject, _encoded(question), timeout=seconds)
        except NoRespondersError as error:
            raise NoAnswer(f"nobody listens on `{self._subject}`") from error
        except NatsTimeoutError as error:
            raise NoAnswer("no answer in time") from error
        except (NatsError, OSError) as error:
            raise NoAnswer(f"`{self._subject}` cannot be asked: {error or type(error).__name__}") from error
        failure = (answer.headers or {}).get("Nats-Service-Error")
        if failure is not None:
            raise NoAnswer(f"it reports an error: {escape_text(failure, MAX_REASON)}")
        return read_answer(answer.data)

    async def close(self) -> None:
        pass  # the client is the daemon's


class HttpJudge:
    """Is posted to. Redirects are not followed, and the proxies of the environment are not used."""

    def __init__(self, url: str, token: str | None) -> None:
        """Raises `JudgeMissing`."""
        try:
            import httpx
        except ImportError as error:
            raise JudgeMissing("a judge with `http` needs `httpx`: install `gated[judge]`") from error
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._url, self._errors = url, (httpx.HTTPError, httpx.InvalidURL)
        self._client = httpx.AsyncClient(headers=headers, follow_redirects=False, trust_env=False)

    async def ask(self, question: Question, seconds: float) -> Score:
        try:
            async with self._client.stream("POST", self._url, content=_encoded(question), timeout=seconds) as answer:
                if answer.status_code != 200:
                    raise NoAnswer(f"it answers with status {answer.status_code}")
                data = bytearray()
                async for part in answer.aiter_bytes():
                    data += part
                    if len(data) > MAX_ANSWER:
                        break
        except self._errors as error:
            raise NoAnswer(f"it cannot be asked: {error or type(error).__name__}") from error
        return read_answer(bytes(data))

    async def close(self) -> None:
        await self._client.aclose()


def _encoded(question: Question) -> bytes:
    return canonical.encode(msgspec.to_builtins(question))


def judge_of(entry: JudgeEntry, client: Client, environment: Mapping[str, str]) -> Judge:
    """The judge that a policy names. Raises `JudgeMissing`."""
    if entry.nats is not None:
        return NatsJudge(client, entry.nats)
    assert entry.http is not None
    token = None if entry.token_from is None else environment.get(entry.token_from)
    if entry.token_from is not None and not token:
        raise JudgeMissing(f"the judge's token is to be in the variable `{entry.token_from}`, which is not set")
    return HttpJudge(entry.http, token)
