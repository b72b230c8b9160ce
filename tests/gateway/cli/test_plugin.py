"""``trunkline plugin``, run as a program."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import stat
from pathlib import Path

import pytest

from gateway.cli.plugins.tracing import line_of
from gateway.plugin_services.actions import Action
from tests.gateway.cli.processes import Terminal, trunkline

pytestmark = pytest.mark.slow

MANIFEST = """\
api: 1
name: weather
version: {version}
description: Tells the weather
events: [chat.message]
tools: [forecast]
capabilities:
  network: {{enabled: true, allowlist: [api.example.org{hosts}]}}
  send: true
secrets: [API_TOKEN]
config: {{type: object, properties: {{days: {{type: integer, default: 3}}}}, additionalProperties: false}}
"""
SETTINGS = """\
# Mine
server.port = 1  # no gateway listens there

[plugins]
enabled = [
  "todo",  # A list
]
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/trunkline.toml").write_text(SETTINGS)
    return tmp_path


def plugin(home: Path, folder: str = "weather", version: str = "1.0", hosts: str = "") -> Path:
    place = home / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "plugin.yml").write_text(MANIFEST.format(version=version, hosts=hosts))
    (place / "main.py").write_text("raise SystemExit('nothing may run this')\n")
    return place


def run(home: Path, *args: str, stdin: str = "", status: int = 0) -> str:
    """Run ``trunkline plugin``; returns what it prints."""
    done = trunkline("plugin", *args, home=home, stdin=stdin)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def listed(home: Path) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(run(home, "list", "--json"))}


def test_info_shows_when_jobs_run_next(home: Path) -> None:
    folder = plugin(home)
    with (folder / "plugin.yml").open("a") as manifest:
        manifest.write(
            "schedule: [{name: digest, cron: '0 8 1 1 *'}, {name: tidy, cron: '5 4 * * *', timezone: UTC}]\n"
        )
    text = (folder / "plugin.yml").read_text()
    text = text.replace("capabilities:\n", "capabilities:\n  schedule: true\n")
    (folder / "plugin.yml").write_text(text)
    settings = home / "config/trunkline.toml"
    settings.write_text(f'timezone = "Asia/Tokyo"\n{SETTINGS}')
    run(home, "approve", str(folder), "--yes")
    [digest, tidy] = json.loads(run(home, "info", str(folder), "--json"))["schedule"]
    assert re.fullmatch(r"digest: 0 8 1 1 \* \(Asia/Tokyo\), next \d{4}-01-01 08:00 JST", digest)
    assert re.fullmatch(r"tidy: 5 4 \* \* \* \(UTC\), next \d{4}-\d\d-\d\d 04:05 UTC", tidy)
    (folder / "plugin.yml").write_text(text.replace(", additionalProperties: false", ""))
    settings.write_text(f'{SETTINGS}[plugins.weather]\ntimezone = "Mars"\n')
    [digest, _] = json.loads(run(home, "info", str(folder), "--json"))["schedule"]
    assert digest.startswith("digest: 0 8 1 1 *; plugins.weather.timezone: 'Mars' is not a time zone")


