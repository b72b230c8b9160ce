"""What a fresh clone brings: pinned requirements, configuration files that are true, and a service unit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway.app import STORE_FAILED
from gateway.cli.options import FAILED, INTERRUPTED, REFUSED, UNAVAILABLE
from gateway.settings import Settings, load_settings
from gateway.settings.validation import ANY_NAME, known_keys
from gateway.testing.plugins import running
from gateway.version import VERSION

ROOT = Path(__file__).parents[1]
EXTRAS = {
    "requirements.txt": (),
    "requirements-dev.txt": (
        "postgres",
        "bedrock",
        "discovery",
        "documents",
        "files",
        "interactions",
        "keyring",
        "vertex",
    ),
    "requirements-bedrock.txt": ("bedrock",),
    "requirements-cluster.txt": ("cluster",),
    "requirements-discovery.txt": ("discovery",),
    "requirements-documents.txt": ("documents",),
    "requirements-files.txt": ("files",),
    "requirements-interactions.txt": ("interactions",),
    "requirements-keyring.txt": ("keyring",),
    "requirements-mcp.txt": ("mcp",),
    "requirements-postgres.txt": ("postgres",),
    "requirements-testing.txt": (),
    "requirements-vertex.txt": ("vertex",),
    "requirements-web.txt": ("web",),
}
"""Which extras each requirements file holds."""
GROUPS = {"requirements-dev.txt": "dev", "requirements-testing.txt": "testing"}
"""Which dependency group a requirements file holds."""
REQUIREMENTS = list(EXTRAS)
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins(name: str) -> dict[str, str]:
    """The version of each distribution that a requirements file pins."""
    found = re.findall(r"^([\w.-]+)(?:\[[\w.,-]+\])?==([^\s;\\]+)", read(name), re.MULTILINE)
    return {canonicalize_name(distribution): version for distribution, version in found}


def wanted(name: str) -> list[Requirement]:
    """What the project asks for, of that which a requirements file is to hold."""
    extras = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"]]
    lines += [line for extra in EXTRAS[name] for line in extras[extra]]
    lines += PROJECT["dependency-groups"][GROUPS[name]] if name in GROUPS else []
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_requirement_is_pinned_with_hashes_and_names_no_address(name: str):
    blocks = re.split(r"\n(?=\w)", read(name).partition("\n#    make lock\n")[2])
    assert len(blocks) > 20
    assert [
        block
        for block in blocks
        if not re.match(r"[\w.-]+(\[[\w.,-]+\])?==\S+.*\\\n( +--hash=sha256:[0-9a-f]{64}\b)", block)
    ] == []
    assert re.findall(r"https?:|file:|--(?:extra-)?index-url|--find-links|/home|/tmp", read(name)) == []


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_requirements_fit_what_the_project_asks_for(name: str):
    pinned = pins(name)
    for requirement in wanted(name):
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} against {version}; run `make lock`"


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_a_pin_names_the_extras_that_are_asked_for(name: str):
    """Without them, pip takes a newer release for ``name[extra]`` and then refuses it, as it has no hash."""
    missing = [
        str(requirement)
        for requirement in wanted(name)
        if requirement.extras
        and f"\n{requirement.name}[{','.join(sorted(requirement.extras))}]==" not in read(name)
    ]
    assert missing == []


def test_tests_run_against_the_versions_that_are_installed_for_use():
    used = pins("requirements.txt")
    tested = pins("requirements-dev.txt")
    assert used == {name: tested.get(name) for name in used}


def test_every_extra_has_a_file_that_make_lock_writes():
    extras = set(PROJECT["project"]["optional-dependencies"]) - set(GROUPS.values())
    assert {(extra,) for extra in extras} <= set(EXTRAS.values())
    lock = re.findall(r"-o (requirements\S*\.txt)$", read("Makefile"), re.MULTILINE)
    assert sorted(lock) == sorted(EXTRAS) == sorted(path.name for path in ROOT.glob("requirements*.txt"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The tree's Makefile and requirements, with a Python that only writes down how it is called."""
    for path in (ROOT / "Makefile", *ROOT.glob("requirements*.txt")):
        (tmp_path / path.name).symlink_to(path)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n')
    python.chmod(0o755)
    return tmp_path


def installed(tree: Path, *goals: str) -> list[str]:
    """The files of requirements that `make` installs."""
    calls = tree / "calls"
    calls.write_text("")
    subprocess.run(["make", *goals], cwd=tree, check=True, capture_output=True)
    return re.findall(r"--requirement (\S+)", calls.read_text())


