"""Layers of settings: which files are found, which wins, and what a project's file may set."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract.errors import SettingsError
from gateway.settings import Settings, load_settings
from gateway.settings.entries import ENABLED, Entry, flat, merged, tree
from gateway.settings.layers.files import cache_folder
from gateway.settings.layers.rules import ORGANIZATION_KEYS, PROJECT_KEYS
from gateway.settings.sections import effective
from gateway.settings.validation import ANY_NAME, known_keys


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


class Machine:
    """A home directory with personal settings, and a project in it where the gateway starts."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.project = self.home / "work/shop"
        self.start = self.project / "api"
        self.start.mkdir(parents=True)

    def personal(self, text: str) -> Path:
        return write(self.home / ".config/trunkline/trunkline.toml", text)

    def operator(self, text: str) -> Path:
        return write(self.start / "config/trunkline.toml", text)

    def of_project(self, text: str, folder: Path | None = None) -> Path:
        return write((folder or self.project) / ".trunkline/trunkline.toml", text)

    def trust(self) -> None:
        self.personal(f'trusted_projects = ["{self.project}"]')

    def load(self, start: Path | None = None, **environ: str) -> Settings:
        return load_settings(environ={"HOME": str(self.home), **environ}, cwd=start or self.start)

    def refusal(self, start: Path | None = None, **environ: str) -> str:
        with pytest.raises(SettingsError) as caught:
            self.load(start, **environ)
        return str(caught.value)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# Order


def test_004_T19_each_layer_overrides_those_below(machine: Machine):
    keys = ("personal", "far", "near", "operator", "variable", "flag")
    agents = ["".join(f"[agents.{key}]\ndescription = '{i}'\n" for key in keys[i:]) for i in range(6)]
    machine.personal(agents[0])
    machine.of_project(agents[1])
    machine.of_project(agents[2], machine.start)
    machine.operator(agents[3])
    settings = load_settings(
        flags={"agents": {"flag": {"description": "5"}}},
        environ={
            "HOME": str(machine.home),
            "TRUNKLINE_AGENTS__VARIABLE__DESCRIPTION": "4",
            "TRUNKLINE_AGENTS__FLAG__DESCRIPTION": "4",
        },
        cwd=machine.start,
    )
    assert {name: agent.description for name, agent in settings.agents.items()} == dict(
        zip(keys, "012345", strict=True)
    )
    layers = {row.key: row.layer for row in effective(settings)}
    assert [layers[f"agents.{key}.description"] for key in keys] == [
        *("personal", "project", "project", "operator", "environment", "flags")
    ]
    assert [source.layer for source in settings.origin.sources] == [
        *("personal", "project", "project", "operator", "environment", "flags")
    ]


@pytest.mark.parametrize("suffix", ["json", "jsonc", "json5"])
def test_004_T19_a_project_may_use_json_with_comments(machine: Machine, suffix: str):
    write(
        machine.project / f".trunkline/trunkline.{suffix}", '{"model": "a/b", /* … */ "systemPrompt": "x",}'
    )
    settings = machine.load()
    assert (settings.model, settings.system_prompt) == ("a/b", "x")


def test_004_T19_plugin_lists_of_layers_are_joined(machine: Machine):
    machine.personal('[plugins]\nenabled = ["a", "b"]')
    machine.operator('[plugins]\nenabled = ["b", "c"]')
    settings = machine.load(TRUNKLINE_PLUGINS__ENABLED='["a", "d"]')
    assert settings.plugins.enabled == ("a", "b", "c", "d")
    row = next(row for row in effective(settings) if row.key == "plugins.enabled")
    assert row.layer == "personal, operator, environment"
    assert row.source.endswith("trunkline.toml:2, config/trunkline.toml:2, TRUNKLINE_PLUGINS__ENABLED")


def test_a_file_above_the_home_directory_is_not_read(machine: Machine):
    machine.of_project("[server]\nport = 1", machine.home.parent)
    assert machine.load().server.port == 8080
    assert "server.port" in machine.refusal(machine.home.parent)