def test_001_32_a_plugin_is_installed_enabled_shown_disabled_and_uninstalled(home: Path) -> None:
    plugin(home)
    said = run(home, "install", "./weather", "--yes", "--allow", "network")
    assert "connect to api.example.org (GET, HEAD)" in said
    assert "see the messages of chats, and change or answer what users write" in said
    assert "is notified of chat.message" in said
    assert "granted network:api.example.org: connect to api.example.org" in said
    assert "is enabled; it takes effect at the next start" in run(home, "enable", "weather")
    text = (home / "config/trunkline.toml").read_text()
    assert '\n[plugins]\nenabled = [\n  "todo",  # A list\n' in text
    rows = listed(home)
    assert (rows["weather"]["enabled"], rows["weather"]["state"]) == (True, "ok")
    assert rows["weather"]["rights"] == "confined"
    assert rows["todo"]["rights"] == "all rights of the gateway"
    about = json.loads(run(home, "info", "weather", "--json"))
    assert about["capabilities"][0].startswith("network:api.example.org: connect to")
    assert re.search(r"granted by cli:\w+ at 20", about["capabilities"][0])
    assert about["capabilities"][-1].endswith("not granted yet")
    assert about["secrets"] == ["API_TOKEN: not set"]
    assert "1.0" in run(home, "info", "weather")
    assert "run `trunkline plugin disable weather` first" in run(home, "uninstall", "weather", status=1)
    run(home, "disable", "weather")
    assert listed(home)["weather"]["enabled"] is False
    assert "weather is removed" in run(home, "uninstall", "weather", "--purge")
    assert "weather" not in listed(home)
    decided = [(row["action"], row["value"]) for row in json.loads(run(home, "trace", "weather", "--json"))]
    place, by = home / "weather", f"by cli:{pwd.getpwuid(os.getuid()).pw_name}"
    assert decided == [
        ("plugin.install", f"{place} {by}"),
        ("plugin.grant", f"network:api.example.org {by}"),
        ("plugin.uninstall", f"{place} {by}"),
    ]
    for name in ("nope", ""):
        assert f"plugin {name!r} is not installed" in run(home, "trace", name, status=1)


def test_an_enabled_module_that_is_not_there_is_listed_as_such(home: Path) -> None:
    (home / "mine.py").write_text("raise SystemExit('nothing may run this')\n")
    entries = ["todo", "../mine.py", "ghost", "./gone.py", "ghost.part"]
    (home / "config/trunkline.toml").write_text(f"[plugins]\nenabled = {json.dumps(entries)}\n")
    states = {name: row["state"] for name, row in listed(home).items()}
    missing = "it is not installed: no file, folder or module has this name"
    assert states["todo"] == states["../mine.py"] == "ok"
    assert states["ghost"] == states["./gone.py"] == states["ghost.part"] == missing


def test_a_shipped_plugin_has_what_it_declares_and_the_doctor_finds_no_problem(home: Path) -> None:
    run(home, "enable", "budget-alert")
    about = json.loads(run(home, "info", "budget-alert", "--json"))
    assert (about["source"], about["approved"]) == ("shipped with the gateway", "not needed")
    assert [each.rpartition(" - ")[2] for each in about["capabilities"]] == ["granted when it is enabled"]
    found = {each["name"]: each["detail"] for each in json.loads(run(home, "doctor", "--json"))}
    assert found["plugin budget-alert"] == "loads"


def test_an_update_asks_for_new_capabilities_only(home: Path) -> None:
    plugin(home)
    run(home, "install", "./weather", "--yes", "--allow", "network", "--allow", "messages")
    assert "is up to date" in run(home, "update", "weather")
    plugin(home, version="1.1", hosts=", other.example.org")
    said = run(home, "update", "weather", "--yes")
    assert "weather: 1.0 → 1.1" in said
    assert "connect to other.example.org" in said
    assert "connect to api.example.org" not in said
    grants = json.loads(run(home, "info", "weather", "--json"))["capabilities"]
    assert [each.split(" - ")[0].split(": ")[0] for each in grants if "granted by" in each] == [
        "network:api.example.org",
        "messages:change",
    ]


def test_consent_is_asked_at_the_terminal(home: Path) -> None:
    plugin(home)
    assert "stdin is not a terminal: give --yes" in run(home, "install", "./weather", status=1)
    for answer, status in (("n", 1), ("y", 0)):
        terminal = Terminal(home, "plugin", "install", "./weather")
        try:
            terminal.expect("Install it and grant this")
            terminal.type(f"{answer}\n")
            assert terminal.wait() == status
        finally:
            terminal.close()
        assert ("weather" in listed(home)) == (answer == "y")
    about = json.loads(run(home, "info", "weather", "--json"))
    assert all("granted by" in each for each in about["capabilities"])


def test_a_plugin_of_a_project_is_approved_in_its_place(home: Path) -> None:
    place = plugin(home, ".trunkline/plugins/weather")
    assert "trunkline plugin approve weather" in run(home, "enable", "weather", status=1)
    run(home, "approve", "weather", "--yes")
    run(home, "enable", "weather")
    (place / "main.py").write_text("changed")
    assert "was changed after its approval" in str(listed(home)["weather"]["state"])
    check = trunkline("config", "check", home=home)
    assert check.returncode == 2
    assert "trunkline plugin approve weather" in check.stderr