def test_postgresql_can_be_added_as_the_readme_says(tree: Path):
    (command,) = re.findall(r"`make (install REQUIREMENTS=\S+)`", read("README.md"))
    assert installed(tree, "run") == ["requirements.txt"]
    assert installed(tree, *command.split()) == ["requirements-postgres.txt"]
    assert installed(tree, *command.split()) == []
    assert installed(tree, "run") == []


@pytest.mark.parametrize("name", sorted(set(EXTRAS) - {"requirements-dev.txt"}))
def test_each_file_of_requirements_is_installed_once_beside_the_others(tree: Path, name: str):
    assert installed(tree, "install", f"REQUIREMENTS={name}") == [name]
    assert installed(tree, "test") == ([] if name == "requirements.txt" else ["requirements.txt"]) + [
        "requirements-dev.txt"
    ]
    assert installed(tree, "install", f"REQUIREMENTS={name}") == []


def build(folder: Path, into: Path) -> Path:
    """The wheel of the distribution in a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(into)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return max(into.glob("*.whl"), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheels of trunkline and of trunkline-testing."""
    pytest.importorskip("hatchling")
    into = tmp_path_factory.mktemp("wheels")
    return build(ROOT, into), build(ROOT / "packaging/testing", into)


def test_the_two_wheels_hold_all_modules_and_none_twice(wheels: tuple[Path, Path]):
    held = [{name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name} for wheel in wheels]
    packages = (ROOT / package for package in ("gateway", "channels", "plugins"))
    modules = {str(path.relative_to(ROOT)) for package in packages for path in package.rglob("*.py")}
    assert modules <= held[0] | held[1]
    assert held[0] & held[1] == set()
    assert {name for name in held[0] if re.search(r"/fake/|trial|candidates|testing/", name)} == set()
    assert "channels/slack/fake/schema.json" in held[1]
    assert "gateway/testing/fake_platform/page/dom.js" in held[1]


def _import_alone(site: Path) -> None:
    """Import the API where nothing of the gateway or of another distribution is."""
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from trunkline_plugin import plugin"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


EXAMPLE = re.compile(r"\n\*\*(.+?)\*\*(.+?)```python\n(.+?)```", re.DOTALL)


async def test_001_45_the_api_of_plugins_is_a_wheel_whose_examples_run(tmp_path: Path):
    pytest.importorskip("hatchling")
    wheel = ZipFile(build(ROOT / "packaging/plugin", tmp_path))
    own = {name.partition("/")[2] for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / "gateway/extensions/child/trunkline_plugin"
    assert own == {path.name for path in source.iterdir() if path.suffix in (".py", ".typed")}
    metadata = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
    assert "Requires-Dist" not in wheel.read(metadata).decode()
    wheel.extractall(tmp_path / "site")
    _import_alone(tmp_path / "site")
    examples = EXAMPLE.findall(read("packaging/plugin/README.md"))
    assert 3 <= len(examples) <= 5
    for number, (_, text, code) in enumerate(examples):
        folder, place = tmp_path / f"example{number}", tmp_path / f"place{number}"
        folder.mkdir()
        place.mkdir()
        lines = re.findall(r"`([a-z_]+: .+?)`", text)
        manifest = ("api: 1", f"name: example{number}", 'version: "1"', *lines)
        (folder / "plugin.yml").write_text("\n".join(manifest))
        (folder / "main.py").write_text(code)
        async with running(folder, place) as chat:
            if "Command(" in code:
                assert (await chat.say("/count")).text == "You called 1 times."
                assert (await chat.say("/count")).text == "You called 2 times."


def test_the_wheels_have_one_version_and_the_extra_names_the_second():
    second: dict[str, Any] = tomllib.loads(read("packaging/testing/pyproject.toml"))["project"]
    assert f"trunkline=={VERSION}" in second["dependencies"]
    assert PROJECT["project"]["optional-dependencies"]["testing"] == [f"trunkline-testing=={VERSION}"]
    assert set(PROJECT["dependency-groups"]["testing"]) == {
        line for line in second["dependencies"] if not line.startswith("trunkline")
    }


@pytest.mark.parametrize("interrupted", ["__init__.py", "cli.py"])
def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_traceback(
    tmp_path: Path, interrupted: str
) -> None:
    package, script = tmp_path / "gateway", tmp_path / "trunkline"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(ROOT / "gateway/__main__.py", package)
    (package / interrupted).write_text("raise KeyboardInterrupt\n")
    [text] = re.findall(r"printf '#!%s(.*?)' ", read("Makefile"))
    script.write_text(text.replace("\\n", "\n"))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


def test_fakes_and_trials_come_with_the_second_wheel(wheels: tuple[Path, Path], tmp_path: Path):
    home, installed = tmp_path / "home", tmp_path / "installed"
    home.mkdir()
    site = {"PYTHONPATH": f"{installed}{os.pathsep}{sysconfig.get_path('purelib')}"}

    def trunkline(*arguments: str) -> subprocess.CompletedProcess[str]:
        # -S leaves out the file that puts the checkout on the path.
        command = [sys.executable, "-S", "-m", "gateway", *arguments]
        environ = {**os.environ, **site, "HOME": str(home), "NO_COLOR": "1"}
        return subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, check=False)

    ZipFile(wheels[0]).extractall(installed)
    assert trunkline("version").returncode == 0
    for command in (("dev", "fake", "slack"), ("providers", "test", "openai", "--fake")):
        done = trunkline(*command)
        assert (done.returncode, "pip install 'trunkline[testing]'" in done.stderr) == (REFUSED, True), done
    ZipFile(wheels[1]).extractall(installed)
    assert "--pace" in trunkline("dev", "fake", "slack", "--help").stdout
    tried = trunkline("providers", "test", "openai", "--fake")
    assert tried.returncode == 0, tried


