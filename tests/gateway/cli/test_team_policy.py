"""The policy of a team at an https address: read by real commands from a server with TLS, and its copy."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.cli.processes import trunkline
from tests.gateway.cli.test_organization import Host

pytestmark = pytest.mark.slow

POLICY = 'allowlist = ["todo", "web"]\nblocklist = ["web"]\nrequired = ["todo"]\n'


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    host.text = POLICY
    yield host
    host.close()


class Member:
    """A machine whose settings name the policy."""

    def __init__(self, home: Path, host: Host) -> None:
        self.home, self.host = home, host
        (home / "config").mkdir()
        self.set('enabled = ["todo"]')

    def set(self, plugins: str, more: str = "") -> None:
        teams = f'[teams]\npolicy = "{self.host.url}"\n{more}\n[plugins]\n{plugins}\n'
        (self.home / "config/trunkline.toml").write_text(f'fetch.allow = ["127.0.0.1/32"]\n{teams}')

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        environ = {
            "SSL_CERT_FILE": str(self.host.authority),
            "XDG_CACHE_HOME": str(self.home / "cache"),
        }
        return trunkline(*args, home=self.home, **environ)

    def blocklist(self) -> list[str]:
        rows = json.loads(self.run("config", "show", "--json").stdout)
        return next(row["value"] for row in rows if row["key"] == "teams.plugins.blocklist")

    def age(self, seconds: float) -> None:
        """Make the copy older."""
        (file,) = (self.home / "cache/trunkline").glob("*.json")
        copy = json.loads(file.read_text())
        file.write_text(json.dumps(copy | {"fetched_at": copy["fetched_at"] - seconds}))


@pytest.fixture
def member(tmp_path: Path, host: Host) -> Member:
    return Member(tmp_path, host)


def test_001_43_a_policy_is_fetched_once_a_day_and_its_last_good_copy_is_kept(
    member: Member, host: Host
) -> None:
    assert member.blocklist() == ["web"]
    host.text = 'blocklist = ["web", "files"]\n'
    assert member.blocklist() == ["web"]
    assert len(host.asked) == 1
    member.age(86_400)
    assert member.blocklist() == ["web", "files"]
    host.text = 'bloklist = ["web"]\n'
    member.age(86_400)
    assert member.blocklist() == ["web", "files"]
    assert len(host.asked) == 3
    said = member.run("config", "check").stderr
    assert "bloklist is not a setting" in said
    assert "the copy in use is 1 day old" in said
    host.close()
    assert member.blocklist() == ["web", "files"]


def test_001_43_no_setting_overrides_a_policy(member: Member) -> None:
    for plugins, more, told in (
        ('enabled = ["todo", "web"]', "", "'web' is in teams.plugins.blocklist"),
        (
            'enabled = ["todo", "web"]',
            '[teams.plugins]\nblocklist = []\nallowlist = ["web", "todo"]',
            "'web' is in teams.plugins.blocklist",
        ),
        ('enabled = ["todo", "shell"]', "", "'shell' is not in teams.plugins.allowlist"),
        ('enabled = ["todo"]\ndisabled = ["todo"]', "", "'todo' must not be disabled"),
        ("enabled = []", "", "'todo' is missing; add it to plugins.enabled"),
    ):
        member.set(plugins, more)
        done = member.run("run", "--port", "0")
        assert done.returncode == 2, (done.stdout, done.stderr)
        assert told in done.stderr
    member.set('enabled = ["todo"]')
    assert "'todo' must not be disabled" in member.run("plugin", "disable", "todo").stderr


def test_001_43_without_policy_and_copy_there_is_no_start(member: Member, host: Host) -> None:
    host.close()
    done = member.run("run", "--port", "0")
    assert done.returncode == 2
    assert "teams.policy" in done.stderr
    assert "there is no copy of it yet" in done.stderr