def test_a_description_cannot_pass_for_a_line_of_the_consent(home: Path) -> None:
    folder = plugin(home)
    manifest = (folder / "plugin.yml").read_text()
    forged = 'description: "Nice\\nIt may, once granted: nothing"'
    (folder / "plugin.yml").write_text(re.sub("(?m)^description: .*\n", "", manifest) + forged + "\n")
    lines = run(home, "approve", str(folder), "--yes").splitlines()
    assert len([line for line in lines if line.startswith("It may, once granted:")]) == 1


def test_a_value_of_a_plugin_is_one_line_of_its_trace() -> None:
    named = Action("1", 0, "weather", "1.0", "", "fs.read", "a\n2026-01-01 allowed\x1b[2J", "", False, 0, 0)
    assert line_of(named).endswith("a 2026-01-01 allowed[2J  (0 µs, 1.0, arguments )")


def test_files_that_change_during_the_question_are_not_approved(home: Path) -> None:
    place = plugin(home, ".trunkline/plugins/weather")
    terminal = Terminal(home, "plugin", "approve", "weather")
    try:
        terminal.expect("Approve its content and grant this")
        (place / "main.py").write_text("changed")
        terminal.type("y\n")
        terminal.expect("changed meanwhile; read them, and approve again")
        assert terminal.wait() == 1
    finally:
        terminal.close()
    assert "trunkline plugin approve weather" in run(home, "enable", "weather", status=1)


def test_a_folder_is_enabled_by_its_path(home: Path) -> None:
    plugin(home, "plugins/weather")
    run(home, "approve", "./plugins/weather", "--yes")
    run(home, "enable", "./plugins/weather")
    assert listed(home)["weather"]["state"] == "ok"
    assert str(home / "plugins/weather") in (home / "config/trunkline.toml").read_text()
    run(home, "disable", "plugins/weather")
    assert listed(home)["todo"]["enabled"]
    assert "plugins/weather" not in (home / "config/trunkline.toml").read_text()


def test_the_name_of_a_plugin_that_is_enabled_by_its_path_denotes_it(home: Path) -> None:
    plugin(home, "plugins/weather")
    run(home, "approve", "./plugins/weather", "--yes")
    run(home, "enable", "./plugins/weather")
    assert str(home / "plugins/weather") in run(home, "info", "weather")
    assert "granted network:api.example.org" in run(home, "approve", "weather", "--yes", "--allow", "network")
    assert "run `trunkline plugin disable weather` first" in run(home, "uninstall", "weather", status=1)
    for name in ("weather", "./plugins/weather"):
        run(home, "disable", "weather")
        assert listed(home)["weather"]["enabled"] is False
        run(home, "enable", name)
        assert listed(home)["weather"]["enabled"] is True
    settings = (home / "config/trunkline.toml").read_text()
    assert settings.count("weather") == 1
    assert "disabled = []" in settings


def test_the_page_of_a_new_plugin_says_how_to_use_it(home: Path) -> None:
    run(home, "new", "audit-log")
    page = (home / "audit-log/README.md").read_text()
    steps = [line.split()[2:] for line in page.splitlines() if line.startswith("trunkline ")]
    assert [step[0] for step in steps] == ["approve", "enable"]
    for step in steps:
        run(home, *step, *(["--yes"] if step[0] == "approve" else []))
    assert listed(home)["audit-log"]["state"] == "ok"


def test_a_folder_that_is_named_without_a_slash_is_not_enabled(home: Path) -> None:
    (home / "weather").mkdir()
    (home / "weather/main.py").write_text("")
    told = run(home, "enable", "weather", status=1)
    assert "plugin 'weather' is not found; write ./weather" in told
    assert (home / "config/trunkline.toml").read_text() == SETTINGS