AUDITS = {
    "nothing found": ("echo No known vulnerabilities found", 0, "No known"),
    "an incomplete mirror": ("echo x could not be audited", 0, "pip-audit did not check 1 of the packages"),
    "something found": ("echo Found 2 known vulnerabilities in 1 package; exit 1", 1, "Found 2"),
    "cut off": ("echo ConnectionError; exit 1", 0, "pip-audit did not run: it ended with status 1"),
}


@pytest.mark.parametrize("case", AUDITS)
def test_the_audit_fails_for_what_it_finds_alone(tmp_path: Path, case: str):
    script, status, said = AUDITS[case]
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    (tmp_path / "database").touch()
    done = audit(TRUNKLINE_PIP_AUDIT=str(program), TRUNKLINE_AUDIT_DATABASE=(tmp_path / "database").as_uri())
    assert (done.returncode, said in done.stdout) == (status, True), done


def test_the_audit_says_so_where_its_database_cannot_be_reached():
    done = audit(TRUNKLINE_AUDIT_DATABASE="http://127.0.0.1:1/")
    assert done.returncode == 0
    assert "pip-audit did not run: the database of vulnerabilities cannot be reached" in done.stdout


def audit(**environ: str) -> subprocess.CompletedProcess[str]:
    """Run the audit of CI."""
    return subprocess.run(
        [ROOT / ".ci/audit"], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )


def test_the_example_holds_every_setting_with_a_comment():
    lines = read("config/example.toml").splitlines()
    keys, section = set[tuple[str, ...]](), ()
    for line in lines:
        if table := re.match(r'(?:# )?\[([\w."/-]+)\]', line):
            section = tuple(re.findall(r'"[^"]*"|[^.]+', table[1]))
        elif key := re.match(r'(?:# )?("\*"|\w+) = .*\S {2,}# \S', line):
            keys.add((*section, key[1]))
    for known in known_keys(Settings):
        assert any(_fits(known, key) for key in keys), f"{'.'.join(known)} is not in config/example.toml"


def _fits(known: tuple[str, ...], key: tuple[str, ...]) -> bool:
    return len(known) >= len(key) and all(
        part in (ANY_NAME, other) for part, other in zip(known, key, strict=False)
    )


def test_the_example_as_it_stands_is_the_defaults():
    settings = load_settings(ROOT / "config/example.toml", environ={}, cwd=ROOT)
    assert settings.model_dump(exclude={"providers"}) == Settings().model_dump(exclude={"providers"})


def test_the_example_loads_with_every_line_in_use(tmp_path: Path):
    text = re.sub(
        r'^# (?=("\*"|\w+) = |\[[\w."/-]+\](?:$| ))', "", read("config/example.toml"), flags=re.MULTILINE
    )
    text = re.sub(r"^(organization|policy) = .*$", "", text, flags=re.MULTILINE)  # they would be fetched
    (tmp_path / "all.toml").write_text(text, encoding="utf-8")
    secrets = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "0123456789abcdef" * 2)
    settings = load_settings(tmp_path / "all.toml", environ=secrets, cwd=tmp_path)
    assert settings.model
    assert settings.permissions


def test_the_smallest_configuration_is_the_defaults():
    settings = load_settings(ROOT / "config/trunkline.toml", environ={}, cwd=ROOT)
    assert settings.model_dump() == Settings().model_dump()


def test_the_service_lets_running_turns_end():
    unit = dict(re.findall(r"^(\w+)=(.*)$", read("config/trunkline.service"), re.MULTILINE))
    assert int(unit["TimeoutStopSec"]) > Settings().limits.drain_seconds + 5


