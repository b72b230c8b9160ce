"""A desk with skills in all places, and a gateway that works there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.settings import Settings
from gateway.settings.sections import Origin

SKILL = """\
---
name: {name}
description: {description}
{more}---
# Steps of {name}

Read the form first.
"""


class Desk:
    """A folder with settings, and a home."""

    def __init__(self, root: Path) -> None:
        self.config = root / "config/trunkline.toml"
        self.home = root / "home"
        self.own = root / "config/skills"
        self.user = self.home / ".agents/skills"
        self.data = root / "data"

    def skill(self, name: str = "pdf-forms", place: Path | None = None, more: str = "", **said: str) -> Path:
        """Write a skill and return its folder."""
        folder = (place or self.own) / name
        folder.mkdir(parents=True)
        description = said.get("description", f"Fills {name}. Use it for forms.")
        (folder / "SKILL.md").write_text(SKILL.format(name=name, description=description, more=more))
        return folder

    @property
    def kind(self) -> type[Gateway]:
        """A gateway whose settings file is here."""
        desk = self

        class Here(Gateway):
            def __init__(self, settings: Settings, **options: Any) -> None:
                at = settings.with_origin(Origin(file=desk.config))
                super().__init__(at, environ={"HOME": str(desk.home)}, **options)

        return Here


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)
