"""What an app says to an interaction: through its ``response_url``, or along with the acknowledgement."""

from __future__ import annotations

from typing import Any, cast

from channels.slack.fake.asking import Asked, RefusalError
from channels.slack.fake.chat import new_message
from channels.slack.fake.checking import values
from channels.slack.fake.content import content
from channels.slack.fake.rooms import change, place, remove
from channels.slack.fake.state import ReplyUrl, State
from channels.slack.fake.workspace import Grant, Json, Room

MOST_USES = 5


def respond(state: State, name: str, given: Json, notes: list[str]) -> None:
    """A call of a ``response_url``. Raises RefusalError."""
    url = state.reply_urls.get(name)
    if url is None:
        raise RefusalError("invalid_token", "a response_url that nothing gave out")
    if state.clock.now() > url.until:
        raise RefusalError("expired_url", "a response_url is used after half an hour")
    if url.uses >= MOST_USES:
        raise RefusalError("used_url", "a response_url is used a sixth time")
    say(state, url, given, notes)
    url.uses += 1


def say(state: State, url: ReplyUrl, given: Json, notes: list[str]) -> None:
    """Do what an app answers: write, replace what was acted on, or delete it. Raises RefusalError."""
    arguments = {**given, **values("chat.postMessage", given)}
    asked = Asked(
        state=state, method="response_url", arguments=arguments, grant=_voice(state, url), notes=notes
    )
    if given.get("delete_original"):
        _delete(state, url)
        return
    said = content(asked).fields()
    if given.get("replace_original") and url.source is not None:
        _replace(asked, url, said)
        return
    message = new_message(asked, url.room, said, given.get("thread_ts") or url.thread)
    if given.get("response_type") == "in_channel":
        place(state, url.room, message)
    else:
        url.room.hidden.setdefault(url.user, []).append({**message, "is_ephemeral": True})
        state.changed()


def acknowledged(state: State, url: ReplyUrl, answer: object, notes: list[str]) -> None:
    """What came along with the acknowledgement of a slash command: text, or a message."""
    given: Any = {"text": answer} if isinstance(answer, str) and answer else answer
    if isinstance(given, dict) and given:
        say(state, url, cast(Json, given), notes)


def _voice(state: State, url: ReplyUrl) -> Grant:
    """Responses need no token and no membership."""
    team = state.teams[url.room.team]
    bot = team.bot.id if team.bot else ""
    return Grant(token="", kind="bot", team=team.id, user=bot, scopes={"chat:write.customize"})


def _delete(state: State, url: ReplyUrl) -> None:
    source = url.source or ""
    if source in url.room.messages:
        remove(state, url.room, source)
    else:
        url.room.hidden[url.user] = [one for one in _hidden(url.room, url.user) if one["ts"] != source]
        state.changed()


def _replace(asked: Asked, url: ReplyUrl, said: Json) -> None:
    fields = {"blocks": None, "attachments": None, **said}
    source = url.source or ""
    if source in url.room.messages:
        change(asked.state, url.room, source, fields)
        return
    url.room.hidden[url.user] = [
        {key: value for key, value in {**one, **fields}.items() if value is not None}
        if one["ts"] == source
        else one
        for one in _hidden(url.room, url.user)
    ]
    asked.state.changed()


def _hidden(room: Room, user: str) -> list[Json]:
    return room.hidden.get(user, [])