def test_mcp_servers_of_a_plugin_are_shown_and_must_be_declared(home: Path) -> None:
    place = plugin(home)
    (place / "mcp.toml").write_text('[notes]\ncommand = ["notes", "./db"]\n')
    said = run(home, "install", "./weather", "--yes", status=1)
    assert "the server 'notes' needs 'notes ./db' in capabilities.exec.allowlist of plugin.yml" in said
    manifest = (place / "plugin.yml").read_text()
    allowed = 'capabilities:\n  exec: {enabled: true, allowlist: ["notes ./db"]}\n'
    (place / "plugin.yml").write_text(manifest.replace("capabilities:\n", allowed))
    said = run(home, "install", "./weather", "--yes", "--allow", "exec")
    assert "has the MCP server notes, which runs notes ./db" in said
    assert "granted exec:notes ./db: run the command notes ./db" in said


def test_settings_of_a_plugin_are_checked_with_its_schema(home: Path) -> None:
    plugin(home)
    run(home, "install", "./weather", "--yes")
    run(home, "enable", "weather")
    file = home / "config/trunkline.toml"
    file.write_text(file.read_text() + '\n[plugins.weather]\ndays = "many"\n')
    check = trunkline("config", "check", home=home)
    assert check.returncode == 2
    assert re.search(r"config/trunkline\.toml:\d+: plugins\.weather\.days is wrong", check.stderr)


def test_disabling_a_built_in_plugin_lists_it(home: Path) -> None:
    run(home, "disable", "spending")
    assert 'disabled = ["spending"]' in (home / "config/trunkline.toml").read_text()
    run(home, "enable", "todo")
    assert "nothing was changed" in run(home, "disable", "spending")


@pytest.mark.parametrize("name", ["../../x", "@scope/..", "no-such", "./none", "no_such_module"])
def test_an_unknown_plugin_is_refused_in_one_line(home: Path, name: str) -> None:
    for command in ("enable", "info", "uninstall", "update"):
        said = run(home, command, name, status=1)
        assert len(said.strip().splitlines()) == 1, said
    assert "todo" in (home / "config/trunkline.toml").read_text()


def test_secrets_are_stored_for_their_plugin_alone(home: Path) -> None:
    plugin(home)
    run(home, "install", "./weather", "--yes")
    assert "has no secret 'OTHER'; its manifest names API_TOKEN" in run(
        home, "secret", "set", "weather", "OTHER", stdin="x", status=1
    )
    said = run(home, "secret", "set", "weather", "API_TOKEN", stdin="hunter2-hunter2\n")
    assert "hunter2" not in said
    file = home / "data/plugin_secrets/weather.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text()) == {"API_TOKEN": "hunter2-hunter2"}
    assert json.loads(run(home, "info", "weather", "--json"))["secrets"] == ["API_TOKEN: set"]
    run(home, "secret", "unset", "weather", "API_TOKEN")
    assert "no stored secret" in run(home, "secret", "unset", "weather", "API_TOKEN", status=1)


def test_001_43_the_rules_of_a_team_override_the_user(home: Path) -> None:
    plugin(home)
    file = home / "config/trunkline.toml"
    before = file.read_text()
    file.write_text(before + '[teams.plugins]\nblocklist = ["weather"]\nallowlist = ["weather", "todo"]\n')
    assert "is in teams.plugins.blocklist" in run(home, "install", "./weather", "--yes", status=1)
    file.write_text(before + '[teams.plugins]\nallowlist = ["todo"]\n')
    assert "is not in teams.plugins.allowlist" in run(home, "install", "./weather", "--yes", status=1)
    file.write_text(before + '[teams.plugins]\nrequired = ["todo"]\n')
    assert "must not be disabled" in run(home, "disable", "todo", status=1)
    file.write_text(before + '[teams.plugins]\nrequired = ["todo", "weather"]\n')
    check = trunkline("config", "check", home=home)
    assert check.returncode == 2
    assert "'weather' is missing; add it to plugins.enabled" in check.stderr
    start = trunkline("run", "--port", "0", home=home)
    assert (start.returncode, "'weather' is missing" in start.stderr) == (2, True), start.stderr