def test_a_start_outside_of_the_home_directory_looks_up_to_the_root(machine: Machine, tmp_path: Path):
    machine.of_project('model = "a/b"', tmp_path / "srv")
    start = tmp_path / "srv/app"
    start.mkdir()
    assert machine.load(start).model == "a/b"


def test_a_named_file_is_read_alone(machine: Machine):
    machine.personal("max_tokens = 1")
    machine.of_project('model = "a/b"')
    named = write(machine.start / "own.toml", "steer = true")
    settings = load_settings(named, environ={"HOME": str(machine.home)}, cwd=machine.start)
    assert (settings.max_tokens, settings.model, settings.steer) == (None, None, True)
    assert [(source.layer, source.name) for source in settings.origin.sources] == [("operator", "own.toml")]


def test_agent_files_of_a_project_are_agents(machine: Machine):
    write(
        machine.project / ".trunkline/agents/clerk.md",
        "---\ntools: []\n---\nSell things. Never write ${HOME}.",
    )
    settings = machine.load()
    assert settings.agents["clerk"].system_prompt == "Sell things. Never write ${HOME}."
    assert [source.layer for source in settings.origin.sources] == ["project"]


# Keys


REFUSED = sorted({path[0] for path in known_keys(Settings)} - {path[0] for path in PROJECT_KEYS})


@pytest.mark.parametrize("key", REFUSED)
def test_004_T19_a_project_must_not_set(machine: Machine, key: str):
    path = next(path for path in known_keys(Settings) if path[0] == key)
    written = ".".join("x" if part == ANY_NAME else part for part in path)
    machine.of_project(f'model = "a/b"\n{written} = "x"')
    assert f"shop/.trunkline/trunkline.toml:2: {key}" in machine.refusal()
    place = f"{machine.project}/.trunkline/trunkline.toml:2"
    said = next(line for line in machine.refusal().splitlines() if place in line)
    if key == "trusted_projects":
        assert "is read only from the personal settings" in said
    else:
        assert f"{written} must not be set by the file of a project" in said
        assert f'add "{machine.project}" to trusted_projects' in said


@pytest.mark.parametrize(
    "text",
    [
        "[server]",
        "[mcp]\nx = 1",
        "[skills]\nx = 1",
        'instructions = ["x"]',
        '[plugins]\nenabled = [{ name = "x", config = { a = 1 } }]',
        "[plugins.files]\nroots = ['/']",
        "dataDir = 'x'",
        "server = { port = 1 }",
        "[channels.websocket]\nenabled = false",
        "[providers.openai]\nbase_url = 'https://evil.example'",
        "[permissions]\n'*' = 'allow'",
    ],
)
def test_every_other_spelling_of_such_a_key_is_refused(machine: Machine, text: str):
    machine.of_project(text)
    said = machine.refusal()
    assert "must not be set by the file of a project" in said or "is not a setting" in said


def test_all_mistakes_of_all_layers_are_reported_together(machine: Machine):
    machine.personal("max_tokens = 'x'")
    machine.of_project("\nsteer = true")
    machine.of_project("model = [", machine.start)
    machine.operator("[server]\nprot = 1")
    write(machine.start / "config/trunkline.json", "{}")
    said = machine.refusal(TRUNKLINE_SERVR__PORT="3")
    for place in (
        f"{machine.home}/.config/trunkline/trunkline.toml:1: max_tokens",
        f"{machine.project}/.trunkline/trunkline.toml:2: steer",
        ".trunkline/trunkline.toml:1:10:",
        "config/trunkline.toml, config/trunkline.json: only one settings file",
        "TRUNKLINE_SERVR__PORT: is not a setting",
    ):
        assert place in said
    assert said.startswith("5 settings are wrong:")


def test_a_trusted_project_may_set_everything(machine: Machine):
    machine.trust()
    machine.of_project("[server]\nport = 9\n[plugins]\nenabled = ['./mine.py']")
    settings = machine.load()
    assert (settings.server.port, settings.plugins.enabled) == (9, ("./mine.py",))
    assert settings.plugin_base("./mine.py") == machine.project / ".trunkline"
    assert "trusted project" in {source.layer for source in settings.origin.sources}


