"""Tools of a plugin's folder: ``tools/NAME.yml`` with a command or a script, run in a sandbox."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from gateway import PluginError, SettingsError, ToolError, ToolResultPart
from gateway.app import Gateway
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.capabilities import Capabilities, ExecAccess
from gateway.extensions.admission.consent import describe
from gateway.extensions.admission.manifest import Admitted, Manifest, read_manifest
from gateway.extensions.admission.packages.installer import Installer
from gateway.extensions.broker import CapabilityDenied, Gate
from gateway.extensions.broker.programs import Programs, ToolRun
from gateway.extensions.confined.folder_tools import parse_tool, read_tools
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.settings import Settings
from gateway.settings.sections import Origin
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Use

MANIFEST = """
api: 1
name: kit
version: 1.0.0
tools: [words, longest]
capabilities:
  exec: {enabled: true, allowlist: ["grep *", "tools/longest.py"]}
"""
WORDS = """
description: Counts the lines of a file that have a word
schema:
  type: object
  additionalProperties: false
  required: [word, file]
  properties: {word: {type: string}, file: {type: string}, fixed: {type: string}}
command: "grep -c '{fixed}' {word} {file}"
"""
LONGEST = """
description: Returns the longest of some words
schema: {type: object, required: [words], properties: {words: {type: array, items: {type: string}}}}
script: longest.py
timeout: 50
"""
SCRIPT = """
import json, os, sys
words = json.load(sys.stdin)["words"]
if not words:
    sys.exit("no words")
print(max(words, key=len), os.path.exists(os.path.expanduser("~/.ssh")), end="")
"""
FILES = {
    "plugin.yml": MANIFEST,
    "main.py": "from trunkline_plugin import plugin\n\n@plugin\ndef f(ctx): return {}\n",
    "tools/words.yml": WORDS.replace("'{fixed}' ", ""),
    "tools/longest.yml": LONGEST,
    "tools/longest.py": SCRIPT,
}


def write(folder: Path, files: Mapping[str, str] = FILES, **changed: str) -> Path:
    """Write a plugin's folder; names of changed files have ``__`` for a slash, ``_`` for a dot."""
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(changed.get(path.replace("/", "__").replace(".", "_"), text))
    return folder


def read(folder: Path) -> list[Any]:
    manifest = read_manifest(folder)
    return list(read_tools(Admitted(manifest, folder, "sha256:x")))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("command: wc\nscript: x.py", "tools/x.yml:1: command: or script must be there, and not both"),
        ("command: wc {other}", "tools/x.yml:1: command: {other} is not a property of schema; add it there"),
        ("command: '{path}'", 'command: "{path}" must begin with a program'),
        ("command: wc 'a", 'command: "wc \'a" has a quote without an end'),
        ("script: ../x.py", 'script: "../x.py" must be a file beside this one'),
        ("script: x.py", "tools/x.py is not a file; add it"),
        ("command: wc\nimage: --privileged", 'image: "--privileged" must be the name of an image'),
        ("command: wc\ntimeout: 601", "timeout: 601 must be a number from 0.1 to 600"),
        ("comand: wc", "comand: is not a key of a tool; did you mean command?"),
        ("command: wc\nname: a b", 'name: "a b" must be a name of letters'),
    ],
)
def test_a_mistake_in_a_tool_names_file_line_and_key(tmp_path: Path, line: str, complaint: str) -> None:
    head = "description: D\nschema: {type: object, properties: {path: {type: string}}}\n"
    file = tmp_path / "tools/x.yml"
    with pytest.raises(PluginError) as caught:
        parse_tool(f"{head}{line}\n".encode(), file)
    assert complaint in str(caught.value)


def test_a_schema_and_a_description_are_needed(tmp_path: Path) -> None:
    with pytest.raises(PluginError) as caught:
        parse_tool(b"command: wc\n", tmp_path / "x.yml")
    assert "description: is missing" in str(caught.value)
    assert "schema: is missing" in str(caught.value)
    with pytest.raises(PluginError, match="schema: is not a JSON Schema"):
        parse_tool(b"description: D\nschema: {type: object, required: 3}\ncommand: wc\n", tmp_path / "x.yml")


