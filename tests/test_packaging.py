"""What a fresh clone brings: pinned requirements, configuration files that are true, and a service unit."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway.settings import Settings, load_settings
from gateway.settings.spelling import ANY_NAME, known_keys

ROOT = Path(__file__).parents[1]
EXTRAS = {
    "requirements.txt": (),
    "requirements-dev.txt": ("postgres", "bedrock", "keyring", "vertex"),
    "requirements-bedrock.txt": ("bedrock",),
    "requirements-keyring.txt": ("keyring",),
    "requirements-postgres.txt": ("postgres",),
    "requirements-vertex.txt": ("vertex",),
}
"""Which extras each requirements file holds."""
REQUIREMENTS = list(EXTRAS)
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins(name: str) -> dict[str, str]:
    """The version of each distribution that a requirements file pins."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", read(name), re.MULTILINE)
    return {canonicalize_name(distribution): version for distribution, version in found}


def wanted(name: str) -> list[Requirement]:
    """What the project asks for, of that which a requirements file is to hold."""
    extras = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"]]
    lines += [line for extra in EXTRAS[name] for line in extras[extra]]
    lines += PROJECT["dependency-groups"]["dev"] if name == "requirements-dev.txt" else []
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_requirement_is_pinned_with_hashes_and_names_no_address(name: str):
    blocks = re.split(r"\n(?=\w)", read(name).partition("\n#    make lock\n")[2])
    assert len(blocks) > 20
    assert [
        block
        for block in blocks
        if not re.match(r"[\w.-]+==\S+.*\\\n( +--hash=sha256:[0-9a-f]{64}\b)", block)
    ] == []
    assert re.findall(r"https?:|file:|--(?:extra-)?index-url|--find-links|/home|/tmp", read(name)) == []


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_requirements_fit_what_the_project_asks_for(name: str):
    pinned = pins(name)
    for requirement in wanted(name):
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} against {version}; run `make lock`"


def test_tests_run_against_the_versions_that_are_installed_for_use():
    used = pins("requirements.txt")
    tested = pins("requirements-dev.txt")
    assert used == {name: tested.get(name) for name in used}


def test_the_example_holds_every_setting_with_a_comment():
    lines = read("config/example.toml").splitlines()
    keys, section = set[tuple[str, ...]](), ()
    for line in lines:
        if table := re.match(r'(?:# )?\[([\w."/-]+)\]', line):
            section = tuple(table[1].split("."))
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
    (tmp_path / "all.toml").write_text(text, encoding="utf-8")
    secrets = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "x" * 32)
    settings = load_settings(tmp_path / "all.toml", environ=secrets, cwd=tmp_path)
    assert settings.model
    assert settings.permissions


def test_the_smallest_configuration_is_the_defaults():
    settings = load_settings(ROOT / "config/trunkline.toml", environ={}, cwd=ROOT)
    assert settings.model_dump() == Settings().model_dump()


def test_the_service_lets_running_turns_end():
    unit = dict(re.findall(r"^(\w+)=(.*)$", read("config/trunkline.service"), re.MULTILINE))
    assert int(unit["TimeoutStopSec"]) > Settings().limits.drain_seconds + 5
    assert unit["RestartPreventExitStatus"] == "2"


def test_the_container_takes_what_the_tree_has():
    copied = re.findall(r"^COPY (\S+) ", read("Containerfile"), re.MULTILINE)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {f"!{name}" for name in copied} == set(
        re.findall(r"^!.*$", read(".containerignore"), re.MULTILINE)
    )
