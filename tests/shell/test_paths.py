from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.links import MOST_LINKS
from gated.core.scope import DataScope, Resources, compile_scope
from gated.shell.paths import follow_links, resolutions


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Real folders and links; the temporary folder itself may lie behind a link."""
    real = Path(os.path.realpath(tmp_path))
    (real / "workspace" / "src").mkdir(parents=True)
    (real / "outside").mkdir()
    (real / "workspace" / "outbox").symlink_to(real / "outside")
    (real / "workspace" / "up").symlink_to("../outside")
    (real / "workspace" / "src" / "here").symlink_to(".")
    (real / "workspace" / "chain").symlink_to("outbox")
    (real / "workspace" / "dangling").symlink_to(real / "outside" / "missing")
    (real / "workspace" / "loop").symlink_to("loop")
    (real / "workspace" / "file").write_text("")
    return real


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("workspace/src", "workspace/src"),
        ("workspace/./src//x", "workspace/src/x"),
        ("workspace/new/deep/leaf", "workspace/new/deep/leaf"),
        ("workspace/outbox/new.txt", "outside/new.txt"),
        ("workspace/outbox/new/deep.txt", "outside/new/deep.txt"),
        ("workspace/outbox/../x", "x"),
        ("workspace/up/x", "outside/x"),
        ("workspace/chain/x", "outside/x"),
        ("workspace/dangling", "outside/missing"),
        ("workspace/src/here/here/x", "workspace/src/x"),
        ("workspace/file/x", "workspace/file/x"),
        ("../../../../../../../../..", None),
    ],
)
def test_follows(root: Path, path: str, leads_to: str | None) -> None:
    assert follow_links(f"{root}/{path}") == ("/" if leads_to is None else str(root / leads_to))


def test_a_loop_is_an_error(root: Path) -> None:
    with pytest.raises(OSError, match="too many symbolic links"):
        follow_links(f"{root}/workspace/loop/x")


def test_a_chain_as_long_as_the_kernel_takes(root: Path) -> None:
    for number in range(MOST_LINKS + 1):
        (root / f"l{number}").symlink_to(f"l{number - 1}" if number else "outside")
    assert follow_links(f"{root}/l{MOST_LINKS - 1}") == str(root / "outside")
    with pytest.raises(OSError, match="too many symbolic links"):
        follow_links(f"{root}/l{MOST_LINKS}")


def test_a_relative_path_is_an_error() -> None:
    with pytest.raises(ValueError, match="`a` is no absolute path"):
        follow_links("a")


def test_what_cannot_be_followed_is_left_out(root: Path) -> None:
    paths = [f"{root}/workspace/loop", f"{root}/\x00", f"{root}/\ud800", f"{root}/{'n' * 5000}", f"{root}/workspace/src"]
    assert resolutions(paths) == {f"{root}/workspace/src": f"{root}/workspace/src"}


@given(st.lists(st.sampled_from(["workspace", "src", "outbox", "up", "here", "chain", "..", ".", "outside", "new"]), max_size=8))
def test_agrees_with_the_system(names: list[str]) -> None:
    # The system's answer is only trusted without loops and unreadable folders, which these names cannot make.
    path = "/".join([os.path.realpath(TREE), *names])
    assert follow_links(path) == os.path.realpath(path)


TREE: str


@pytest.fixture(autouse=True, scope="module")
def _tree(tmp_path_factory: pytest.TempPathFactory) -> None:
    global TREE
    top = tmp_path_factory.mktemp("tree")
    (top / "workspace" / "src").mkdir(parents=True)
    (top / "outside").mkdir()
    (top / "workspace" / "outbox").symlink_to(top / "outside")
    (top / "workspace" / "up").symlink_to("../outside")
    (top / "workspace" / "src" / "here").symlink_to(".")
    (top / "outside" / "chain").symlink_to("../workspace/src")
    TREE = str(top)


def test_pain_a_link_inside_the_scope_reaches_outside_also_by_a_parent(root: Path) -> None:
    workspace = str(root / "workspace")
    rules = DataScope(allowed_paths=[workspace], base_path=workspace, resolve=True)
    scope = compile_scope(rules, {"fs.write": Resources(args={"path": "path"})})
    lexical = compile_scope(
        DataScope(allowed_paths=[workspace], base_path=workspace), {"fs.write": Resources(args={"path": "path"})}
    )

    def decide(path: str) -> str | None:
        args = {"path": path}
        return scope.check("fs.write", args, resolutions(scope.paths_to_resolve("fs.write", args))).denied

    for path in (f"{workspace}/outbox/new.txt", "outbox/new.txt", "chain/a/b", "dangling", "loop/x", "src/here/../../up/x"):
        assert decide(path) is not None, path
        assert lexical.check("fs.write", {"path": path}).lexical
    for path in (f"{workspace}/src/new.txt", "new/new.txt", "src/here/here/x", "file"):
        assert decide(path) is None, path