def test_trust_is_for_one_directory(machine: Machine):
    machine.trust()
    machine.of_project("[server]\nport = 9", machine.start)
    assert "server.port must not be set" in machine.refusal()


def test_a_project_cannot_trust_itself_or_another(machine: Machine):
    machine.trust()
    machine.of_project(f'trusted_projects = ["{machine.start}"]')
    machine.of_project("steer = true", machine.start)
    said = machine.refusal()
    assert "trusted_projects is read only from the personal settings" in said
    assert "steer must not be set" in said


def test_the_operator_and_variables_cannot_trust_a_project(machine: Machine):
    machine.operator(f'trusted_projects = ["{machine.project}"]')
    settings = machine.load(TRUNKLINE_TRUSTED_PROJECTS=f'["{machine.start}"]')
    assert settings.trusted_projects == ()
    assert len(settings.origin.warnings) == 2
    machine.of_project("steer = true")
    assert "steer must not be set" in machine.refusal()


@pytest.mark.parametrize("written", ["~/work/shop", "work/shop", "{project}/../shop", "{link}"])
def test_trusted_projects_are_real_paths(machine: Machine, written: str):
    (machine.home / "link").symlink_to(machine.project)
    path = written.format(project=machine.project, link=machine.home / "link")
    machine.personal(f'trusted_projects = ["{path}"]')
    machine.of_project("steer = true")
    said = machine.refusal()
    assert "trusted_projects" in said
    assert "must be" in said
    assert "steer must not be set" in said


def test_a_project_cannot_give_tools_to_an_agent_of_the_user(machine: Machine):
    machine.personal("[agents.clerk]\ndescription = 'mine'")
    machine.of_project("[agents.clerk]\ntools = ['shell']\n[agents.other]\ntools = ['shell']")
    said = machine.refusal()
    assert "agents.clerk.tools must not be set by the file of a project for an agent of yours" in said
    assert "agents.other" not in said


def test_the_documentation_lists_what_an_organization_may_set():
    text = (Path(__file__).parents[3] / "docs/settings.md").read_text(encoding="utf-8")
    keys, of_providers = (
        text.partition("**Keys**:")[2].partition("Every other key")[0].split("of each provider")
    )
    known = {path for path in ORGANIZATION_KEYS if path[0] != "providers"}
    assert re.findall(r"`(\w+)`", keys) == sorted(path[0] for path in known)
    assert re.findall(r"`(\w+)`", of_providers) == sorted(path[2] for path in {*ORGANIZATION_KEYS} - known)
    assert all(path[0] in Settings.model_fields for path in ORGANIZATION_KEYS)


# Files


def test_a_prompt_of_a_project_comes_from_the_project(machine: Machine):
    machine.of_project('system_prompt = "{file:../prompts/main.md}"')
    write(machine.project / "prompts/main.md", "Be kind.")
    assert machine.load().system_prompt == "Be kind."


@pytest.mark.parametrize(
    "reference",
    [
        *("{file:/etc/hostname}", "{file:../../secret}", "{file:~/secret}", "{file:../link}"),
        *("{file:../gone}", "{file:a\\u0000b}", "{file:../loop}", "{file:../pipe}", "{file:..}"),
        *("${SECRET}", "{env:SECRET}"),
    ],
)
def test_a_prompt_of_a_project_reads_nothing_else(machine: Machine, reference: str):
    write(machine.home / "secret", "hunter2")
    write(machine.home / "work/secret", "hunter2")
    write(machine.project / ".trunkline/~/secret", "a decoy")
    (machine.project / "link").symlink_to(machine.home / "secret")
    (machine.project / "loop").symlink_to("loop")
    os.mkfifo(machine.project / "pipe")
    machine.of_project(f'agents.x.system_prompt = "{reference}"')
    said = machine.refusal(SECRET="hunter2")
    assert ".trunkline/trunkline.toml:1: agents.x.system_prompt" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("name", [".trunkline/trunkline.toml", ".trunkline/agents/x.md", ".trunkline"])