def test_a_tool_runs_only_what_the_manifest_declares(tmp_path: Path) -> None:
    assert [tool.name for tool in read(write(tmp_path / "a"))] == ["longest", "words"]
    none = write(tmp_path / "b", plugin_yml=MANIFEST.replace('"grep *", "tools/longest.py"', '"wc *"'))
    with pytest.raises(PluginError, match=r'capabilities\.exec\.allowlist: "tools/longest\.py"'):
        read(none)
    (none / "tools/longest.yml").unlink()
    with pytest.raises(PluginError, match=r'capabilities\.exec\.allowlist: "grep -c \*"'):
        read(none)
    image = write(tmp_path / "c", tools__longest_yml=f"{LONGEST}image: python:3.12-slim\n")
    with pytest.raises(PluginError, match=r"image needs capabilities\.docker: true in plugin\.yml"):
        read(image)
    assert describe(read_manifest(tmp_path / "a")) == [
        "run the command grep *",
        "run the command tools/longest.py",
    ]


def test_each_place_is_one_word_that_is_not_an_option(tmp_path: Path) -> None:
    tool = parse_tool(WORDS.encode(), tmp_path / "words.yml")
    hostile = "$(id); `id`\n| sh"
    assert tool.argv({"word": hostile, "file": "a b"}) == ("grep", "-c", hostile, "a b")
    assert tool.argv({"fixed": "x", "word": "a", "file": "b"}) == ("grep", "-c", "x", "a", "b")
    with pytest.raises(ToolError, match="word must not begin with -"):
        tool.argv({"word": "-f/etc/passwd", "file": "a"})
    inside = parse_tool(WORDS.replace("{word}", "--regexp={word}").encode(), tmp_path / "words.yml")
    assert inside.argv({"word": "-a", "file": "b"})[2] == "--regexp=-a"


