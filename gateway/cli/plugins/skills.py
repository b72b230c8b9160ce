"""``trunkline skills``: list, show, add and check skills."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.options import FAILED, AsJson, File, fail, settings_from
from gateway.cli.output import echo_json, plain, print_table
from gateway.cli.plugins.operator import Operator, one_line_errors
from gateway.contract.errors import PluginError
from gateway.extensions.admission.tree import files_of
from gateway.settings import Settings
from gateway.skills import (
    SKILL_FILE,
    FoundSkill,
    Skill,
    SkillLibrary,
    SkillSource,
    read_skill,
    skills_of_plugin,
)
from gateway.skills.library import FOLDER

_USED = "a running gateway uses it within seconds"

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with a SKILL.md.")]
Folders = Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Folders with a SKILL.md.")]
SkillName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the skill, as `skills list` shows it.")
]


def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the skills that are found, and why one cannot be used.

    \b
    Examples:
      trunkline skills list
      trunkline skills list --json
    """
    with one_line_errors():
        found = _found(Operator(config))
    if as_json:
        echo_json([_as_json(each) for each in found])
    elif found:
        table = Table("skill", "from", "description", box=None, header_style="bold")
        for each in found:
            said = each.skill.description if each.skill else f"NOT USED: {each.problem}"
            table.add_row(*(Text(plain(cell)) for cell in (each.name, each.source.name, said)))
        print_table(table)
    else:
        typer.echo("There are no skills; `trunkline skills add FOLDER` adds one.", err=True)


def show(name: SkillName, as_json: AsJson = False, config: File = None) -> None:
    """Print a skill: its limits, instructions and files.

    \b
    Examples:
      trunkline skills show pdf-forms
      trunkline skills show pdf-forms --json
    """
    with one_line_errors():
        found = [each for each in _found(Operator(config)) if each.name == name]
    if not found:
        fail(f"there is no skill {plain(name)!r}; `trunkline skills list` shows the others")
    skill = found[0].skill
    if skill is None:
        fail(plain(found[0].problem))
    if as_json:
        echo_json({**_as_json(found[0]), "body": skill.body})
        return
    for key, value in _facts(found[0], skill).items():
        typer.echo(f"{key + ':':<15} {plain(value)}")
    typer.echo(f"\n{plain(skill.body)}")


def add(
    folder: Folder,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the skill of this name.")] = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Copy a skill to the folder skills beside the settings. A skill with a mistake is refused.

    \b
    Examples:
      trunkline skills add ./pdf-forms
      trunkline skills add ./pdf-forms --replace
    """
    with one_line_errors():
        place = _copy(folder.expanduser().absolute(), _library(settings_from(config)), replace=replace)
    if as_json:
        echo_json({"name": place.name, "folder": str(place), "next": _USED})
    else:
        typer.echo(f"{place.name} is in {place}; {_USED}")


def check(folders: Folders, as_json: AsJson = False) -> None:
    """Check skills in folders; exit with 1 and every mistake.

    \b
    Examples:
      trunkline skills check ./pdf-forms
      trunkline skills check skills/* --json
    """
    problems: dict[str, list[str]] = {}
    for folder in folders:
        try:
            read_skill(_of_file(folder).expanduser().absolute())
            problems[str(folder)] = []
        except PluginError as error:
            problems[str(folder)] = str(error).splitlines()
    if as_json:
        echo_json([{"folder": each, "problems": found} for each, found in problems.items()])
    else:
        for each, found in problems.items():
            typer.echo("\n".join(map(plain, found)) if found else f"{each}: no mistakes")
    if any(problems.values()):
        raise typer.Exit(FAILED)


def _library(settings: Settings) -> SkillLibrary:
    return SkillLibrary(settings, os.environ.get("HOME"))


def _found(operator: Operator) -> list[FoundSkill]:
    """Return the skills of the folders, and those of the enabled plugins with a manifest."""
    settings, admission = operator.settings, operator.admission
    found = list(_library(settings).discover())
    first = {each.name: each.folder for each in found if each.skill is not None}
    for entry in settings.plugins.enabled:
        if entry in settings.plugins.disabled or not admission.owns(entry):
            continue
        place = SkillSource(f"plugin {entry}", Path())
        try:
            place = SkillSource(place.name, admission.find(entry).folder / FOLDER)
            skills = skills_of_plugin(admission.admit(entry).folder, untrusted=True)
        except PluginError as error:
            found.append(FoundSkill(entry, place, None, str(error)))
            continue
        for skill in skills:
            hiding = first.setdefault(skill.name, skill.folder)
            problem = "" if hiding == skill.folder else f"the one in {hiding} is used"
            found.append(FoundSkill(skill.name, place, None if problem else skill, problem))
    return found


def _of_file(path: Path) -> Path:
    return path.parent if path.name == SKILL_FILE else path


def _copy(folder: Path, library: SkillLibrary, *, replace: bool) -> Path:
    """Copy a skill whole or not at all. Return its place. Raises PluginError."""
    skill = read_skill(_of_file(folder))
    target = library.sources[0].folder
    place = target / skill.name
    if place.exists() and not replace:
        raise PluginError(f"{place} exists already; give --replace, or remove it")
    try:
        target.mkdir(parents=True, exist_ok=True)
        staging = Path(mkdtemp(prefix=".adding-", dir=target))
        try:
            for path, _ in files_of(skill.folder):
                (staging / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(skill.folder / path, staging / path)
            staging.chmod(0o755)
            shutil.rmtree(place, ignore_errors=True)
            staging.rename(place)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise PluginError(f"{place} cannot be written: {error.strerror}") from None
    return place


def _facts(found: FoundSkill, skill: Skill) -> dict[str, str]:
    """Return what is known of a skill beside its text, without what it does not say."""
    rules = None if skill.allowed_tools is None else ", ".join(map(str, skill.allowed_tools)) or "none"
    facts = {
        "name": skill.name,
        "description": skill.description,
        "from": f"{found.source.name}, {found.folder}",
        "allowed tools": rules or "",
        "license": skill.license,
        "compatibility": skill.compatibility,
        **skill.metadata,
        "files": ", ".join(skill.digests),
    }
    return {key: value for key, value in facts.items() if value}


def _as_json(found: FoundSkill) -> dict[str, Any]:
    skill = found.skill
    about: dict[str, Any] = {"name": found.name, "source": found.source.name, "folder": str(found.folder)}
    if skill is None:
        return {**about, "problem": found.problem}
    return about | {
        "description": skill.description,
        "allowed_tools": None if skill.allowed_tools is None else [str(each) for each in skill.allowed_tools],
        "license": skill.license,
        "compatibility": skill.compatibility,
        "metadata": dict(skill.metadata),
        "files": list(skill.digests),
    }
