"""Who gets into a server's configuration, and under which subjects. What the server makes of it: tests/deploy."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated import ingress, wire
from gated.events import RunId, Sender, ThreadId
from gated.shell.nats_config import User, UserError, UserRole, inbox_prefix, permissions, users_block, users_file
from gated.wire import Origin

NAMED: tuple[UserRole, ...] = ("agent", "approver", "operator", "runner", "auditor")
ids = st.from_regex(ingress.ID, fullmatch=True)


@pytest.mark.parametrize("name", ["", ">", "*", "a.b", "a b", "a\nb", 'a"', "é", "a" * 129, "{name}", "$A"])
@pytest.mark.parametrize("role", NAMED)
def test_a_name_that_is_no_id_is_refused(role: UserRole, name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of a bus user"):
        User(role, name, "x")


@given(st.text())
def test_any_name_is_an_id_or_refused(name: str) -> None:
    if ingress.is_id(name):
        assert permissions(User("agent", name, "x"))["publish"][0] == f"gated.in.*.*.agent.{name}"
    else:
        with pytest.raises(UserError):
            User("agent", name, "x")


@given(name=ids, role=st.sampled_from(["agent", "approver", "operator", "runner"]))
def test_a_permission_is_the_subject_that_the_wire_gives_the_sender(name: str, role: Any) -> None:
    subject = wire.in_subject(Origin(ThreadId("t"), RunId("r"), Sender(role, name)))
    assert permissions(User(role, name, "x"))["publish"][0].replace("*.*", "t.r") == subject


@pytest.mark.parametrize(
    ("given_user", "message"),
    [
        (("root", "a", "x"), "`root` is no role"),
        (("daemon", "a", "x"), "the daemon has no name, not `a`"),
        (("approver", "a", "x", ("t",)), "only agents can be kept to threads, not `approver:a`"),
        (("agent", "a", "x", ("t", "*")), r"`\*` is no thread"),
        (("agent", "a", "x", ("pre*",)), r"`pre\*` is no thread"),
    ],
)
def test_what_cannot_be_fixed_by_permissions_is_refused(given_user: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        User(*given_user)


@pytest.mark.parametrize("prefix", ["", ">", "*", "a.b", "$SYS "])
def test_a_prefix_is_one_token(prefix: str) -> None:
    with pytest.raises(UserError, match="cannot be the prefix"):
        permissions(User("agent", "a", "x"), prefix)


def test_another_prefix_is_in_every_subject_of_the_gate() -> None:
    text = users_block([User("daemon", "", "x"), *(User(role, "n", "x") for role in NAMED)], "other")
    assert "gated" not in text
    assert '"other.in.*.*.agent.n"' in text


def test_inboxes_are_apart() -> None:
    assert len({inbox_prefix(role, name) for role in NAMED for name in ("a", "b")} | {inbox_prefix("daemon", "")}) == 11


@pytest.mark.parametrize(
    ("password", "written"),
    [("$GATED_A", "$GATED_A"), ("$2a$04$abc", '"$2a$04$abc"'), ('a"b\\c', '"a\\"b\\\\c"'), ("$GATED_A }", '"$GATED_A }"')],
)
def test_only_a_variable_stands_unquoted(password: str, written: str) -> None:
    assert f"password: {written}, permissions" in users_block([User("agent", "a", password)])


def test_users_that_would_share_a_variable_are_refused() -> None:
    with pytest.raises(UserError, match=r"`agent:a-b` and `agent:a_b` would share the variable \$GATED_AGENT_A_B"):
        users_file(["agent:a-b", "agent:a_b"])
    assert users_file(["agent:a", "agent:a"]) == users_file(["agent:a"])


def test_the_command_writes_users_or_says_what_is_wrong() -> None:
    command = [sys.executable, "-m", "gated.shell.nats_config"]
    written = subprocess.run([*command, "daemon", "agent:a"], capture_output=True, text=True, check=True)
    assert written.stdout == users_file(["daemon", "agent:a"])
    refused = subprocess.run([*command, "agent:>"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "`>` cannot be the name of a bus user (agent)" in refused.stderr