def test_a_new_plugin_is_valid_and_clean_and_packed_reproducibly(home: Path) -> None:
    run(home, "new", "@example/audit-log")
    assert "exists already" in run(home, "new", "audit-log", status=1)
    assert "0 findings" in run(home, "scan", "./audit-log")
    assert "is not a name" in run(home, "new", "../x", status=1)
    wheels = []
    for output in ("one", "two"):
        wheel = json.loads(run(home, "pack", "audit-log", "--output", output, "--json"))["wheel"]
        wheels.append((home / wheel).read_bytes())
        for file in (home / "audit-log").iterdir():
            file.touch()
    assert wheels[0] == wheels[1]
    assert Path(wheel).name == "trunkline_plugin_example_audit_log-0.1.0-py3-none-any.whl"
    run(home, "install", wheel if "/" in wheel else f"./{wheel}", "--yes")
    assert listed(home)["@example/audit-log"]["state"] == "ok"


def test_a_scan_reports_what_the_manifest_does_not_declare(home: Path) -> None:
    place = plugin(home)
    (place / "main.py").write_text(
        "import subprocess, socket\nimport ctypes\nfrom http import client\nimport os\n"
        "os.system('ls')\neval('1')\nname = 'a\u202eb'\nkey = 'sk-abcdefghijklmnopqrstuvwx'\n"
    )
    (place / "requirements.txt").write_text("requests==2.0\n")
    report = json.loads(run(home, "scan", "weather", "--json", status=1))
    found = [(each["file"], each["line"], each["kind"]) for each in report["findings"]]
    assert found == [
        ("main.py", 1, "refused"),
        ("main.py", 1, "undeclared"),
        ("main.py", 2, "code"),
        ("main.py", 3, "refused"),
        ("main.py", 5, "undeclared"),
        ("main.py", 6, "code"),
        ("main.py", 7, "hidden text"),
        ("main.py", 8, "secret"),
        ("requirements.txt", 0, "dependency"),
    ]
    assert "not found" in report["limits"]
    assert "sk-abc" not in json.dumps(report)


def test_the_settings_of_a_plugin_are_shown_and_set(home: Path) -> None:
    plugin(home)
    run(home, "install", "./weather", "--yes")
    run(home, "enable", "weather")
    assert re.search(r"days +3 +default", run(home, "config", "weather"))
    said = run(home, "config", "weather", "days=5")
    assert "weather is changed; it takes effect at the next start" in said
    assert re.search(r"days +5 +settings", said)
    assert "[plugins.weather]\ndays = 5\n" in (home / "config/trunkline.toml").read_text()
    assert json.loads(run(home, "config", "weather", "--json"))["values"] == {"days": 5}
    refused = run(home, "config", "weather", "days=many", status=1)
    assert refused.startswith("plugins.weather.days is wrong")
    assert "must be KEY=VALUE" in run(home, "config", "weather", "days", status=1)
    assert json.loads(run(home, "config", "weather", "--unset", "days", "--json"))["values"] == {"days": 3}
    schema = json.loads(trunkline("config", "schema", home=home).stdout)
    assert "days" in schema["$defs"]["PluginsSettings"]["properties"]["weather"]["properties"]


def test_001_46_plugins_are_searched_in_an_index_and_installed_from_it(home: Path) -> None:
    plugin(home)
    wheel = Path(run(home, "pack", "./weather").strip())
    data = (home / wheel).read_bytes()
    release = {
        "version": "1.0",
        "url": str(wheel),
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
        "capabilities": ["network:api.example.org", "messages:change", "send"],
    }
    listed: dict[str, object] = {
        "name": "weather",
        "description": "Tells the weather",
        "official": True,
        "ratings": {"average": 4.5, "count": 2},
        "versions": [release],
        "advisories": [{"id": "A-1", "versions": "<2", "summary": "It rains"}],
    }
    (home / "index.json").write_text(json.dumps({"format": 1, "serial": 1, "plugins": [listed]}))
    assert "there is no index; add one to plugins.indexes" in run(home, "search", "weather", status=1)
    with (home / "config/trunkline.toml").open("a") as settings:
        settings.write('indexes = [{ url = "index.json" }]\n')
    (home / "index.json").rename(home / "elsewhere.json")
    assert "index.json: index.json cannot be read" in run(home, "search", "weather", status=1)
    checked = json.loads(run(home, "doctor", "--json", status=1))
    (missing,) = [each for each in checked if each["name"] == "index index.json"]
    assert (missing["status"], "cannot be read" in missing["detail"]) == ("fail", True)
    (home / "elsewhere.json").rename(home / "index.json")
    (row,) = json.loads(run(home, "search", "tells", "--json"))
    assert (row["name"], row["version"], row["official"], row["installed"]) == ("weather", "1.0", False, "")
    assert row["capabilities"] == release["capabilities"]
    assert re.search(r"weather +1\.0 .*4\.5 \(2\)", run(home, "search"))
    assert "No plugin is found." in run(home, "search", "other")
    said = run(home, "install", "weather", "--yes")
    assert "not official" in said
    assert "marked as official, but without a completed review" in said
    assert "advisory A-1: It rains" in said
    assert json.loads(run(home, "search", "weather", "--json"))[0]["installed"] == "1.0"


