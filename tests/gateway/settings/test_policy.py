"""The policy of a team in a file: it is joined with the settings so that the stricter rule counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.contract.errors import SettingsError
from gateway.settings import Settings, load_settings


class Team:
    """A machine with a settings file and a policy."""

    def __init__(self, root: Path) -> None:
        self.cwd = root / "work"
        self.policy = root / "policy.toml"
        (self.cwd / "config").mkdir(parents=True)
        self.environ = {"HOME": str(root), "XDG_CACHE_HOME": str(root / "cache")}

    def load(self, own: str = "", policy: str | None = None) -> Settings:
        settings = f'teams.policy = "{self.policy}"\n[teams.plugins]\n{own}\n'
        (self.cwd / "config/trunkline.toml").write_text(settings)
        if policy is not None:
            self.policy.write_text(policy)
        return load_settings(environ=self.environ, cwd=self.cwd)


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(tmp_path)


@pytest.mark.parametrize(
    ("own", "policy", "name", "allowed"),
    [
        ("", 'blocklist = ["a"]', "a", False),
        ("blocklist = []", 'blocklist = ["a"]', "a", False),
        ('blocklist = ["b"]', 'blocklist = ["a"]', "b", False),
        ('allowlist = ["a", "b"]', 'allowlist = ["b", "c"]', "a", False),
        ('allowlist = ["a", "b"]', 'allowlist = ["b", "c"]', "b", True),
        ('allowlist = ["a", "b"]', 'allowlist = ["b", "c"]', "c", False),
        ("", 'allowlist = ["a"]\nblocklist = ["a"]', "a", False),
        ('allowlist = ["a"]', "", "a", True),
        ("", "allowlist = []", "a", False),
        ("", "", "a", True),
    ],
)
def test_001_43_the_stricter_rule_counts(team: Team, own: str, policy: str, name: str, allowed: bool) -> None:
    assert (team.load(own, policy).teams.plugins.refusal(name) is None) is allowed


def test_required_plugins_are_those_of_both(team: Team) -> None:
    assert team.load('required = ["a"]', 'required = ["b"]').teams.plugins.required == ("a", "b")


def test_a_file_is_read_at_each_start_and_its_last_good_copy_is_kept(team: Team) -> None:
    team.load(policy='blocklist = ["a"]')
    assert team.load(policy='blocklist = ["b"]').teams.plugins.blocklist == ("b",)
    for policy in ("blocklist = 5", "enabled = ['a']", "blocklist = [", 'blocklist = ["${HOME}"]'):
        settings = team.load(policy=policy)
        assert settings.teams.plugins.blocklist == ("b",)
        (warning,) = settings.origin.warnings
        assert warning.startswith(f"teams.policy: {team.policy}")
    team.policy.unlink()
    assert team.load().teams.plugins.blocklist == ("b",)


@pytest.mark.parametrize("policy", [None, "blocklist = 5", 'blocklist = ["${HOME}"]', "x" * 200_000])
def test_without_a_correct_file_and_copy_there_is_no_start(team: Team, policy: str | None) -> None:
    with pytest.raises(SettingsError, match="there is no copy of it yet"):
        team.load(policy=policy)


def test_a_json_file_is_a_policy_too(team: Team) -> None:
    team.policy = team.policy.with_suffix(".json")
    assert team.load(policy='{"blocklist": ["a"]}').teams.plugins.blocklist == ("a",)


def test_an_address_must_be_https(team: Team) -> None:
    (team.cwd / "config/trunkline.toml").write_text('teams.policy = "http://example.org/policy.toml"\n')
    with pytest.raises(SettingsError, match="must be a path or an https address"):
        load_settings(environ=team.environ, cwd=team.cwd)
