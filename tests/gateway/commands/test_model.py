"""/model and /agent: who answers in a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.provider_http import ServerFailedError
from gateway.testing.chat import ScriptedModel, chatting
from gateway.testing.fake_models.server import FakeModels
from tests.gateway.pipeline.test_fallback import Backups

SEVERAL: dict[str, Any] = {
    "agents": {
        "poet": {"description": "Writes verse", "model": "script/rhyme", "system_prompt": "Rhyme."},
        "clerk": {"model": "script/form", "temperature": 0.0, "max_tokens": 99},
    }
}


def asked(model: ScriptedModel) -> list[str]:
    """The models that were asked, in order."""
    return [call.options.model for call in model.calls]


async def test_model_shows_what_there_is_and_how_to_choose(tmp_path: Path) -> None:
    aliases = {"fast": "script/quick"}
    async with chatting(tmp_path, aliases=aliases) as chat:
        lines = (await chat.say("/model")).text.split("\n\n")
        assert lines == [
            "The model is `script/one`.",
            "Other models: `fast` (script/quick).",
            "`/model NAME` selects another one.",
        ]
        await chat.say("/model fast")
        lines = (await chat.say("/model")).text.split("\n\n")
    assert lines == [
        "The model is `fast`; the default is `script/one`.",
        "Other models: `script/one`.",
        "`/model NAME` selects another one; `/model default` restores the default.",
    ]


async def test_model_takes_names_of_every_kind_and_goes_back(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        settings: dict[str, Any] = {
            "aliases": {"fast": "script/quick"},
            "providers": {"desk": {"base_url": fake.openai_url}},
        }
        async with chatting(tmp_path, **settings) as chat:
            told = [
                (await chat.say(f"/model {name}")).text
                for name in ("fast", "fake-small", "script/two", "default", "nobody-has-it")
            ]
            shown = (await chat.say("/model")).text
    assert told[:4] == [
        "This session now uses `fast` (script/quick).",
        "This session now uses `fake-small` (desk/fake-small).",
        "This session now uses `script/two`.",
        "This session uses the default model again, `script/one`.",
    ]
    assert told[4].startswith("The model is unchanged: no configured provider offers a model 'nobody-has-it'")
    assert "`desk/fake-small`" in shown
    assert "`desk/fake-large`" in shown


async def test_an_alias_means_what_the_settings_say_at_the_time(tmp_path: Path) -> None:
    async with chatting(tmp_path, aliases={"fast": "script/quick"}) as chat:
        await chat.say("/model fast")
        await chat.say("hi")
        first = asked(chat.model)
    async with chatting(tmp_path, aliases={"fast": "script/quicker"}) as chat:
        await chat.say("hi")
        assert (first, asked(chat.model)) == (["quick"], ["quicker"])


async def test_004_41_every_agent_has_its_own_way(tmp_path: Path) -> None:
    async with chatting(tmp_path, system_prompt="Be plain.", temperature=1.0, **SEVERAL) as chat:
        for agent in ("main", "poet", "clerk"):
            assert (await chat.say(f"/agent {agent}")).text == f"This session now uses the agent `{agent}`."
            await chat.say("hi")
        options = [call.options for call in chat.model.calls]
    assert [each.model for each in options] == ["one", "rhyme", "form"]
    assert [each.system_prompt.split("\n")[0] for each in options] == ["Be plain.", "Rhyme.", "Be plain."]
    assert [each.temperature for each in options] == [1.0, 1.0, 0.0]
    assert [each.max_tokens for each in options] == [None, None, 99]


async def test_an_agent_is_chosen_for_a_session_and_outlives_a_restart(tmp_path: Path) -> None:
    async with chatting(tmp_path, **SEVERAL) as chat:
        await chat.say("/agent poet")
    async with chatting(tmp_path, **SEVERAL) as chat:
        await chat.say("hi")
        await chat.say("hi", "other")
        assert asked(chat.model) == ["rhyme", "one"]
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        assert asked(chat.model) == ["one"], "one that is gone answers nowhere"


async def test_agent_shows_who_there_is(tmp_path: Path) -> None:
    async with chatting(tmp_path, **SEVERAL) as chat:
        shown = (await chat.say("/agent")).text
        await chat.say("/agent poet")
        status = (await chat.say("/status")).text.splitlines()
    lines = shown.splitlines()
    assert lines[:3] == ["The agent is `main`.", "- `poet` Writes verse", "- `clerk`"]
    assert [line.split()[1] for line in lines[3:6]] == ["`general`", "`explore`", "`plan`"]
    assert lines[-1] == "`/agent NAME` selects another one."
    assert status[1:3] == ["- agent `poet`", "- model `script/rhyme`"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pote", "did you mean poet?"),
        ("zzz", "agents are main, poet, clerk, general, explore, plan"),
        ("Poet", "did you mean poet?"),
    ],
)
async def test_an_agent_that_there_is_not_changes_nothing(tmp_path: Path, name: str, told: str) -> None:
    async with chatting(tmp_path, **SEVERAL) as chat:
        said = (await chat.say(f"/agent {name}")).text
        assert said.startswith(f"The agent is unchanged: unknown agent {name!r}; ")
        assert said.endswith(told)
        assert (await chat.say("/agent")).text.startswith("The agent is `main`.")


async def test_a_chosen_model_stays_chosen_after_a_fallback(tmp_path: Path) -> None:
    async with chatting(tmp_path, **SEVERAL) as chat:
        await chat.say("/model script/two")
        said = (await chat.say("/agent poet")).text
        await chat.say("hi")
        back = (await chat.say("/model default")).text
        await chat.say("hi")
    assert said.endswith(" with the model `script/two` selected in this session.")
    assert back == "This session uses the default model again, `script/rhyme`."
    assert asked(chat.model) == ["two", "rhyme"]


async def test_a_channel_and_an_account_of_it_have_their_own_agents(tmp_path: Path) -> None:
    channels = {
        "phone": {"enabled": False, "agent": "poet", "accounts": {"desk": {"agent": "clerk"}, "shop": {}}}
    }
    async with chatting(tmp_path, channels=channels, **SEVERAL) as chat:
        for number, channel in enumerate(("phone", "phone.desk", "phone.shop", "test")):
            await chat.say("hi", f"s{number}", channel=channel)
        await chat.say("/agent main", "s0", channel="phone")
        await chat.say("hi", "s0", channel="phone")
        await chat.say("/agent default", "s0", channel="phone")
        await chat.say("hi", "s0", channel="phone")
    assert asked(chat.model) == ["rhyme", "form", "rhyme", "one", "one", "rhyme"]


async def test_004_35_an_agent_has_its_own_chain(tmp_path: Path) -> None:
    backups = Backups()
    settings: dict[str, Any] = {
        "fallback": ["second/big"],
        "agents": {
            "poet": {"fallback": ["third/verse"]},
            "alone": {"fallback": []},
            "picky": {"fallback_triggers": ["rate_limit"]},
        },
    }
    async with chatting(tmp_path, backups, **settings) as chat:
        answered: list[str | None] = []
        for agent in ("main", "poet", "alone", "picky"):
            await chat.say(f"/agent {agent}", agent)
            chat.model.then(ServerFailedError("oh"))
            answered.append((await chat.say("hi", agent)).metadata.provider)
    assert answered == ["second", "third", "script", "script"]


async def test_what_one_agent_learns_of_a_provider_all_of_them_know(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"fallback": ["second/big"], "agents": {"poet": {"fallback": ["third/verse"]}}}
    async with chatting(tmp_path, Backups(), **settings) as chat:
        chat.model.then(*[ServerFailedError("oh")] * 3)
        for _ in range(3):
            await chat.say("hi")
        await chat.say("/agent poet", "other")
        await chat.say("hi", "other")
    assert len(chat.model.calls) == 3