class Here(Gateway):
    """A gateway whose settings file is in the working directory."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        super().__init__(settings.with_origin(Origin(file=Path.cwd() / "config/trunkline.toml")), **options)


async def used(chat: Chat, name: str, **arguments: Any) -> ToolResultPart:
    chat.model.then(Reply((Use(name, json.dumps(arguments)),), "tools"))
    answer = await chat.say("go")
    return next(part for part in answer.parts if isinstance(part, ToolResultPart))


def approve(folder: Path, root: Path, *grants: str) -> None:
    settings = Settings(data_dir=root / "data").with_origin(Origin(file=root / "config/trunkline.toml"))
    Installer(Admission(settings, root, root / "home"), {}).approve(str(folder), grants, "operator")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux")
async def test_001_37_tools_of_the_folder_run_confined(tmp_path: Path) -> None:
    folder = write(tmp_path / "kit")
    (tmp_path / "config").mkdir()
    (tmp_path / "notes.txt").write_text("a needle\nhay\nneedles\n")
    approve(folder, tmp_path, "exec:grep *", "exec:tools/longest.py")
    settings = {
        "plugins": {"enabled": [str(folder)]},
        "permissions": {"words": "allow", "longest": "allow"},
    }
    with chdir(tmp_path):
        async with chatting(tmp_path / "data", kind=Here, **settings) as chat:
            found = await used(chat, "words", word="needle", file="notes.txt")
            assert (found.output.strip(), found.is_error) == ("2", False)
            assert (await used(chat, "longest", words=["a", "abc", "$(id)b"])).output == "$(id)b False"
            failed = await used(chat, "longest", words=[])
            assert (failed.output, failed.is_error) == ("Error: status 1: no words", True)
            wrong = await used(chat, "words", word=3)
            assert "wrong arguments" in wrong.output
            option = await used(chat, "words", word="-f/etc/passwd", file="notes.txt")
            assert "must not begin with -" in option.output
            actions = chat.gateway.parts.actions
            await actions.flush()
            ran = [each.value for each in await actions.latest("kit") if each.action == "exec"]
            assert ran == ["grep -c needle notes.txt", "tools/longest.py", "tools/longest.py"]
            plugin = chat.gateway.registry.get("kit")
            assert plugin is not None
            assert plugin.asks_by_default


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux")
async def test_a_folder_with_tools_needs_no_code(tmp_path: Path) -> None:
    files = {path: text for path, text in FILES.items() if path != "main.py"}
    agent = "---\ndescription: Counts\n---\nYou count words.\n"
    folder = write(tmp_path / "kit", {**files, "agents/counter.md": agent})
    (tmp_path / "config").mkdir()
    (tmp_path / "notes.txt").write_text("a needle\n")
    approve(folder, tmp_path, "exec:grep *")
    settings = {"plugins": {"enabled": [str(folder)]}, "permissions": {"words": "allow"}}
    with chdir(tmp_path):
        async with chatting(tmp_path / "data", kind=Here, **settings) as chat:
            assert (await used(chat, "words", word="needle", file="notes.txt")).output.strip() == "1"
            await chat.say("hi", "t", agent="counter")
            assert {tool.name for tool in chat.model.calls[-1].options.tools} == {"words", "longest"}
        (folder / "tools/longest.yml").unlink()
        approve(folder, tmp_path)
        lacking = r"lists 'longest', but there is neither code nor tools/longest\.yml"
        with pytest.raises(SettingsError, match=lacking):
            async with chatting(tmp_path / "data2", kind=Here, **settings):
                pass


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux")
async def test_001_36_a_tool_of_the_folder_needs_its_grant_and_ends_with_its_plugin(tmp_path: Path) -> None:
    folder = write(tmp_path / "kit")
    (tmp_path / "config").mkdir()
    approve(folder, tmp_path, "exec:grep *")
    settings = {
        "plugins": {"enabled": [str(folder)]},
        "permissions": {"words": "allow", "longest": "allow"},
        "limits": {"approval_timeout_ms": 100},
    }
    with chdir(tmp_path):
        async with chatting(tmp_path / "data", kind=Here, **settings) as chat:
            refused = await used(chat, "longest", words=["a"])
            assert refused.is_error
            assert "exec: 'tools/longest.py' was not granted" in refused.output
            plugin = chat.gateway.registry.get("kit")
            assert isinstance(plugin, ConfinedPlugin)
            assert {"words", "longest"} <= {tool.name for tool in chat.gateway.registry.get_tools()}
            plugin.stop_soon("it was withdrawn")
            assert {"words", "longest"}.isdisjoint(tool.name for tool in chat.gateway.registry.get_tools())


class Granting:
    """Grants all that is declared, and records nothing."""

    def given(self, plugin: str) -> set[str]:
        return {"docker", "exec:tools/x.py"}

    def refused(self, plugin: str) -> set[str]:
        return set()

    async def ask(self, plugin: str, grant: str, action: str, session: str) -> None:
        return None

    def record(self, *_: Any, **__: Any) -> None: ...


@pytest.mark.skipif(shutil.which("docker") is None, reason="needs the program docker")
async def test_a_tool_with_an_image_runs_in_a_container_or_else_confined() -> None:
    ran: list[tuple[tuple[str, ...], bool]] = []
    status = 0

    async def run(
        argv: Sequence[str], data: bytes, seconds: float, *, confined: bool, session: str
    ) -> tuple[int, bytes, bytes]:
        ran.append((tuple(argv), confined))
        return (0 if confined else status), data, b"cannot connect to the daemon"

    asked = ToolRun(("python3", "-c", "print(1)"), "{}", 5, "s", "python:3.12-slim", "tools/x.py")
    granting = Granting()
    admitted = Admitted(Manifest("kit", "1.0"), Path(), "sha256:x")
    gate = Gate(admitted, granting, granting, lambda _: None)
    programs = Programs(ExecAccess(enabled=True, allowlist=("tools/x.py",)), gate, run)
    await programs.tool(True, asked)
    ((argv, confined),) = ran
    assert {"--network=none", "--read-only", "--cap-drop=ALL"} <= set(argv)
    assert (argv[-4:], confined) == (("python:3.12-slim", "python3", "-c", "print(1)"), False)
    status = 125
    done = await programs.tool(True, asked)
    assert (done.exit_code, ran[-1][1]) == (0, True), "Docker ran nothing"
    alone = Programs(Capabilities().exec, gate, run)
    assert (await alone.tool(True, asked)).exit_code == 125
    with pytest.raises(CapabilityDenied, match="docker: true"):
        await alone.tool(False, asked)
