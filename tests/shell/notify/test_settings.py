"""The file of the channels: strict, with the place of every mistake, and no secret in it."""

from pathlib import Path

import pytest

from cli.command import gated
from gated.documents import DocumentError
from gated.shell.notify.settings import Mail, Webhook, read_settings
from shell.notify.servers import hooks, mailbox


def write(folder: Path, text: str) -> Path:
    path = folder / "notify.yaml"
    path.write_text(text)
    return path


def test_secrets_come_from_files_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_URL", "https://hooks.example/T1/B2")
    (tmp_path / "pw").write_text("geheim\n")
    path = write(
        tmp_path,
        "version: 1\nchannels:\n  a: {kind: webhook, url_env: HOOK_URL}\n"
        "  b: {kind: mail, host: h, user: u, password_file: pw, from: g@x.example, to: [a@x], security: tls, port: 465}\n",
    )
    first, second = (channel.way for channel in read_settings(path).channels)
    assert isinstance(first, Webhook)
    assert (first.url, first.secret, first.format) == ("https://hooks.example/T1/B2", None, "slack")
    assert isinstance(second, Mail)
    assert (second.password, second.security, second.port) == ("geheim", "tls", 465)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("channels: {}\n", "version"),
        ("version: 1\nchannels:\n  a: {kind: pager}\n", "3: "),
        ("version: 1\nchannels:\n  a: {kind: webhook}\n", "needs an `http` or `https` URL"),
        ("version: 1\nchannels:\n  a: {kind: webhook, url: 'ftp://x'}\n", "needs an `http` or `https` URL"),
        ("version: 1\nchannels:\n  a: {kind: webhook, url: 'http://x', url_env: A}\n", "given twice"),
        ("version: 1\nchannels:\n  a: {kind: webhook, url_env: NOT_THERE}\n", "the environment has no `NOT_THERE`"),
        ("version: 1\nchannels:\n  a: {kind: webhook, url_file: missing}\n", "`missing` cannot be read"),
        ("version: 1\nchannels:\n  a: {kind: webhook, url: 'http://x', secret: plain}\n", "secret"),
        ("version: 1\nchannels:\n  a: {kind: mail, host: h, from: a@b, to: [a@b], password: x}\n", "password"),
        ("version: 1\nchannels:\n  a: {kind: mail, host: h, from: a@b, to: [a@b], user: x}\n", "go together"),
        ("version: 1\nchannels:\n  a: {kind: mail, host: h, from: a@b, to: [approvers]}\n", "have no addresses"),
        ("version: 1\nchannels:\n  a: {kind: subject, subject: 'a.>'}\n", "is no subject"),
        ("version: 1\nchannels:\n  a: {kind: subject, subject: s, events: [opend]}\n", "opend"),
        ("version: 1\nchannels:\n  a: {kind: subject, subject: s, tools: ['[']}\n", "`[`"),
        ("version: 1\nchannels:\n  'a b': {kind: subject, subject: s}\n", "a b"),
        ("version: 1\nchannels: {}\nretry: {first: soon}\n", "soon"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DocumentError, match="notify") as error:
        read_settings(write(tmp_path, text))
    assert said in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be read"):
        read_settings(tmp_path / "notify.yaml")


def test_trying_the_channels_out(tmp_path: Path) -> None:
    with hooks() as hook, mailbox() as box:
        path = write(
            tmp_path,
            f"version: 1\nconsole: https://gate.example\nchannels:\n  ops: {{kind: webhook, url: '{hook.url}'}}\n"
            f"  mail: {{kind: mail, host: {box.host}, port: {box.port}, security: none, from: g@x.example, to: [a@x.example]}}\n"
            "  bus: {kind: subject, subject: gated.notices.all}\n",
        )
        status, text, _ = gated("notify", "test", path)
        assert status == 0
        assert "ops  delivered" in text
        slack = hook.posts[0].json
        assert slack["text"] == "sample_tool of agent sample waits for an approval"
        assert slack["blocks"][-1]["elements"][0]["url"] == "https://gate.example"
        assert box.mails[0]["To"] == "a@x.example"
        hook.always = 404
        status, text, _ = gated("notify", "test", path, "--channel", "ops")
        assert status == 1
        assert "HTTP 404" in text
        assert hook.url not in text
        assert gated("notify", "test", path, "--channel", "none")[0] == 2
