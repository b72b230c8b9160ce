"""``trunkline config``, run as a program: what it prints, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*args: str, cwd: Path, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", "from gateway.cli import app; app()", "config", *args],
        cwd=cwd,
        env={
            **clean,
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(cwd / "xdg"),
            "COLUMNS": "200",
            **environ,
        },
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/trunkline.toml").write_text("[server]\nport = 81\ntoken = '${MY_TOKEN}'\n")
    return tmp_path


def test_right_settings_are_ok(project: Path):
    done = run("check", cwd=project, MY_TOKEN="hunter2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "OK - 2 settings set, others have defaults\n"


def test_wrong_settings_exit_with_2_and_without_a_traceback(project: Path):
    done = run("check", cwd=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "config/trunkline.toml:3: server.token needs the environment variable MY_TOKEN"
    )


def test_check_speaks_json(project: Path):
    done = run("check", "--json", cwd=project, MY_TOKEN="hunter2")
    (right,) = json.loads(done.stdout)
    assert (done.returncode, done.stderr, right["status"]) == (0, "", "ok")
    refused = run("check", "--json", cwd=project)
    (wrong,) = json.loads(refused.stdout)
    assert (refused.returncode, refused.stderr, wrong["status"]) == (2, "", "fail")
    assert "server.token needs the environment variable MY_TOKEN" in wrong["detail"]
    (project / "config/trunkline.toml").write_text("[plugins]\nenabled = ['none-such']\n")
    refused = run("check", "--json", cwd=project)
    (wrong,) = json.loads(refused.stdout)
    assert (refused.returncode, wrong["status"], bool(wrong["advice"])) == (2, "fail", True)


def test_a_named_file_is_checked(project: Path):
    (project / "other.json").write_text('{"server": {"prot": 1}}')
    done = run("check", "--config", "other.json", cwd=project)
    assert (done.returncode, "did you mean server.port?" in done.stderr) == (2, True)


def test_show_tells_value_and_source_and_no_secret(project: Path):
    with (project / "config/trunkline.toml").open("a") as file:
        file.write('[plugins.own.agents.shell.env]\nDSN = "hunter2"\n')
    done = run("show", cwd=project, MY_TOKEN="hunter2")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:]}
    assert rows["server.port"] == ["81", "config/trunkline.toml:2"]
    assert rows["server.token"] == ["**********", "config/trunkline.toml:3"]
    assert "hunter2" not in done.stdout


def test_show_speaks_json(project: Path):
    done = run("show", "--json", cwd=project, MY_TOKEN="hunter2")
    assert {"key": "server.port", "value": 81, "source": "config/trunkline.toml:2"} in json.loads(done.stdout)


def test_004_T19_show_tells_the_layer_of_each_value(project: Path):
    (project / "xdg/trunkline").mkdir(parents=True)
    (project / "xdg/trunkline/trunkline.json").write_text(
        '{"server":\n{"port": 1}, "plugins":\n{"enabled": ["a"]}}'
    )
    (project / ".trunkline").mkdir()
    (project / ".trunkline/trunkline.toml").write_text("\nmodel = 'a/b'\n")
    environ = {"MY_TOKEN": "hunter2", "TRUNKLINE_PLUGINS__ENABLED": '["b"]', "COLUMNS": "400"}
    done = run("show", "--origin", cwd=project, **environ)
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows["setting"] == ["value", "layer", "from"]
    assert rows["model"] == ["a/b", "project", ".trunkline/trunkline.toml:2"]
    assert rows["server.port"] == ["81", "operator", "config/trunkline.toml:2"]
    assert rows["server.token"] == ["**********", "operator", "config/trunkline.toml:3"]
    assert rows["steer"] == ["false", "default", "default"]
    shown = json.loads(run("show", "--origin", "--json", cwd=project, **environ).stdout)
    assert {
        "key": "plugins.enabled",
        "value": ["a", "b"],
        "layer": "personal, environment",
        "source": "xdg/trunkline/trunkline.json:3, TRUNKLINE_PLUGINS__ENABLED",
    } in shown
    assert "hunter2" not in json.dumps(shown)


def test_mistakes_of_all_layers_are_reported_together(project: Path):
    (project / ".trunkline").mkdir()
    (project / ".trunkline/trunkline.toml").write_text("\n[servers]\nx = 1\n[server]\nport = 1\n")
    done = run("check", cwd=project, MY_TOKEN="x" * 40, TRUNKLINE_MAX_TOKENS="many")
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0] == "3 settings are wrong:"
    assert lines[1].startswith("  .trunkline/trunkline.toml:3: servers is not a setting")
    assert lines[2].startswith(
        "  .trunkline/trunkline.toml:5: server.port must not be set by the file of a project"
    )
    assert lines[3].startswith("  TRUNKLINE_MAX_TOKENS: max_tokens")


def test_schema_is_the_file_in_config(project: Path):
    done = run("schema", cwd=project)
    assert done.stdout == (ROOT / "config/schema.json").read_text(encoding="utf-8")


def test_a_misspelled_key_is_not_set_and_the_right_one_is_named(project: Path):
    done = run("set", "server.prot", "82", cwd=project, MY_TOKEN="hunter2")
    assert done.returncode == 2
    assert done.stderr == "there is no setting server.prot; did you mean server.port?\n"


@pytest.mark.parametrize(("piped", "status", "port"), [("82\n", 0, 82), ("\n", 2, 81)])
def test_a_value_that_is_not_an_argument_comes_from_a_pipe(project: Path, piped: str, status: int, port: int):
    done = run("set", "server.port", cwd=project, stdin=piped, MY_TOKEN="hunter2")
    assert done.returncode == status
    assert ("is empty; nothing was changed" in done.stderr) == bool(status)
    assert f"port = {port}\n" in (project / "config/trunkline.toml").read_text()


def test_a_file_with_a_byte_order_mark_is_changed(project: Path):
    file = project / "config/trunkline.toml"
    file.write_text("\ufeff[server]\nport = 81\n")
    assert run("set", "server.port", "82", cwd=project).returncode == 0
    assert file.read_text() == "[server]\nport = 82\n"


def test_a_value_in_place_of_a_table_is_refused_although_a_variable_hides_it(project: Path):
    file = project / "config/trunkline.toml"
    before = file.read_text()
    done = run("set", "server", "5", cwd=project, MY_TOKEN="hunter2", TRUNKLINE_SERVER__PORT="82")
    said = "server.port is also set in TRUNKLINE_SERVER__PORT, which overrides the file\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert file.read_text() == before
