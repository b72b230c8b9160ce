"""``trunkline skills``, run as a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gateway.cli.processes import trunkline

pytestmark = pytest.mark.slow

SKILL = "---\nname: {name}\ndescription: Fills forms\nlicense: MIT\nallowed-tools: Read\n---\nRead first.\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/trunkline.toml").write_text("")
    return tmp_path


def skill(folder: Path, name: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL.format(name=name or folder.name))
    return folder


def run(home: Path, *args: str, status: int = 0) -> str:
    done = trunkline("skills", *args, home=home)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_a_skill_is_added_listed_shown_and_replaced(home: Path) -> None:
    folder = skill(home / "forms")
    (folder / "docs").mkdir()
    (folder / "docs/fields.md").write_text("Field A")
    assert "There are no skills" in run(home, "list")
    place = home / "config/skills/forms"
    assert run(home, "add", "./forms") == f"forms is in {place}; a running gateway uses it within seconds\n"
    assert (place / "docs/fields.md").read_text() == "Field A"
    skill(home / ".agents/skills/broken", "other")
    forms, broken = json.loads(run(home, "list", "--json"))
    assert (forms["source"], forms["allowed_tools"], forms["files"]) == (
        "settings",
        ["read"],
        ["docs/fields.md"],
    )
    assert '"other" must be the name of its folder, broken' in broken["problem"]
    assert "NOT USED" in run(home, "list")
    shown = run(home, "show", "forms")
    assert "allowed tools:  read" in shown
    assert shown.endswith("\nRead first.\n")
    assert json.loads(run(home, "show", "forms", "--json"))["body"] == "Read first."
    assert "exists already; give --replace" in run(home, "add", "./forms", status=1)
    (folder / "docs/fields.md").unlink()
    run(home, "add", "./forms", "--replace", "--json")
    assert not (place / "docs/fields.md").exists()
    assert [each.name for each in place.parent.iterdir()] == ["forms"]
    assert "there is no skill 'none'" in run(home, "show", "none", status=1)


def test_a_plugin_that_is_not_there_hides_no_skill(home: Path) -> None:
    skill(home / "config/skills/news")
    (home / "config/trunkline.toml").write_text('plugins.enabled = ["gone-one"]\n')
    news, gone = json.loads(run(home, "list", "--json"))
    assert (news["name"], "problem" in news) == ("news", False)
    assert gone["problem"].startswith("plugin 'gone-one' is not installed")
    assert "Read first." in run(home, "show", "news")


def test_the_skills_of_enabled_plugins_are_listed(home: Path) -> None:
    skill(home / "kit/skills/forms")
    skill(home / "kit/skills/news")
    skill(home / "config/skills/news")
    (home / "kit/plugin.yml").write_text("name: kit\nversion: 1.0\n")
    enabled = home / "kit"
    (home / "config/trunkline.toml").write_text(f'[plugins]\nenabled = ["{enabled}"]\n')
    *_, refused = json.loads(run(home, "list", "--json"))
    assert "is not approved" in refused["problem"]
    done = trunkline("plugin", "approve", "./kit", "--yes", home=home)
    assert "teaches models the skills forms, news" in done.stderr
    found = json.loads(run(home, "list", "--json"))
    assert [(each["name"], each["source"], "problem" in each) for each in found] == [
        ("news", "settings", False),
        ("forms", f"plugin {enabled}", False),
        ("news", f"plugin {enabled}", True),
    ]
    about = trunkline("plugin", "info", "./kit", home=home)
    assert "teaches models the skills forms, news" in about.stdout


def test_check_reports_every_mistake_and_add_refuses(home: Path) -> None:
    skill(home / "good")
    bad = skill(home / "bad", "other")
    (bad / "link.md").symlink_to("/etc/passwd")
    said = run(home, "check", "good", "bad/SKILL.md", status=1)
    assert "good: no mistakes" in said
    assert '"other" must be the name of its folder, bad' in said
    assert run(home, "check", "good") == "good: no mistakes\n"
    (bad / "SKILL.md").write_text(SKILL.format(name="bad"))
    (found,) = json.loads(run(home, "check", "bad", "--json", status=1))
    assert "link.md is a link" in found["problems"][0]
    assert "link.md is a link" in run(home, "add", "bad", status=1)
    assert not (home / "config/skills").exists()