def test_a_link_must_not_lead_out_of_the_project(machine: Machine, name: str):
    write(machine.home / "secret/trunkline.toml", "hunter2 = 1")
    target = machine.home / ("secret" if name == ".trunkline" else "secret/trunkline.toml")
    (machine.project / name).parent.mkdir(parents=True, exist_ok=True)
    (machine.project / name).symlink_to(target)
    said = machine.refusal()
    assert f"leads out of {machine.project}" in said
    assert "hunter2" not in said


def test_a_link_inside_of_the_project_is_followed(machine: Machine):
    write(machine.project / "settings/trunkline.toml", 'model = "a/b"')
    (machine.project / ".trunkline").symlink_to("settings")
    assert machine.load().model == "a/b"


def test_a_start_through_a_link_finds_the_real_directories(machine: Machine, tmp_path: Path):
    machine.of_project('model = "a/b"')
    machine.of_project('model = "other/b"', tmp_path / "elsewhere")
    (tmp_path / "elsewhere/link").symlink_to(machine.start)
    assert machine.load(tmp_path / "elsewhere/link").model == "a/b"


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("name", [".", ".trunkline", ".trunkline/trunkline.toml"])
def test_what_every_user_can_write_is_not_read(machine: Machine, name: str, trusted: bool):
    if trusted:
        machine.trust()
    machine.of_project('model = "a/b"')
    path = machine.project / name
    path.chmod(0o777)
    assert f"every user can write to {path}" in machine.refusal()
    path.chmod(0o1777)
    if path.is_dir():  # like /tmp, where users cannot replace files of others
        assert machine.load().model == "a/b"


@contextlib.contextmanager
def as_user(number: int) -> Iterator[Path]:
    """A directory of another user, if the tests run as root; code in the block runs as that user."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        os.chown(folder, number, number)
        os.seteuid(number)
        yield folder
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


def test_a_file_that_cannot_be_read_is_an_error():
    with as_user(65534) as folder:
        machine = Machine(folder)
        machine.of_project('model = "a/b"').chmod(0o000)
        assert ".trunkline/trunkline.toml: cannot be read: Permission denied" in machine.refusal()
        (machine.project / ".trunkline").chmod(0o000)
        assert "shop/.trunkline" in machine.refusal()
        assert "cannot be read: Permission denied" in machine.refusal()
        (machine.project / ".trunkline").chmod(0o700)


def test_a_file_of_another_user_is_an_error_unless_its_project_is_trusted():
    with as_user(65534) as folder:
        machine = Machine(folder)
        file = machine.of_project('model = "a/b"')
        os.seteuid(0)
        os.chown(file, 65533, 65533)
        os.seteuid(65534)
        assert f"{file} belongs to another user" in machine.refusal()
        machine.trust()
        assert machine.load().model == "a/b"
        os.seteuid(0)
        os.chown(file, 0, 0)
        os.seteuid(65534)
        assert machine.load().model == "a/b"


@pytest.mark.parametrize(
    "text",
    [
        'model = """' + "x" * 200_000 + '"""',
        "".join(f'[agents.a{n}]\nmodel = "x"\n' for n in range(1500)),
        "model = " + "[" * 20_000 + "]" * 20_000,
        "model = [\n" + '"x", #]\n' * 12_000 + "]",
    ],
    ids=["large", "many values", "deep", "many lines"],
)
def test_a_file_that_is_costly_to_read_is_refused(machine: Machine, text: str):
    machine.of_project(text)
    assert ".trunkline/trunkline.toml" in machine.refusal()


def test_a_lot_of_lines_are_counted_in_one_pass(machine: Machine):
    prompt = "".join(f"line {n} ]\n" for n in range(8_000))
    machine.of_project(f'model = "a/b" # """ [\nsystem_prompt = """\n{prompt}"""\n\nagents.x.modle = "c"\n')
    assert "trunkline.toml:8005: agents.x.modle is not a setting" in machine.refusal()


def test_json_lines_are_found_after_comments_and_strings_of_several_lines(machine: Machine):
    text = '{\n/* a\n b */ "model": "a/b", // "x": {\n"agents": {"x":\n {"modle": 1}}}'
    write(machine.project / ".trunkline/trunkline.json", text)
    assert "trunkline.json:5: agents.x.modle is not a setting" in machine.refusal()


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HOME": "{home}"}, "{home}/.cache/trunkline"),
        ({"HOME": "{home}", "XDG_CACHE_HOME": "/c"}, "/c/trunkline"),
        ({"HOME": "/"}, "/data/cache"),
        ({"HOME": "{home}/nowhere"}, "/data/cache"),
        ({}, "/data/cache"),
    ],
)
def test_copies_are_kept_where_the_user_can_write(tmp_path: Path, environ: dict[str, str], folder: str):
    given = {name: value.format(home=tmp_path) for name, value in environ.items()}
    assert str(cache_folder(given, Path("/data"))) == folder.format(home=tmp_path)


