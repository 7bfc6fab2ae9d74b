"""What the files of a folder are: those that say what agents may do are all read, and those that nobody can tell are errors."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from gated.documents import DocumentError, parse_document
from gated.shell.kinds import kind_of
from gated.shell.policies import policy_document, read_policy, scenario_documents

POLICY = "version: 1\nagents: {a: {allowed_tools: [T]}}\n"
SCENARIOS = "policy: policy.yaml\nscenarios: [{name: s, steps: [{run: {tool: T}}]}]\n"
SCHEMA = '{"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gated policy"}'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (POLICY, "policy"),
        ("version: 1", "policy"),
        ("contracts: []", "policy"),
        ("agents: {}\nscenarios: []", "policy"),  # its key `scenarios` is an error: the agents are not passed over
        ("policy: p\ngroups: {}", "policy"),
        (SCENARIOS, "scenarios"),
        ("scenarios: []", "scenarios"),
        ("policy: p\nscenarios: []\ncontractss: []", "neither"),
        (SCHEMA, "schema"),
        ('{"$schema": "https://json-schema.org/draft/2020-12/schema", "agents": {}}', "policy"),
        ('{"$schema": "policy.schema.json"}', "neither"),
        ("version: 1\nchannels: {}", "neither"),
        ("agentss: {}", "neither"),
        ("[version]", "neither"),
        ("1", "neither"),
        ("", "neither"),
        ("{}", "neither"),
    ],
)
def test_a_file_is_known_by_its_keys(text: str, kind: str) -> None:
    assert kind_of(parse_document(text, file="f.yaml")).name == kind


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "scenarios.yaml").write_text(SCENARIOS)
    (tmp_path / "policy.schema.json").write_text(SCHEMA)
    (tmp_path / "notes.md").write_text("# Not read")
    return tmp_path


def test_a_folder_is_its_policies_and_its_scenarios(folder: Path) -> None:
    alone = read_policy(folder / "policy.yaml").digest
    assert read_policy(folder).digest == alone
    assert [Path(document.file).name for document in scenario_documents(folder)] == ["scenarios.yaml"]
    (folder / "groups.yml").write_text("groups: {leads: [bob]}")
    assert read_policy(folder).digest != alone


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\nchannels: {}\n", "x.yaml:2: neither a policy nor scenarios: `channels` is a key of neither (of a folder"),
        (
            "policy: p\nscenarioss: []\n",
            "x.yaml:2: neither a policy nor scenarios: `scenarioss` is a key of neither; did you mean",
        ),
        (
            "",
            "x.yaml:1: neither a policy, which begins with `version: 1`, nor scenarios, which begin with `policy:` (of a folder",
        ),
    ],
)
def test_what_nobody_can_tell_is_an_error_of_the_folder(folder: Path, text: str, words: str) -> None:
    (folder / "x.yaml").write_text(text)
    for read in (policy_document, scenario_documents):
        with pytest.raises(DocumentError) as error:
            read(folder)
        assert words in str(error.value)


def test_what_is_in_a_policy_is_never_passed_over_for_scenarios_beside_it(folder: Path) -> None:
    (folder / "scenarios.yaml").write_text(SCENARIOS + "contracts: []\n")
    with pytest.raises(DocumentError, match=r"scenarios\.yaml:1: unknown key `policy`"):
        read_policy(folder)
    with pytest.raises(DocumentError, match="the folder holds no scenarios"):
        scenario_documents(folder)


@pytest.mark.parametrize(
    ("name", "as_policy", "as_scenarios"),
    [
        ("policy.yaml", None, "this is a policy, not scenarios: `gated policy check"),
        ("scenarios.yaml", "these are scenarios, not a policy: `gated policy test", None),
        ("policy.schema.json", "this is a JSON Schema", "this is a JSON Schema"),
        ("empty", "the folder holds no policy", "the folder holds no scenarios"),
        ("missing.yaml", "`gated policy init` writes a policy", "cannot be read: No such file"),
    ],
)
def test_what_is_no_policy_says_what_it_is(folder: Path, name: str, as_policy: str | None, as_scenarios: str | None) -> None:
    (folder / "empty").mkdir()
    for read, words in ((policy_document, as_policy), (scenario_documents, as_scenarios)):
        with nullcontext() if words is None else pytest.raises(DocumentError, match=words):
            read(folder / name)
