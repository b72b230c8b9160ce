"""``SKILL.md``: what is accepted, and every mistake with its line and its correction."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import PluginError
from gateway.extensions.admission.fields import invisible
from gateway.skills import ToolRule, read_skill
from gateway.skills.library import SkillSource, find_skills
from gateway.skills.skill import MOST_BYTES, parse_skill
from tests.gateway.skills.conftest import Desk

WHOLE = b"""\
---
name: pdf-forms
description: >-
  Fills PDF forms.
  Use it when a user sends one.
license: MIT
compatibility: Needs Python
metadata: {author: user@example.org, version: 1.10}
allowed-tools: Read, Bash(git log:*) mcp__files__find calculator
---
# Steps

1. Read `fields.md`.
"""


def refusal(data: bytes) -> list[str]:
    with pytest.raises(PluginError) as caught:
        parse_skill(data, "pdf-forms")
    return str(caught.value).splitlines()


def test_a_whole_file_is_read() -> None:
    found = parse_skill(WHOLE, "pdf-forms")
    assert found["description"] == "Fills PDF forms. Use it when a user sends one."
    assert found["metadata"] == {"author": "user@example.org", "version": "1.10"}
    assert found["body"] == "# Steps\n\n1. Read `fields.md`."
    assert found["allowed_tools"] == (
        ToolRule("read"),
        ToolRule("shell", "git log *"),
        ToolRule("files_find"),
        ToolRule("calculator"),
    )


def test_all_mistakes_are_reported_at_once_with_line_and_correction() -> None:
    wrong = WHOLE.replace(b"license: MIT", b"licence: MIT").replace(b"name: pdf-forms", b"name: PDF")
    wrong = wrong.replace(b"metadata: {author: user@example.org, version: 1.10}", b"metadata: [a]")
    assert refusal(wrong) == [
        'SKILL.md:2: name: "PDF" must be up to 64 of a-z, 0-9 and single hyphens, like pdf-forms',
        "SKILL.md:6: licence: is not a key of SKILL.md; did you mean license?",
        'SKILL.md:8: metadata: must be a table of texts, like {author: user@example.org, version: "1.0"}',
    ]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b"name: pdf-forms", b"name: other", '"other" must be the name of its folder, pdf-forms'),
        (b"---\nname", b"# no table\nname", "SKILL.md:1: must begin with a line ---"),
        (b"---\n# Steps", b"# Steps", "SKILL.md:1: the line --- after the table is missing"),
        (b"license: MIT", b"license: &a MIT", "SKILL.md:6: &a: anchors are not allowed"),
        (b"license: MIT", b"name: pdf-forms", "SKILL.md:6: name: is written twice"),
        (b"license: MIT", b"license: !!python/name:os.system MIT", "tags are not allowed"),
        (b"Fills PDF forms.", b"x" * 1_025, "at most 1024 are allowed"),
        (b"Read, Bash", b"Read, (Bash", "must be names of tools, like Read Bash(git log:*)"),
        (
            b"Read `fields",
            "Read\u202e `fields".encode(),
            "SKILL.md:13: has the invisible character U+202E",
        ),
        (b"Fills PDF", "Fills\u200b PDF".encode(), "SKILL.md:4: has the invisible character U+200B"),
        (b"Steps", "Steps\U000e0041".encode(), "has the invisible character U+E0041"),
        (b"Steps", "Steps\U000e0100".encode(), "has the invisible character U+E0100"),
        (b"Steps", "Steps\u3164".encode(), "has the invisible character U+3164"),
        (b"Steps", b"Steps\xff", "SKILL.md:11: is not UTF-8 text"),
    ],
)
def test_a_mistake_is_refused(before: bytes, after: bytes, said: str) -> None:
    assert before in WHOLE
    assert said in "\n".join(refusal(WHOLE.replace(before, after)))


def test_a_large_file_and_a_missing_description_are_refused() -> None:
    assert refusal(WHOLE + b"x" * MOST_BYTES)[0].startswith(f"SKILL.md: has {len(WHOLE) + MOST_BYTES} bytes")
    assert refusal(b"---\nname: pdf-forms\n---\n") == [
        "SKILL.md:1: description: is missing; every skill needs it"
    ]


@given(st.binary(max_size=400), st.sampled_from([b"", b"---\n", WHOLE[:60], WHOLE]))
def test_any_bytes_are_read_or_refused(data: bytes, before: bytes) -> None:
    with contextlib.suppress(PluginError):
        parse_skill(before + data, "pdf-forms")


@given(st.text(max_size=60), st.integers(0, len(WHOLE)))
def test_no_accepted_file_hides_a_character(text: str, at: int) -> None:
    data = WHOLE[:at] + text.encode("utf-8", "ignore") + WHOLE[at:]
    with contextlib.suppress(PluginError):
        found = parse_skill(data, "pdf-forms")
        assert len(found["description"]) <= 1_024
        assert found["name"] == "pdf-forms"
        assert invisible("".join(map(str, found.values())), "\n\t\r") is None


def test_files_below_the_folder_are_read_and_nothing_else(desk: Desk, tmp_path: Path) -> None:
    folder = desk.skill()
    (folder / "docs").mkdir()
    (folder / "docs/fields.md").write_text("Field A")
    (folder / "large.bin").write_bytes(b"x" * (MOST_BYTES + 1))
    (folder / "odd.md").write_text("a\u202eb")
    (tmp_path / "secret").write_text("secret")
    skill = read_skill(folder)
    assert list(skill.digests) == ["docs/fields.md", "odd.md"]
    assert skill.read("docs/fields.md") == "Field A"
    for path in ("../../secret", str(tmp_path / "secret"), "docs/../docs/fields.md", "docs", "SKILL.md"):
        with pytest.raises(PluginError, match="has no file"):
            skill.read(path)
    with pytest.raises(PluginError, match=r"U\+202E"):
        skill.read("odd.md")
    (folder / "docs/fields.md").write_text("Field B")
    with pytest.raises(PluginError, match="was changed"):
        skill.read("docs/fields.md")
    (folder / "docs/fields.md").unlink()
    (folder / "docs/fields.md").symlink_to(tmp_path / "secret")
    with pytest.raises(PluginError, match="is a link"):
        skill.read("docs/fields.md")
    with pytest.raises(PluginError, match=r"docs/fields\.md is a link"):
        read_skill(folder)


def test_a_symlink_is_not_a_skill(desk: Desk) -> None:
    folder = desk.skill()
    (desk.own / "other").symlink_to(folder)
    with pytest.raises(PluginError, match="is a link"):
        read_skill(desk.own / "other")


def test_a_skill_that_cannot_be_examined_is_named_and_hides_no_other(desk: Desk) -> None:
    desk.skill()
    (desk.own / "looped").mkdir()
    (desk.own / "looped/SKILL.md").symlink_to("SKILL.md")  # its stat fails, as in a closed folder
    looped, other = find_skills(SkillSource("own", desk.own))
    assert (other.problem, other.skill is None) == ("", False)
    assert (looped.name, looped.skill) == ("looped", None)
    assert "looped/SKILL.md cannot be read" in looped.problem
