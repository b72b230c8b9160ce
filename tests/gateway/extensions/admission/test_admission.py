"""Admission: locations, the lock, and what is refused with the command that approves it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import PluginError
from gateway.extensions.admission.capabilities import Capabilities
from gateway.extensions.admission.consent import describe
from gateway.extensions.admission.lock import Granted, Lock, Locked, Wheel, editing
from gateway.extensions.admission.tree import tree_digest

if TYPE_CHECKING:
    from conftest import Desk


def refusal(desk: Desk, entry: str) -> str:
    with pytest.raises(PluginError) as caught:
        desk.admission.admit(entry)
    return str(caught.value)


def test_001_29_the_project_comes_before_the_user_and_installed_plugins(desk: Desk) -> None:
    def place() -> str:
        return desk.admission.find("audit").location

    desk.install(desk.plugin(desk.cwd / "source"))
    assert place() == "installed"
    user = desk.user()
    assert place() == "user"
    project = desk.project()
    assert place() == "project"
    assert [each.location for each in desk.admission.discover()][:3] == ["project", "user", "installed"]
    shutil.rmtree(project)
    shutil.rmtree(user)
    assert place() == "installed"


def test_a_plugin_that_cannot_be_examined_is_named_and_hides_no_other(desk: Desk) -> None:
    desk.project()
    looped = desk.project("looped")
    (looped / "plugin.yml").unlink()
    (looped / "plugin.yml").symlink_to("plugin.yml")  # its stat fails, as in a closed folder
    found = {
        each.folder.name: each.problem for each in desk.admission.discover() if each.location == "project"
    }
    assert (found["audit"], "looped" in found["looped"]) == ("", True)


def test_001_29_packages_of_the_environment_come_last_and_are_not_imported(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for package, entry in (("trunkline_plugin_audit", ""), ("other", "[trunkline.plugins]\nother = other\n")):
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").write_text("raise SystemExit('imported')")
        name = package.replace("trunkline_plugin_", "")
        (site / package / "plugin.yml").write_text(f"name: {name}\nversion: 1.0\n")
        about = site / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(entry)
    code = (
        "from gateway.extensions.admission.admission import Admission\n"
        "from gateway.settings import Settings\n"
        "print([(f.location, f.name, f.alias) for f in Admission(Settings()).discover()])"
    )
    root = Path(__file__).parents[4]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(site)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "('environment', 'audit', 'trunkline-plugin-audit')" in done.stdout, done.stderr
    assert "('environment', 'other', '')" in done.stdout


@pytest.mark.parametrize(
    "entry", ["audit", "./plugins/audit", "@scope/audit", "mimir-plugin-audit", "trunkline-plugin-audit"]
)
def test_001_30_paths_names_and_scoped_names_are_enabled(desk: Desk, entry: str) -> None:
    name = "@scope/audit" if entry.startswith("@") else "audit"
    quoted = f'"{name}"'
    if entry.startswith("."):
        desk.plugin(desk.config.parent / entry, name=quoted)
    else:
        desk.project(entry.rpartition("/")[2], name=quoted)
    desk.set(f'plugins.enabled = ["{entry}"]')
    admission = desk.admission
    assert admission.owns(entry)
    assert "is not approved; read it, then run `trunkline plugin approve" in refusal(desk, entry)
    desk.installer.approve(entry, (), "operator")
    assert desk.admission.admit(entry).manifest.name == name


@pytest.mark.parametrize("entry", ["files", "web", "shell", "my_plugins.mine", "./mine.py", "json"])
def test_modules_stay_modules(desk: Desk, entry: str) -> None:
    desk.project(entry.strip("./").replace("_", "-"), name="json")
    assert not desk.admission.owns(entry)


def test_001_31_a_folder_of_the_original_layout_is_found_by_both_names(desk: Desk) -> None:
    desk.project("mimir-plugin-audit")
    assert desk.admission.find("mimir-plugin-audit") == desk.admission.find("audit")


@pytest.mark.parametrize("name", ["../../x", "@scope/..", "@scope/../../x", "..", "a/../../b"])
def test_a_name_that_is_a_path_reaches_no_folder(desk: Desk, name: str) -> None:
    with pytest.raises(PluginError, match="is not the name of a plugin"):
        desk.admission.locations.versions(name)
    with pytest.raises(PluginError):
        desk.admission.admit(name)


def test_a_change_after_the_approval_is_refused(desk: Desk) -> None:
    folder = desk.project()
    desk.installer.approve("audit", (), "operator")
    desk.admission.admit("audit")
    (folder / "main.py").write_text("changed")
    assert re.search(
        r"was changed after its approval \(.*\); read it, then run `trunkline plugin approve audit`",
        refusal(desk, "audit"),
    )


@pytest.mark.parametrize("change", ["mode", "new file", "version alone"])
def test_the_hash_covers_paths_modes_and_contents(desk: Desk, change: str) -> None:
    folder = desk.install(desk.plugin(desk.cwd / "source")) and desk.admission.find("audit").folder
    if change == "mode":
        (folder / "main.py").chmod(0o755)
    elif change == "new file":
        (folder / "more.py").touch()
    else:
        (folder / "plugin.yml").write_text("name: audit\nversion: 2.0\n")
    assert "was changed after its approval" in refusal(desk, "audit")


def test_a_folder_in_an_earlier_location_does_not_replace_an_approved_plugin(desk: Desk) -> None:
    desk.install(desk.plugin(desk.cwd / "source"))
    approved = desk.admission.admit("audit").folder
    project = desk.project(more="events: [chat.message]")
    said = refusal(desk, "audit")
    assert f"{project} hides the approved one in {approved}" in said
    assert "trunkline plugin approve audit" in said


def test_the_same_content_in_an_earlier_location_is_approved(desk: Desk) -> None:
    desk.install(desk.plugin(desk.cwd / "source"))
    project = desk.project()
    for folder in (desk.cwd / "source", project):
        for file in folder.iterdir():
            file.chmod(0o644)
    assert desk.admission.admit("audit").folder == project


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("evil.pth", "run at the start of an interpreter"),
        ("site/sitecustomize.py", "run at the start of an interpreter"),
        ("__pycache__/main.cpython-311.pyc", "compiled code"),
        ("link", "is a link"),
        ("pipe", "is not a regular file"),
        ("a\\b", "leads out of the folder"),
    ],
)
def test_files_that_could_act_on_their_own_are_refused(desk: Desk, name: str, told: str) -> None:
    folder = desk.project()
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    if name == "link":
        file.symlink_to("/etc/passwd")
    elif name == "pipe":
        os.mkfifo(file)
    else:
        file.touch()
    assert told in refusal(desk, "audit")


def test_a_module_beside_a_plugin_is_not_hidden_by_it(desk: Desk) -> None:
    desk.project("json", name="json")
    assert not desk.admission.owns("json")
    desk.installer.approve("json", (), "operator")
    assert desk.admission.owns("json")


@pytest.mark.parametrize("written", ["./audit", "../config/audit", "../linked/audit"])
def test_a_folder_without_a_manifest_is_a_module_unless_it_was_approved(desk: Desk, written: str) -> None:
    folder = desk.plugin(desk.config.parent / "audit")
    (desk.cwd / "linked").symlink_to(desk.config.parent)
    desk.set('plugins.enabled = ["./audit"]')
    desk.installer.approve(str(desk.config.parent / written), (), "operator")
    assert ".." not in desk.admission.lock_file.read_text()
    (folder / "plugin.yml").unlink()
    assert desk.admission.owns("./audit")
    assert "has no plugin.yml" in refusal(desk, "./audit")
    desk.admission.lock_file.unlink()
    assert not desk.admission.owns("./audit")


def test_only_declared_grants_of_the_lock_count(desk: Desk) -> None:
    desk.project(more="capabilities: {llm: {enabled: true}, send: true}")
    desk.installer.approve("audit", ("llm",), "operator")
    assert desk.admission.admit("audit").grants == {"llm"}
    desk.project(more="capabilities: {send: true}")
    desk.installer.approve("audit", (), "operator")
    assert desk.admission.admit("audit").grants == frozenset()
    assert desk.admission.lock().get("audit").grants == ()


def test_001_21_a_grant_that_the_manifest_does_not_declare_is_never_given(desk: Desk) -> None:
    desk.project()
    desk.installer.approve("audit", ("send",), "operator")
    admitted = desk.admission.admit("audit")
    assert admitted.manifest.capabilities == Capabilities()
    assert admitted.grants == frozenset()


def test_the_operator_sets_the_trust(desk: Desk) -> None:
    desk.project()
    desk.installer.approve("audit", (), "operator")
    assert desk.admission.admit("audit").trust == "sandbox"
    desk.set('plugins.audit.trust = "full"')
    assert desk.admission.admit("audit").trust == "full"


def test_the_lock_is_beside_the_operators_settings_and_nowhere_else(desk: Desk) -> None:
    desk.project()
    desk.installer.approve("audit", (), "operator")
    lock = desk.config.parent / "plugins.lock.toml"
    assert desk.admission.lock_file == lock
    for other in (desk.cwd / ".trunkline", desk.cwd, desk.home):
        shutil.copy(lock, other / "plugins.lock.toml")
    lock.unlink()
    assert "is not approved" in refusal(desk, "audit")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("version = 2", "has version 2, but this gateway reads 1"),
        ("version = ", "is not a lock file"),
        ("version = 1\n[plugins.x]\na = 1", "is not a lock file"),
        (
            'version = 1\n[plugins."../x"]\nversion = "1"\nsource = ""\ndigest = ""\n'
            'approved_by = ""\napproved_at = ""\n',
            "'../x' is not the name of a plugin",
        ),
    ],
)
def test_a_broken_lock_approves_nothing(desk: Desk, text: str, told: str) -> None:
    desk.project()
    (desk.config.parent / "plugins.lock.toml").write_text(text)
    assert told in refusal(desk, "audit")


def test_a_lock_that_others_can_write_or_that_is_a_link_is_not_read(desk: Desk) -> None:
    desk.project()
    desk.installer.approve("audit", (), "operator")
    lock = desk.admission.lock_file
    lock.chmod(0o666)
    assert "every user can write" in refusal(desk, "audit")
    lock.chmod(0o600)
    lock.rename(lock.with_name("other.toml"))
    lock.symlink_to("other.toml")
    assert "cannot be read" in refusal(desk, "audit")


def test_a_service_with_its_own_user_can_read_the_lock(desk: Desk) -> None:
    desk.project()
    desk.installer.approve("audit", (), "operator")
    assert stat.S_IMODE(desk.admission.lock_file.stat().st_mode) == 0o644


def test_a_failed_change_of_the_lock_changes_nothing(desk: Desk) -> None:
    desk.project()
    desk.installer.approve("audit", (), "operator")
    lock = desk.admission.lock_file
    before = lock.read_bytes()
    with suppress(ZeroDivisionError), editing(lock) as changed:
        changed.remove("audit")
        1 / 0  # noqa: B018 - the change fails
    assert lock.read_bytes() == before
    assert list(lock.parent.glob(".*")) == []


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20)
LOCKED = st.builds(
    Locked,
    version=TEXT,
    source=TEXT,
    digest=TEXT,
    approved_by=TEXT,
    approved_at=TEXT,
    requested=TEXT,
    grants=st.lists(st.builds(Granted, grant=TEXT, by=TEXT, at=TEXT), max_size=3).map(tuple),
    wheels=st.lists(st.builds(Wheel, file=TEXT, sha256=TEXT), max_size=3).map(tuple),
)
NAMES = st.from_regex(r"\A(@[a-z][a-z0-9-]{1,5}[a-z0-9]/)?[a-z][a-z0-9-]{1,5}[a-z0-9]\Z")


@given(st.dictionaries(NAMES, LOCKED, max_size=3))
def test_what_is_written_to_the_lock_is_read_again(plugins: dict[str, Locked]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plugins.lock.toml")
        Lock(path, plugins).write()
        assert Lock.read(path).plugins == plugins


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader_of_the_lock(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plugins.lock.toml")
        path.write_bytes(data)
        with pytest.raises(PluginError):
            Lock.read(path)


def test_the_hash_does_not_depend_on_place_time_and_order(tmp_path: Path) -> None:
    for folder, names in (("a", ("x.py", "b/y.py")), ("c", ("b/y.py", "x.py"))):
        for name in names:
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(name)
    (tmp_path / "c/.git").mkdir()
    (tmp_path / "c/.git/HEAD").touch()
    assert tree_digest(tmp_path / "a") == tree_digest(tmp_path / "c")


SETTINGS = """
capabilities:
  network: {enabled: true, allowlist: ["config:api", example.org], methods: [POST]}
  exec: {enabled: true, allowlist: ["config:hooks.command", "config:commands"]}
