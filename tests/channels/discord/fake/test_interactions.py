"""The fake's interactions: commands and their limits, buttons, and responses in time."""

from __future__ import annotations

from typing import Any

import pytest

from channels.discord.fake import FakeDiscord
from tests.channels.discord.raw_bot import RawBot, Said

ASK: dict[str, Any] = {
    "name": "ask",
    "description": "Ask",
    "options": [{"type": 3, "name": "question", "description": "What", "required": True}],
}
BUTTONS = [{"type": 1, "components": [{"type": 2, "style": 1, "label": "Go", "custom_id": "go"}]}]


def first_code(said: Said) -> str:
    at = said.body["errors"]
    while "_errors" not in at:
        at = next(iter(at.values()))
    return at["_errors"][0]["code"]


async def register(bot: RawBot, *commands: dict[str, Any], guild: bool = False) -> Said:
    place = f"/guilds/{bot.fake.guild}" if guild else ""
    return await bot.call("PUT", f"/applications/{bot.fake.bot_id}{place}/commands", list(commands))


async def respond(bot: RawBot, told: dict[str, Any], kind: int, data: object = None, query: str = "") -> Said:
    path = f"/interactions/{told['id']}/{told['token']}/callback{query}"
    body = {"type": kind} if data is None else {"type": kind, "data": data}
    return await bot.call("POST", path, body, headers={"Authorization": "none", "User-Agent": "any"})


def hook(bot: RawBot, told: dict[str, Any], rest: str = "") -> str:
    return f"/webhooks/{bot.fake.bot_id}/{told['token']}{rest}"


