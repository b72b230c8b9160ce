"""The plugin ``snippets``: expanded texts, answers without a model, the list, and completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import PluginError
from gateway.testing.chat import chatting
from gateway.testing.served import serving
from plugins.snippets import Snippets

SETTINGS = {
    "texts": {"shorter": "Say it in one sentence.", "german": "Translate into German: {text}!"},
    "answers": {"vpn": "The VPN address is vpn.example.org.\nAsk Ada for a key."},
}


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("!german  good\nmorning", "Translate into German: good\nmorning!"),
        ("!shorter", "Say it in one sentence."),
        ("!shorter The sky is blue.", "Say it in one sentence.\n\nThe sky is blue."),
        ("!unknown thing", "!unknown thing"),
        ("Use !shorter", "Use !shorter"),
    ],
)
async def test_a_name_stands_for_its_text(tmp_path: Path, written: str, sent: str) -> None:
    async with chatting(tmp_path, Snippets(), plugins={"snippets": SETTINGS}) as chat:
        await chat.say(written)
        assert chat.model.calls[0].messages[-1].text == sent


async def test_a_stored_answer_needs_no_model(tmp_path: Path) -> None:
    async with chatting(tmp_path, Snippets(), plugins={"snippets": SETTINGS}) as chat:
        assert (await chat.say("!vpn please")).text == SETTINGS["answers"]["vpn"]
        assert chat.model.calls == []


async def test_the_command_lists_all(tmp_path: Path) -> None:
    async with chatting(tmp_path, Snippets(), plugins={"snippets": SETTINGS}) as chat:
        listed = (await chat.say("/snippets")).text
    assert listed.splitlines() == [
        "- `!german` Translate into German: {text}!",
        "- `!shorter` Say it in one sentence.",
        "- `!vpn` The VPN address is vpn.example.org.",
    ]


async def test_names_are_completed_over_the_websocket(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"plugins": {"snippets": SETTINGS}, "channels": {"websocket": {}}}
    async with serving(tmp_path, Snippets(), **settings) as served, served.socket() as client:
        await client.send(type="complete_mention", id=1, trigger="!", partial="s")
        offered = await client.until("completions")
    assert [(each["value"], each["description"]) for each in offered["completions"]] == [
        ("!shorter", "Say it in one sentence.")
    ]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"texts": {"two words": "x"}}, "has the name 'two words'; use letters, digits, _ and -"),
        ({"texts": {"empty": " "}}, "has no text for 'empty'; write one or remove the name"),
        ({"texts": {"a": "x"}, "answers": {"a": "y"}}, "has the name 'a', as texts has; rename one of them"),
    ],
)
async def test_a_wrong_snippet_stops_the_start(
    tmp_path: Path, settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(PluginError) as caught:
        async with chatting(tmp_path, Snippets(), plugins={"snippets": settings}):
            pass
    assert complaint in str(caught.value)
    assert "plugins.snippets." in str(caught.value)