def test_a_name_that_no_plugin_has_is_not_disabled(home: Path) -> None:
    (home / "config/trunkline.toml").write_text('plugins.enabled = ["todo", "no_such_module"]\n')
    before = (home / "config/trunkline.toml").read_text()
    assert "plugin 'tody' is not installed" in run(home, "disable", "tody", status=1)
    assert (home / "config/trunkline.toml").read_text() == before
    run(home, "disable", "no_such_module")
    run(home, "disable", "commands")


def test_info_of_a_plugin_without_a_manifest_says_what_it_is(home: Path) -> None:
    other = (
        "plugin 'other' is not installed; run `trunkline plugin install`, or see `trunkline plugin list`\n"
    )
    assert run(home, "info", "other", status=1) == other
    assert run(home, "info", "web", status=1) == "plugin 'web' is a module, without the manifest plugin.yml\n"
    (home / "config/trunkline.toml").write_text('plugins.enabled = ["other-one"]\n')
    assert run(home, "info", "other-one", status=1).endswith("or remove it from plugins.enabled\n")


def test_info_says_that_a_shipped_plugin_gets_its_grants_when_it_is_enabled(home: Path) -> None:
    about = json.loads(run(home, "info", "formatter", "--json"))
    assert about["capabilities"] == [
        "exec:config:commands: run the commands in its setting commands - granted when it is enabled"
    ]


def test_a_plugin_of_claude_code_is_installed_and_what_it_lacks_is_said(home: Path) -> None:
    files = {
        ".claude-plugin/plugin.json": '{"name": "kit-one", "description": "Reviews"}',
        "commands/review.md": "Review $1.",
        "hooks/hooks.json": '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say.sh"}]}]}}',
        ".mcp.json": '{"mcpServers": {"db": {"command": "${CLAUDE_PLUGIN_ROOT}/db"}}}',
    }
    for path, text in files.items():
        (home / "kit" / path).parent.mkdir(parents=True, exist_ok=True)
        (home / "kit" / path).write_text(text)
    said = run(home, "install", "./kit", "--yes")
    assert "left out: the shell hook Stop: say.sh" in said
    assert "adds commands that send its text to the model: /review" in said
    folder = json.loads(run(home, "info", "kit-one", "--json"))["folder"]
    assert f'    command = ["{folder}/db"]' in said
    run(home, "enable", "kit-one")
    assert listed(home)["kit-one"]["state"] == "ok"


def test_settings_that_a_plugin_lacks_are_an_error_only_if_it_is_enabled(home: Path) -> None:
    rows = listed(home)
    others = {name: row["state"] for name, row in rows.items() if not row["enabled"]}
    assert {*others.values()} == {"ok", "needs settings"}
    lacking = next(name for name, state in others.items() if state == "needs settings")
    settings = home / "config/trunkline.toml"
    settings.write_text(SETTINGS.replace('"todo",', f'"todo", "{lacking}",'))
    assert f"plugins.{lacking}" in str(listed(home)[lacking]["state"])
    run(home, "disable", lacking)
    assert listed(home)[lacking]["state"] == "needs settings"