async def test_a_person_types_a_command_and_is_answered(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    await register(bot, ASK)
    async with bot.session() as socket:
        key = fake.slash("general", "/ask", {"question": "why?"})
        told = await socket.until("INTERACTION_CREATE")
        assert (told["type"], told["data"]["name"]) == (2, "ask")
        assert told["data"]["options"] == [{"name": "question", "type": 3, "value": "why?"}]
        assert told["member"]["user"]["username"] == "ada"
        assert (told["guild_id"], told["context"]) == (str(fake.guild), 0)
        said = await respond(bot, told, 4, {"content": "because"})
        assert said.status == 204
        message = await socket.until("MESSAGE_CREATE")
    assert (message["type"], message["content"]) == (20, "because")
    assert message["interaction_metadata"]["id"] == str(key)
    assert message["application_id"] == str(fake.bot_id)
    assert fake.interaction(key).state == "answered"
    fake.transcript.check()


async def test_an_answer_comes_back_when_it_is_asked_for(bot: RawBot, fake: FakeDiscord) -> None:
    await register(bot, ASK)
    async with bot.session() as socket:
        fake.slash("general", "ask", {"question": "why?"})
        told = await socket.until("INTERACTION_CREATE")
    said = await respond(bot, told, 4, {"content": "x"}, "?with_response=true")
    assert said.body["resource"]["message"]["content"] == "x"
    assert said.body["interaction"]["response_message_loading"] is False


async def test_an_answer_is_deferred_then_given_and_followed_up(bot: RawBot, fake: FakeDiscord) -> None:
    await register(bot, ASK)
    async with bot.session() as socket:
        key = fake.slash("general", "ask", {"question": "why?"})
        told = await socket.until("INTERACTION_CREATE")
        early = await bot.call("POST", hook(bot, told), {"content": "too early"})
        assert early.code == 10015
        await respond(bot, told, 5)
        waiting = await socket.until("MESSAGE_CREATE")
        assert waiting["flags"] == 128
        assert fake.interaction(key).state == "deferred"
        changed = await bot.call("PATCH", hook(bot, told, "/messages/@original"), {"content": "because"})
        assert (changed.body["id"], changed.body["flags"]) == (waiting["id"], 0)
        assert (await socket.until("MESSAGE_UPDATE"))["content"] == "because"
        more = await bot.call("POST", hook(bot, told), {"content": "and also"})
        assert fake.answers("general") == ["because", "and also"]
        path = hook(bot, told, f"/messages/{more.body['id']}")
        assert (await bot.call("PATCH", path, {"content": "or not"})).body["content"] == "or not"
        assert (await bot.call("GET", path)).body["content"] == "or not"
        assert (await bot.call("DELETE", path)).status == 204
        assert (await bot.call("GET", path)).code == 10008
    assert fake.interaction(key).state == "answered"
    assert fake.answers("general") == ["because"]


async def test_the_first_follow_up_of_a_deferred_answer_is_the_answer(bot: RawBot, fake: FakeDiscord) -> None:
    await register(bot, ASK)
    async with bot.session() as socket:
        fake.slash("general", "ask", {"question": "why?"})
        told = await socket.until("INTERACTION_CREATE")
        await respond(bot, told, 5, {"flags": 64})
        said = await bot.call("POST", hook(bot, told), {"content": "because"})
        assert said.body["flags"] == 64, "what was private when it was deferred stays so"
        original = await bot.call("GET", hook(bot, told, "/messages/@original"))
    assert original.body["id"] == said.body["id"]
    assert [message.reader for message in fake.messages("general")] == [fake.user("ada").id]


async def test_a_private_answer_is_only_seen_by_its_reader(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    await register(bot, ASK)
    async with bot.session() as socket:
        fake.slash("general", "ask", {"question": "why?"})
        told = await socket.until("INTERACTION_CREATE")
        await respond(bot, told, 4, {"content": "psst", "flags": 64, "components": BUTTONS})
        assert all(p["t"] != "MESSAGE_CREATE" for p in await socket.settled())
    message = fake.messages("general")[0]
    assert message.ephemeral
    assert (await bot.call("GET", f"/channels/{general}/messages/{message.id}")).code == 10008
    assert (await bot.call("GET", f"/channels/{general}/messages")).body == []
    with pytest.raises(LookupError):
        fake.press("general", message.id, "go", "bob")
    fake.press("general", message.id, "go", "ada")


async def test_an_interaction_is_answered_once(bot: RawBot, fake: FakeDiscord) -> None:
    await register(bot, ASK)
    async with bot.session() as socket:
        fake.slash("general", "ask", {"question": "why?"})
        told = await socket.until("INTERACTION_CREATE")
    await respond(bot, told, 5)
    said = await respond(bot, told, 4, {"content": "x"})
    assert (said.status, said.code) == (400, 40060)


async def test_an_answer_has_three_seconds_and_a_token_fifteen_minutes(
    bot: RawBot, fake: FakeDiscord
) -> None:
    await register(bot, ASK)
    async with bot.session() as socket:
        late = fake.slash("general", "ask", {"question": "why?"})
        told = await socket.until("INTERACTION_CREATE")
        assert not fake.failed(late)
        fake.advance(3.1)
        assert fake.failed(late)
        said = await respond(bot, told, 4, {"content": "x"})
        assert (said.status, said.code) == (404, 10062)
        fake.slash("general", "ask", {"question": "why?"})
        told = await socket.until("INTERACTION_CREATE")
    await respond(bot, told, 5)
    fake.advance(890)
    path = hook(bot, told, "/messages/@original")
    assert (await bot.call("PATCH", path, {"content": "in time"})).status == 200
    fake.advance(11)
    said = await bot.call("PATCH", path, {"content": "too late"})
    assert (said.status, said.code) == (401, 50027)
    fake.transcript.check()


async def test_a_wrong_token_is_unknown(bot: RawBot, fake: FakeDiscord) -> None:
    await register(bot, ASK)
    key = fake.slash("general", "ask", {"question": "why?"})
    said = await respond(bot, {"id": key, "token": "guessed"}, 4, {"content": "x"})
    assert (said.status, said.code) == (404, 10062)
    assert (await bot.call("POST", f"/webhooks/{fake.bot_id}/guessed", {"content": "x"})).code == 10015


async def test_a_button_is_pressed_and_its_message_changed(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    key = int((await bot.send(general, "ready?", components=BUTTONS)).body["id"])
    async with bot.session() as socket:
        fake.press("general", key, "go", "bob")
        told = await socket.until("INTERACTION_CREATE")
        assert (told["type"], told["data"]["custom_id"]) == (3, "go")
        assert told["message"]["id"] == str(key)
        said = await respond(bot, told, 7, {"content": "gone", "components": []}, "?with_response=1")
        assert said.body["resource"]["type"] == 7
        assert (await socket.until("MESSAGE_UPDATE"))["content"] == "gone"
    assert fake.answers("general") == ["gone"]
    with pytest.raises(LookupError):
        fake.press("general", key, "go")


async def test_a_button_is_acknowledged_and_its_message_changed_later(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    key = int((await bot.send(general, "ready?", components=BUTTONS)).body["id"])
    async with bot.session() as socket:
        pressed = fake.press("general", key, "go")
        told = await socket.until("INTERACTION_CREATE")
    await respond(bot, told, 6)
    assert fake.interaction(pressed).state == "deferred update"
    await bot.call("PATCH", hook(bot, told, "/messages/@original"), {"content": "gone"})
    follow_up = await bot.call("POST", hook(bot, told), {"content": "more"})
    assert follow_up.body["message_reference"]["message_id"] == str(key)
    assert fake.answers("general") == ["gone", "more"]


async def test_a_command_has_no_message_to_change(bot: RawBot, fake: FakeDiscord) -> None:
    await register(bot, ASK)
    async with bot.session() as socket:
        fake.slash("general", "ask", {"question": "why?"})
        told = await socket.until("INTERACTION_CREATE")
    said = await respond(bot, told, 7, {"content": "x"})
    assert (said.status, said.code) == (400, 50035)
    assert (await respond(bot, told, 9, {"custom_id": "m", "title": "t", "components": []})).status in (
        400,
        501,
    )


async def test_menus_give_the_values_that_were_chosen(bot: RawBot, fake: FakeDiscord, general: int) -> None:
    options = [{"label": text, "value": text} for text in "ab"]
    menu = [{"type": 1, "components": [{"type": 3, "custom_id": "pick", "options": options}]}]
    key = int((await bot.send(general, "which?", components=menu)).body["id"])
    async with bot.session() as socket:
        fake.press("general", key, "pick", values=["b"])
        told = await socket.until("INTERACTION_CREATE")
    assert (told["data"]["component_type"], told["data"]["values"]) == (3, ["b"])


async def test_commands_in_the_menus_of_people_and_messages(
    bot: RawBot, fake: FakeDiscord, general: int
) -> None:
    await register(bot, {"name": "Who is this", "type": 2}, {"name": "Explain", "type": 3})
    said = fake.say("general", "42")
    async with bot.session() as socket:
        fake.pick("general", "Who is this", fake.user("bob"))
        told = await socket.until("INTERACTION_CREATE")
        assert told["data"]["resolved"]["users"][told["data"]["target_id"]]["username"] == "bob"
        fake.pick("general", "Explain", said)
        told = await socket.until("INTERACTION_CREATE")
        assert told["data"]["resolved"]["messages"][str(said)]["content"] == "42"
        await respond(bot, told, 4, {"content": "the answer"})
        assert (await socket.until("MESSAGE_CREATE"))["type"] == 23


async def test_a_command_in_a_direct_conversation_comes_from_a_user(bot: RawBot, fake: FakeDiscord) -> None:
    await register(bot, ASK, {"name": "guilds-only", "description": "x", "contexts": [0]})
    async with bot.session() as socket:
        fake.slash(fake.dm("bob"), "ask", {"question": "why?"}, "bob")
        told = await socket.until("INTERACTION_CREATE")
    assert (told["user"]["username"], told["context"]) == ("bob", 1)
    assert "member" not in told
    assert "guild_id" not in told
    with pytest.raises(LookupError):
        fake.slash(fake.dm("bob"), "guilds-only", user="bob")


async def test_commands_in_groups_and_people_as_options(bot: RawBot, fake: FakeDiscord) -> None:
    who = {"type": 6, "name": "who", "description": "Whom", "required": True}
    ban = {"type": 1, "name": "ban", "description": "Ban", "options": [who]}
    await register(bot, {"name": "admin", "description": "x", "options": [ban]}, guild=True)
    async with bot.session() as socket:
        fake.slash("general", "admin ban", {"who": fake.user("bob")})
        told = await socket.until("INTERACTION_CREATE")
    bob = str(fake.user("bob").id)
    assert told["data"]["guild_id"] == str(fake.guild)
    assert told["data"]["options"] == [
        {"name": "ban", "type": 1, "options": [{"name": "who", "type": 6, "value": bob}]}
    ]
    assert told["data"]["resolved"]["members"][bob]["permissions"]


async def test_people_cannot_type_what_is_not_there(bot: RawBot, fake: FakeDiscord) -> None:
    await register(bot, ASK)
    with pytest.raises(LookupError):
        fake.slash("general", "nothing")
    with pytest.raises(LookupError):
        fake.slash("general", "ask")


async def test_registering_again_keeps_ids_and_drops_the_rest(bot: RawBot) -> None:
    first = await register(bot, ASK, {"name": "old", "description": "x"})
    second = await register(bot, {**ASK, "description": "Ask me"})
    assert [command["id"] for command in second.body] == [first.body[0]["id"]]
    assert second.body[0]["version"] != first.body[0]["version"]
    listed = await bot.call("GET", f"/applications/{bot.fake.bot_id}/commands")
    assert listed.body == second.body


async def test_commands_one_by_one(bot: RawBot) -> None:
    path = f"/applications/{bot.fake.bot_id}/guilds/{bot.fake.guild}/commands"
    made = await bot.call("POST", path, ASK)
    again = await bot.call("POST", path, {**ASK, "description": "again"})
    assert (made.status, again.status, again.body["id"]) == (201, 200, made.body["id"])
    one = f"{path}/{made.body['id']}"
    assert (await bot.call("PATCH", one, {"description": "third"})).body["description"] == "third"
    assert (await bot.call("GET", one)).body["options"] == ASK["options"]
    assert (await bot.call("DELETE", one)).status == 204
    assert (await bot.call("GET", one)).code == 10063
    assert (await bot.call("GET", "/applications/17/commands")).code == 20012
    assert (await bot.call("GET", f"/applications/{bot.fake.bot_id}/guilds/17/commands")).code == 50001


@pytest.mark.parametrize(
    ("commands", "code"),
    [
        ([{"name": "Ask", "description": "x"}], "APPLICATION_COMMAND_INVALID_NAME"),
        ([{"name": "a b", "description": "x"}], "APPLICATION_COMMAND_INVALID_NAME"),
        ([{"name": "x" * 33, "description": "x"}], "BASE_TYPE_BAD_LENGTH"),
        ([{"name": "x"}], "BASE_TYPE_REQUIRED"),
        ([{"name": "x", "description": "x" * 101}], "BASE_TYPE_MAX_LENGTH"),
        (
            [{"name": "x", "type": 3, "description": "y"}],
            "APPLICATION_COMMAND_CONTEXT_MENU_DESCRIPTION_INVALID",
        ),
        ([{"name": "x", "description": "x"}] * 2, "APPLICATION_COMMANDS_DUPLICATE_NAME"),
        (
            [
                {
                    "name": "x",
                    "description": "x",
                    "options": [
                        {"type": 3, "name": "a", "description": "x"},
                        {"type": 3, "name": "b", "description": "x", "required": True},
                    ],
                }
            ],
            "APPLICATION_COMMAND_OPTIONS_REQUIRED_INVALID",
        ),
        (
            [
                {
                    "name": "x",
                    "description": "x",
                    "options": [
                        {
                            "type": 3,
                            "name": f"o{n}",
                            "description": "x" * 100,
                            "choices": [{"name": "y" * 50, "value": f"{m}" + "z" * 50} for m in range(10)],
                        }
                        for n in range(8)
                    ],
                }
            ],
            "APPLICATION_COMMAND_TOO_LARGE",
        ),
    ],
)
async def test_wrong_commands_are_refused(bot: RawBot, commands: list[Any], code: str) -> None:
    said = await register(bot, *commands)
    assert (said.status, first_code(said)) == (400, code)
    assert bot.fake.transcript.problems


@pytest.mark.parametrize(("kind", "most"), [(1, 100), (2, 15), (3, 15)])
async def test_there_is_a_most_of_commands_in_a_place(bot: RawBot, kind: int, most: int) -> None:
    def command(number: int) -> dict[str, Any]:
        return {"name": f"c{number}", "type": kind, "description": "x" if kind == 1 else ""}

    said = await register(bot, *[command(number) for number in range(most + 1)])
    assert said.code == 30032
    assert (await register(bot, *[command(number) for number in range(most)])).status == 200
    path = f"/applications/{bot.fake.bot_id}/commands"
    assert (await bot.call("POST", path, command(most))).code == 30032
    assert (await register(bot, command(most), guild=True)).status == 200


async def test_two_hundred_commands_are_made_a_day(bot: RawBot, fake: FakeDiscord) -> None:
    def commands(letter: str) -> list[dict[str, Any]]:
        return [{"name": f"{letter}{number}", "description": "x"} for number in range(100)]

    for letter in "ab":
        assert (await register(bot, *commands(letter))).status == 200
    assert (await register(bot, *commands("b"))).status == 200, "known ones do not count"
    said = await register(bot, *commands("c"))
    assert (said.status, said.code) == (400, 30034)
    fake.advance(86_401)
    assert (await register(bot, *commands("c"))).status == 200


COMPLETED: dict[str, Any] = {
    "name": "pick",
    "description": "Pick",
    "options": [{"type": 3, "name": "fruit", "description": "Which", "required": True, "autocomplete": True}],
}


async def test_choices_are_offered_while_a_user_types(bot: RawBot, fake: FakeDiscord) -> None:
    await register(bot, COMPLETED, ASK)
    many = [{"name": f"{number}", "value": f"{number}"} for number in range(26)]
    async with bot.session() as socket:
        key = fake.complete("general", "pick", "ap", option="fruit")
        told = await socket.until("INTERACTION_CREATE")
        assert told["type"] == 4
        assert told["data"]["options"] == [{"name": "fruit", "type": 3, "value": "ap", "focused": True}]
        assert (await respond(bot, told, 5)).status == 400
        assert (await respond(bot, told, 4, {"content": "x"})).status == 400
        assert (await respond(bot, told, 8, {"choices": many})).status == 400
        for name, value in (("x" * 101, "x"), ("x", "x" * 101), ("", "x"), ("x", "")):
            assert (await respond(bot, told, 8, {"choices": [{"name": name, "value": value}]})).status == 400
        assert (await respond(bot, told, 8, {"choices": many[:25]})).status == 204
        assert (await respond(bot, told, 8, {"choices": []})).body["code"] == 40060
        fake.slash("general", "ask", {"question": "why?"})
        assert (
            await respond(bot, await socket.until("INTERACTION_CREATE"), 8, {"choices": []})
        ).status == 400
    assert fake.choices(key)[24] == ("24", "24")
    assert fake.messages("general") == []
    with pytest.raises(LookupError):
        fake.complete("general", "ask", "w", option="question")
    both = {**COMPLETED["options"][0], "choices": [{"name": "a", "value": "a"}]}
    for option in (both, {**COMPLETED["options"][0], "type": 5}):
        assert (await register(bot, {**COMPLETED, "options": [option]})).status == 400