# Merging


KEYS = st.sampled_from("abc")
VALUES = st.one_of(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=3))


def trees() -> st.SearchStrategy[dict[str, object]]:
    """Trees in which a key is always a table or always a value, as in the settings."""
    return st.fixed_dictionaries(
        {},
        optional={
            "value": VALUES,
            "table": st.dictionaries(KEYS, VALUES, max_size=3),
            "tables": st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=2), max_size=2),
            "plugins": st.fixed_dictionaries(
                {}, optional={"enabled": st.lists(KEYS, max_size=4), "x": st.dictionaries(KEYS, VALUES)}
            ),
        },
    )


def entries(given: dict[str, object]) -> list[Entry]:
    return [Entry(path=path, value=value, place="", base=Path()) for path, value in flat(given)]


def both(*layers: list[Entry]) -> list[Entry]:
    return merged([entry for layer in layers for entry in layer])


@given(trees(), trees(), trees())
def test_004_T19_merging_is_associative(
    one: dict[str, object], two: dict[str, object], three: dict[str, object]
):
    a, b, c = entries(one), entries(two), entries(three)
    assert tree(both(both(a, b), c)) == tree(both(a, both(b, c))) == tree(both(a, b, c))


@given(trees())
def test_merging_with_itself_or_nothing_changes_only_repeats(one: dict[str, object]):
    a = entries(one)
    assert tree(both(a, a)) == tree(both(a, both(a)))
    assert tree(both(a, [])) == tree(both([], a)) == tree(a)
    once = both(a, a)
    assert tree(both(once, a)) == tree(once)


@given(trees(), trees())
def test_the_later_layer_wins_and_nothing_else_is_lost(one: dict[str, object], two: dict[str, object]):
    a, b = ({entry.path: entry.value for entry in entries(each)} for each in (one, two))
    found = {entry.path: entry.value for entry in both(entries(one), entries(two))}
    for path, value in b.items():
        if value != {} and path != ENABLED:
            assert found[path] == value
    for path, value in a.items():
        if value != {} and path not in b:
            assert found[path] == value
    assert set(found) <= {*a, *b}


@given(st.lists(st.lists(KEYS, max_size=5), min_size=2, max_size=4))
def test_joined_lists_keep_the_first_of_each_in_order(lists: list[list[str]]):
    layers = [entries({"plugins": {"enabled": each}}) for each in lists]
    [found] = both(*layers)
    assert found.value == list(dict.fromkeys(name for each in lists for name in each))


@pytest.mark.parametrize(
    "text",
    [
        '[plugins.audit]\ntrust = "full"',
        '[mcp.files]\ncommand = ["x"]\ntrust = "full"',
        '[plugins]\nsandbox = "standard"',
        '[teams.plugins]\nallowlist = ["audit"]',
        '[plugins]\nenabled = [{ name = "audit", config = { trust = "full" } }]',
    ],
)
def test_only_the_operator_decides_how_plugins_are_confined(machine: Machine, text: str) -> None:
    machine.trust()
    machine.of_project(text)
    assert "must not be set by the file of a project, even a trusted one" in machine.refusal()
    machine.of_project("")
    machine.operator(text)
    machine.load()


def test_commands_edit_the_operators_file_or_else_the_users(machine: Machine) -> None:
    assert machine.load().file == Path("config/trunkline.toml")
    machine.trust()
    machine.of_project("")
    assert machine.load().file == machine.home / ".config/trunkline/trunkline.toml"
    file = machine.operator("")
    assert machine.load().file == file
    assert load_settings(file, environ={}, cwd=machine.home).file == file