def test_coding_agents_outlive_a_service_with_its_drop_in():
    """What systemd makes of the unit and the file beside it: later lines replace earlier ones."""
    pattern = re.compile(r"^(\w+)=(.*)$", re.MULTILINE)
    plain = dict(pattern.findall(read("config/trunkline.service")))
    unit = plain | dict(pattern.findall(read("config/trunkline-agents.conf")))
    assert (plain["KillMode"], unit["KillMode"]) == ("mixed", "process"), "it kills the gateway alone"
    assert (unit["DynamicUser"], unit["User"]) == ("no", "trunkline"), "a user that stays"
    assert (unit["Delegate"], unit["DelegateSubgroup"]) == ("yes", "gateway")
    closed = {name for name in ("ProtectControlGroups", "ProtectKernelTunables") if unit[name] != "no"}
    assert not closed, "an agent has no cgroup, or no /proc"
    assert unit["OOMPolicy"] == "continue"
    assert "config/trunkline-agents.conf" in read("docs/service.md")


def test_the_documented_nginx_lets_the_largest_upload_pass():
    [megabytes] = re.findall(r"client_max_body_size (\d+)m;", read("docs/proxy.md"))
    limits = Settings().limits
    assert int(megabytes) * 2**20 > max(limits.upload_bytes, limits.frame_bytes)


def test_the_unit_of_a_node_is_valid_and_its_variables_are_settings(tmp_path: Path):
    assignment = re.compile(r"^(TRUNKLINE_\w+)=(.*)$", re.MULTILINE)
    drop_in = read("config/cluster/node.conf").replace("%i", "node-1")
    unit = dict(re.findall(r"^(\w+)=(.*)$", drop_in, re.MULTILINE))
    assert unit["EnvironmentFile"] == "/etc/trunkline/node-1.env"
    environ = dict(assignment.findall(unit["Environment"].replace(" ", "\n")))
    environ |= dict(assignment.findall(read("config/cluster/node-1.env")))
    settings = load_settings(environ=environ, cwd=tmp_path)
    assert (settings.cluster.node, str(settings.data_dir)) == ("node-1", "/mnt/trunkline")
    assert settings.cluster.address == "10.0.0.5:8090"
    program = shutil.which("systemd-analyze")
    if program is not None:
        name = tmp_path / "trunkline@node-1.service"
        base = read("config/trunkline.service").replace("/opt/trunkline/.venv/bin/trunkline", "/bin/true")
        name.write_text(base)
        (tmp_path / f"{name.name}.d").mkdir()
        (tmp_path / f"{name.name}.d" / "node.conf").write_text(drop_in)
        checked = subprocess.run([program, "verify", name], capture_output=True, text=True, timeout=60)
        said = checked.stdout + checked.stderr
        assert "node.conf" not in said, said


@pytest.mark.parametrize("status", range(256))
def test_the_service_restarts_after_every_exit_status_but_that_of_a_wrong_setting(status: int):
    """How systemd reads the unit: Restart=always restarts whatever the status, but for those listed."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", read("config/trunkline.service"), re.MULTILINE))
    prevented = {int(number) for number in unit["RestartPreventExitStatus"].split()}
    assert unit["Restart"] == "always"
    assert unit["StartLimitIntervalSec"] == "0", "or systemd gives up after a few restarts"
    assert (status in prevented) == (status == REFUSED)


def test_the_statuses_of_what_may_pass_are_not_the_status_of_a_wrong_setting():
    assert {FAILED, INTERRUPTED, STORE_FAILED, UNAVAILABLE} == {1, 130, 70, 75}


def test_the_container_is_restarted_when_it_is_dead_and_not_when_a_platform_is_away():
    (check,) = re.findall(r"^HEALTHCHECK .*\n.*$", read("Containerfile"), re.MULTILINE)
    assert "/healthz" in check
    assert "/readyz" not in check


def test_the_container_takes_what_the_tree_has():
    copied = re.findall(r"^COPY (\S+) ", read("Containerfile"), re.MULTILINE)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {f"!{name}" for name in copied} == set(
        re.findall(r"^!.*$", read(".containerignore"), re.MULTILINE)
    )


def test_the_image_collects_the_licenses_of_its_packages(tmp_path: Path):
    (script,) = re.findall(r"^RUN (packages=.*?done)$", read("Containerfile"), re.MULTILINE | re.DOTALL)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, env={"PATH": path}, check=True)
    for package in ("python_telegram_bot", "psycopg"):
        texts = [file.read_text() for file in tmp_path.glob(f"licenses/{package}-*/**/LICENSE*")]
        assert any("GNU LESSER GENERAL PUBLIC LICENSE" in text.upper() for text in texts), package
