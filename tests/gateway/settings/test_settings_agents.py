"""Agents in their own files, beside the settings and from plugins."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import Plugin, PluginContext, SettingsError
from gateway.settings import Settings, load_settings, read_agents
from gateway.testing.chat import chatting

POET = """---
description: Writes verse: any kind
model: fast
temperature: 0.9
stopSequences: ["FIN"]
maxTokens: 99
tools: ["rhyme"]
fallback: []
# a remark
---

You are a poet. Never write ${HOME} or {file:x}.

---
That was a line.
"""


def written(folder: Path, **files: str) -> Path:
    """A folder with agents."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    return folder


def loaded(home: Path, settings: str = "") -> Settings:
    """The settings of a directory."""
    (home / "config").mkdir(exist_ok=True)
    (home / "config/trunkline.toml").write_text(settings)
    return load_settings(environ={"HOME": str(home / "user")}, cwd=home)


def test_004_T03_an_agent_may_have_its_own_file(tmp_path: Path) -> None:
    written(tmp_path / "config/agents", poet=POET, plain="Be plain.\n", README="About these.")
    agents = loaded(tmp_path).agents
    assert set(agents) == {"poet", "plain"}
    poet = agents["poet"]
    assert (poet.description, poet.model, poet.temperature) == ("Writes verse: any kind", "fast", 0.9)
    assert (poet.max_tokens, poet.tools, poet.fallback) == (99, ("rhyme",), ())
    assert poet.stop_sequences == ("FIN",)
    assert poet.system_prompt is not None
    assert poet.system_prompt.startswith("You are a poet. Never write ${HOME} or {file:x}.\n")
    assert poet.system_prompt.endswith("---\nThat was a line.")
    assert agents["plain"].system_prompt == "Be plain."


def test_files_and_tables_add_up_and_those_of_the_operator_win(tmp_path: Path) -> None:
    written(tmp_path / "config/agents", poet="---\nmodel: best\n---\n")
    written(tmp_path / "user/.config/trunkline/agents", poet=POET)
    agents = loaded(tmp_path, '[agents.poet]\nmodel = "slow"\nprovider = "groq"\n[agents.clerk]\n').agents
    assert set(agents) == {"poet", "clerk"}
    assert (agents["poet"].model, agents["poet"].provider) == ("best", "groq")
    assert agents["poet"].temperature == 0.9


def test_a_file_that_is_named_has_its_agents_beside_it(tmp_path: Path) -> None:
    written(tmp_path / "there/agents", poet="Rhyme.")
    (tmp_path / "there/own.toml").write_text("")
    assert "poet" in load_settings(tmp_path / "there/own.toml", environ={}, cwd=tmp_path).agents


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "---\nmodell: x\n---\n",
            "poet.md:2: agents.poet.modell is not a setting; did you mean agents.poet.model?",
        ),
        ("---\ntemperature: hot\n---\n", 'poet.md:2: agents.poet.temperature = "hot" must be a number'),
        (
            "---\n\ntools: rhyme\n---\n",
            'poet.md:3: agents.poet.tools = "rhyme" must be a list, like ["a", "b"]',
        ),
        ("---\nmodel: x\n", "poet.md:1: the settings are not closed; end them with a line ---"),
        ("---\n- x\n---\n", "poet.md:2: not a setting; write lines like `model: fast`"),
        ("", "poet.md: an agent file needs settings between lines of ---, or a prompt"),
    ],
)
def test_what_is_wrong_in_a_file_is_reported_by_line(tmp_path: Path, text: str, told: str) -> None:
    written(tmp_path / "config/agents", poet=text)
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path)
    assert str(caught.value) == f"config/agents/{told}"


class Brings(Plugin):
    """Brings a folder of agents."""

    name = "brings"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.agents is not None
        ctx.agents.register_source(self._folder)


async def test_002_36_agents_that_a_plugin_brings_can_be_chosen(tmp_path: Path) -> None:
    folder = written(tmp_path / "theirs", poet="---\nmodel: script/rhyme\n---\nRhyme.", clerk="Mine.")
    async with chatting(tmp_path, Brings(folder), agents={"clerk": {"model": "script/form"}}) as chat:
        for agent in ("poet", "clerk"):
            await chat.say(f"/agent {agent}")
            await chat.say("hi")
        options = [call.options for call in chat.model.calls]
    assert [each.model for each in options] == ["rhyme", "form"]
    assert options[0].system_prompt.startswith("Rhyme.")
    assert "Mine." not in options[1].system_prompt, "those of the settings count first"


async def test_a_folder_of_agents_that_cannot_be_read_keeps_nothing_from_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "theirs", poet="---\ntemperature: hot\n---\n")
    async with chatting(tmp_path, Brings(folder)) as chat:
        assert (await chat.say("hi")).text == "You said: hi"
    assert "cannot read a folder of agents" in capsys.readouterr().out
    with pytest.raises(SettingsError, match=r"poet\.md:2: temperature"):
        read_agents(folder)
    with pytest.raises(SettingsError, match="use one word other than"):
        read_agents(written(tmp_path / "others", **{"a b": "Hi."}))
