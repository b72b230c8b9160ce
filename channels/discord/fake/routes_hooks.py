"""Calls that answer interactions: the first response, and messages sent with an interaction's token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from channels.discord.fake.calls import Answer, ApiCall, Handler
from channels.discord.fake.drafts import Draft, Drafts
from channels.discord.fake.errors import (
    ALREADY_ACKNOWLEDGED,
    EXPIRED_TOKEN,
    UNKNOWN_INTERACTION,
    UNKNOWN_MESSAGE,
    UNKNOWN_WEBHOOK,
    ApiError,
    invalid,
    unmodelled,
)
from channels.discord.fake.interactions import Interactions
from channels.discord.fake.nouns import (
    COMMAND,
    CONTEXT_COMMAND,
    DEFAULT,
    EPHEMERAL,
    LOADING,
    REPLY,
    Channel,
    Interaction,
    Message,
    Reference,
)
from channels.discord.fake.rooms import Rooms
from channels.discord.fake.views import Views
from channels.discord.fake.world import World

_HOOK: Final = "/webhooks/{webhook_id}/{webhook_token}"
_PRESSED: Final = 3
_MESSAGE, _DEFER, _DEFER_UPDATE, _UPDATE = 4, 5, 6, 7


class HookRoutes:
    """Handles calls that answer interactions."""

    def __init__(
        self, world: World, rooms: Rooms, views: Views, drafts: Drafts, interactions: Interactions
    ) -> None:
        self._world = world
        self._rooms = rooms
        self._views = views
        self._drafts = drafts
        self._interactions = interactions

    def handlers(self) -> Mapping[str, Handler]:
        """The calls that are handled here."""
        found: dict[str, Handler] = {
            "POST /interactions/{interaction_id}/{interaction_token}/callback": self._respond,
            f"POST {_HOOK}": self._follow_up,
        }
        for which in ("@original", "{message_id}"):
            found |= {
                f"GET {_HOOK}/messages/{which}": self._get,
                f"PATCH {_HOOK}/messages/{which}": self._edit,
                f"DELETE {_HOOK}/messages/{which}": self._delete,
            }
        return found

    def _respond(self, call: ApiCall) -> Answer:
        interaction = self._world.interactions.get(call.id("interaction_id"))
        if interaction is None or interaction.token != call.path["interaction_token"]:
            raise ApiError(UNKNOWN_INTERACTION)
        if interaction.state != "waiting":
            raise ApiError(ALREADY_ACKNOWLEDGED)
        if self._interactions.failed(interaction):
            raise ApiError(UNKNOWN_INTERACTION)
        kind = int(call.body["type"])
        body: Mapping[str, Any] = call.body.get("data") or {}
        if kind in (_DEFER_UPDATE, _UPDATE):
            interaction, problem = self._update(interaction, kind, call, body)
        elif kind in (_MESSAGE, _DEFER):
            interaction, problem = self._reply(interaction, kind, call, body)
        else:
            raise unmodelled(f"interaction response of type {kind}")
        if call.query.get("with_response", "").lower() not in ("true", "1"):
            return Answer(204, None, problem)
        return Answer(200, self._told(interaction, kind), problem)

    def _update(
        self, interaction: Interaction, kind: int, call: ApiCall, body: Mapping[str, Any]
    ) -> tuple[Interaction, str | None]:
        if interaction.kind != _PRESSED:
            message = f"Value must be one of {{{_MESSAGE}, {_DEFER}, 9, 10, 12}}."
            raise invalid("type", "BASE_TYPE_CHOICES", message)
        pressed = self._world.messages[interaction.channel].get(interaction.pressed or 0)
        if pressed is None:
            raise ApiError(UNKNOWN_MESSAGE)
        if kind == _DEFER_UPDATE:
            settled = self._interactions.settle(interaction, state="deferred update", response=pressed.id)
            return settled, None
        draft = self._drafts.edit(body, call.files, pressed)
        self._rooms.change(_with(pressed, draft))
        return self._interactions.settle(interaction, state="answered", response=pressed.id), draft.problem

    def _reply(
        self, interaction: Interaction, kind: int, call: ApiCall, body: Mapping[str, Any]
    ) -> tuple[Interaction, str | None]:
        message = self._begun(interaction, first=True)
        if kind == _DEFER:
            flags = LOADING | (int(body.get("flags") or 0) & EPHEMERAL)
            message = self._post(replace(message, flags=flags), interaction)
            return self._interactions.settle(interaction, state="deferred", response=message.id), None
        draft = self._drafts.new(body, call.files, self._room(interaction), interaction=True)
        message = self._post(replace(_with(message, draft), tts=bool(body.get("tts"))), interaction)
        return self._interactions.settle(interaction, state="answered", response=message.id), draft.problem

    def _told(self, interaction: Interaction, kind: int) -> dict[str, Any]:
        response = self._world.messages[interaction.channel].get(interaction.response or 0)
        about: dict[str, Any] = {"id": str(interaction.id), "type": interaction.kind}
        if response is not None:
            about |= {
                "response_message_id": str(response.id),
                "response_message_loading": response.loading,
                "response_message_ephemeral": response.ephemeral,
                "channel_id": str(response.channel),
            }
            if interaction.guild is not None:
                about["guild_id"] = str(interaction.guild)
            if kind in (_MESSAGE, _UPDATE):
                resource = {"type": kind, "message": self._views.message(response)}
                return {"interaction": about, "resource": resource}
        return {"interaction": about}

    def _follow_up(self, call: ApiCall) -> Answer:
        interaction = self._interaction(call)
        response = self._world.messages[interaction.channel].get(interaction.response or 0)
        if interaction.state == "deferred" and response is not None and response.loading:
            return self._changed(call, interaction, response)
        draft = self._drafts.new(call.body or {}, call.files, self._room(interaction), interaction=True)
        message = _with(self._begun(interaction, first=False), draft)
        message = self._post(replace(message, tts=bool(call.body.get("tts"))), interaction)
        self._interactions.settle(interaction, followups=(*interaction.followups, message.id))
        return Answer(200, self._views.message(message), draft.problem)

    def _get(self, call: ApiCall) -> Answer:
        _, message = self._found(call)
        return Answer(200, self._views.message(message))

    def _edit(self, call: ApiCall) -> Answer:
        return self._changed(call, *self._found(call))

    def _delete(self, call: ApiCall) -> Answer:
        _, message = self._found(call)
        self._rooms.remove(message)
        return Answer()

    def _changed(self, call: ApiCall, interaction: Interaction, message: Message) -> Answer:
        draft = self._drafts.edit(call.body or {}, call.files, message)
        kept = message.flags & EPHEMERAL
        changed = replace(_with(message, draft), flags=(draft.flags & ~(LOADING | EPHEMERAL)) | kept)
        message = self._rooms.change(changed, edited=not message.loading)
        if interaction.state == "deferred":
            self._interactions.settle(interaction, state="answered")
        return Answer(200, self._views.message(message), draft.problem)

    def _found(self, call: ApiCall) -> tuple[Interaction, Message]:
        interaction = self._interaction(call)
        if "message_id" in call.path:
            key = call.id("message_id")
            if key not in (interaction.response, *interaction.followups):
                raise ApiError(UNKNOWN_MESSAGE)
        else:
            key = interaction.response or 0
        message = self._world.messages[interaction.channel].get(key)
        if message is None:
            raise ApiError(UNKNOWN_MESSAGE)
        return interaction, message

    def _interaction(self, call: ApiCall) -> Interaction:
        """The interaction whose token stands in the path. Before the first response it is not known there."""
        token = call.path["webhook_token"]
        for interaction in self._world.interactions.values():
            if interaction.token == token and call.id("webhook_id") == self._world.bot.id:
                if interaction.state == "waiting":
                    raise ApiError(UNKNOWN_WEBHOOK)
                if not self._interactions.live(interaction):
                    raise ApiError(EXPIRED_TOKEN)
                return interaction
        raise ApiError(UNKNOWN_WEBHOOK)

    def _room(self, interaction: Interaction) -> Channel:
        return self._world.channels[interaction.channel]

    def _begun(self, interaction: Interaction, *, first: bool) -> Message:
        """An empty message that answers an interaction."""
        kind = DEFAULT
        reference = None
        if interaction.kind == _PRESSED:
            kind = REPLY
            reference = Reference(interaction.pressed, interaction.channel, interaction.guild)
        elif first:
            aimed = interaction.target_user or interaction.target_message
            kind = CONTEXT_COMMAND if aimed else COMMAND
            if interaction.target_message is not None:
                reference = Reference(interaction.target_message, interaction.channel, interaction.guild)
        elif interaction.response is not None:
            kind = REPLY
            reference = Reference(interaction.response, interaction.channel, interaction.guild)
        return Message(
            id=self._world.ids.new(),
            channel=interaction.channel,
            author=self._world.bot.id,
            at=self._world.clock.now(),
            kind=kind,
            hook=True,
            reference=reference,
            origin=self._views.interaction_origin(interaction),
        )

    def _post(self, message: Message, interaction: Interaction) -> Message:
        reader = interaction.user if message.ephemeral else None
        return self._rooms.post(replace(message, reader=reader))


def _with(message: Message, draft: Draft) -> Message:
    return replace(
        message,
        content=draft.content,
        embeds=draft.embeds,
        components=draft.components,
        attachments=draft.attachments,
        flags=draft.flags,
        mentions=draft.mentions,
    )