config:
  type: object
  properties:
    api: {type: string, default: "https://api.example.org/v3"}
    hooks: {type: array, default: []}
    commands: {type: object, default: {}}
"""
WRITTEN = """
[plugins.audit]
hooks = [{ matcher = "auto", command = " save 'x  y'" }, { matcher = "manual", command = "other" }]
commands = { ".py" = "ruff format *" }
"""


def test_allow_lists_name_settings_that_the_operator_writes(desk: Desk) -> None:
    desk.project(more=SETTINGS)
    assert describe(desk.admission.find("audit").manifest or pytest.fail("no manifest")) == [
        "connect to the host in its setting api (POST)",
        "connect to example.org (POST)",
        "run the commands in its setting hooks.command",
        "run the commands in its setting commands",
    ]
    desk.installer.approve("audit", ("network:config:api", "exec:config:hooks.command"), "operator")
    desk.set(WRITTEN)
    admitted = desk.admission.admit("audit")
    needs = admitted.manifest.capabilities
    assert needs.network.allowlist == ("api.example.org", "example.org")
    assert needs.exec.allowlist == ("save 'x  y'", "other", "ruff format *")
    assert admitted.grants == {"exec:save 'x  y'", "exec:other"}, "a default is the author's, and asks"
    desk.set(WRITTEN + 'api = "http://127.0.0.1:8080/x"')
    admitted = desk.admission.admit("audit")
    assert admitted.manifest.capabilities.network.allowlist[0] == "http://127.0.0.1:8080"
    assert "network:http://127.0.0.1:8080" in admitted.grants


def test_an_allow_list_names_only_settings_that_the_manifest_describes(desk: Desk) -> None:
    desk.project(more=SETTINGS.replace("hooks:", "others:"))
    assert 'capabilities.exec.allowlist: "config:hooks.command" names no property of config' in refusal(
        desk, "audit"
    )
