"""The skills of a gateway by name: those of its folders, then those of plugins. The first of a name wins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import structlog
from msgspec import Struct

from gateway.api.owned_files import may_exist
from gateway.contract.errors import PluginError
from gateway.contract.services import Unregister
from gateway.settings import Settings
from gateway.skills.skill import SKILL_FILE, Skill, read_skill

log = structlog.get_logger("trunkline.skills")

FOLDER = "skills"
"""Folder of skills beside the settings file, and in a plugin."""
_SHARED = ".agents/skills"
"""Folder of skills for all programs, in the working directory and in the user's home."""

_LOOK_SECONDS = 2.0
_MOST_FILES = 10_000


class SkillSource(Struct, frozen=True):
    """A place of skills: its name for users, and its folder."""

    name: str
    folder: Path


class FoundSkill(Struct, frozen=True):
    """A folder that may be a skill. ``skill`` is None if it cannot be used; ``problem`` says why."""

    name: str
    source: SkillSource
    skill: Skill | None
    problem: str = ""

    @property
    def folder(self) -> Path:
        """The folder of the skill."""
        return self.source.folder / self.name


class SkillLibrary:
    """The skills that agents can load. ``home`` is the user's home directory, or None."""

    def __init__(self, settings: Settings, home: str | None) -> None:
        folders = {
            "settings": (settings.file.parent / FOLDER).absolute(),
            "project": Path(_SHARED).absolute(),
            **({"user": Path(home) / _SHARED} if home and Path(home) != Path.cwd() else {}),
        }
        self.sources = tuple(SkillSource(name, folder) for name, folder in folders.items())
        self.skills: Mapping[str, Skill] = {}
        self.on_change: Callable[[], None] = lambda: None
        self._own: Sequence[Skill] = ()
        self._seen: Mapping[str, tuple[int, int, int]] = {}
        self._of_plugins: list[tuple[str, Sequence[Skill]]] = []
        """The skills of plugins. While one is replaced, its later entry counts."""

    def load(self) -> None:
        """Read the skills of the folders. One that cannot be used is logged and left out."""
        self._seen = self._stamps()
        self._take([*self.discover()])

    async def watch(self, seconds: float = _LOOK_SECONDS) -> None:
        """Read the skills of the folders again when one of their files changes, until cancelled.

        Looks at the files every ``seconds``: file systems on other machines report no changes.
        """
        while True:
            await asyncio.sleep(seconds)
            stamps = await asyncio.to_thread(self._stamps)
            if stamps != self._seen:
                self._seen = stamps
                self._take(await asyncio.to_thread(lambda: [*self.discover()]))
                log.info("the skills were read again", skills=len(self.skills))

    def _stamps(self) -> Mapping[str, tuple[int, int, int]]:
        """Return what shows that a file in the folders of skills is another one than before."""
        found: dict[str, tuple[int, int, int]] = {}
        for source in self.sources:
            for file in islice(source.folder.glob("*/**/*"), _MOST_FILES):
                with suppress(OSError):
                    stat = file.lstat()
                    found[str(file)] = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        return found

    def _take(self, discovered: Sequence[FoundSkill]) -> None:
        self._own = [found.skill for found in discovered if found.skill is not None]
        for found in discovered:
            if found.skill is None:
                log.warning("a skill cannot be used", folder=str(found.folder), reason=found.problem)
        self._compose()

    def discover(self) -> Iterator[FoundSkill]:
        """Yield the skills of the folders, those of earlier folders first; a hidden one with its reason."""
        first: dict[str, Path] = {}
        for source in self.sources:
            for found in find_skills(source):
                hiding = first.setdefault(found.name, found.folder)
                if hiding != found.folder:
                    yield FoundSkill(found.name, source, None, f"the one in {hiding} is used")
                else:
                    yield found

    def add(self, plugin: str, skills: Sequence[Skill]) -> Unregister:
        """Add the skills of a plugin; those of the folders and of earlier plugins win."""
        one = (plugin, skills)
        self._of_plugins.append(one)
        self._compose()
        for skill in skills:
            if self.skills[skill.name] is not skill:
                used = self.skills[skill.name].folder
                log.warning("two skills have one name", skill=skill.name, used=str(used))

        def remove() -> None:
            self._of_plugins[:] = [each for each in self._of_plugins if each is not one]
            self._compose()

        return remove

    def _compose(self) -> None:
        found: dict[str, Skill] = {}
        of_plugins = dict(self._of_plugins).values()
        for skill in (*self._own, *(each for skills in of_plugins for each in skills)):
            found.setdefault(skill.name, skill)
        self.skills = found
        self.on_change()


def find_skills(source: SkillSource) -> Iterator[FoundSkill]:
    """Yield the skills in the folders of a place, by name."""
    try:
        names = sorted(each.name for each in source.folder.iterdir() if may_exist(each / SKILL_FILE))
    except OSError:
        return
    for name in names:
        try:
            yield FoundSkill(name, source, read_skill(source.folder / name))
        except PluginError as error:
            yield FoundSkill(name, source, None, str(error))


def skills_of_plugin(folder: Path, *, untrusted: bool) -> list[Skill]:
    """Return the skills of a plugin's folder. Raises PluginError if one of them has a mistake."""
    files = sorted((folder / FOLDER).glob(f"*/{SKILL_FILE}"))
    return [read_skill(file.parent, untrusted=untrusted) for file in files]
