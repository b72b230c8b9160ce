"""The same thing has the same name on every platform, and works the same way there."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gateway.settings import ChannelRules

ROOT = Path(__file__).parent.parent.parent
PLATFORMS = ("telegram", "discord", "slack")
OPTIONS: dict[str, type[BaseModel]] = {name: import_module(f"channels.{name}").Options for name in PLATFORMS}
ITS_OWN = {"api_base_url", "mode", "stop_reaction", "thinking", "token"}
"""What means the same everywhere, and begins as it is usual on each platform."""
SHARED = ("edits", "file_bytes", "pace", "pages", "session_strategy", "streaming", "tools")


@pytest.mark.parametrize("name", SHARED)
def test_what_every_platform_has_is_the_same_on_each(name: str) -> None:
    fields = [OPTIONS[platform].model_fields[name] for platform in PLATFORMS]
    assert len({(field.default, field.description) for field in fields}) == 1


def test_a_name_that_two_platforms_have_means_the_same() -> None:
    told: dict[str, set[Any]] = {}
    for options in OPTIONS.values():
        for name, field in options.model_fields.items():
            told.setdefault(name, set()).add((repr(field.default), field.description))
    assert {name for name, meanings in told.items() if len(meanings) > 1} <= ITS_OWN


@pytest.mark.parametrize("platform", [*PLATFORMS, "email", "matrix"])
def test_every_option_is_in_the_example_with_its_default(platform: str) -> None:
    """The lines of the example are comments; without their marks they are settings."""
    lines = (ROOT / "config" / "example.toml").read_text().split("\n")
    begin = lines.index(f"# [channels.{platform}]") + 1
    table = lines[begin : next(at for at in range(begin, len(lines)) if not lines[at].startswith("# "))]
    given = tomllib.loads("\n".join(line.removeprefix("# ") for line in table))
    fields = import_module(f"channels.{platform}").Options.model_fields
    assert set(given) - set(ChannelRules.model_fields) == set(fields)
    for name in set(SHARED) & set(fields):
        assert given[name] == fields[name].default, name
