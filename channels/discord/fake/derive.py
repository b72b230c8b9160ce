"""Make ``schema.json`` from published specifications: which calls there are, and what each of them takes.

    python derive.py openapi.json gateway-send.schema.json > schema.json
    python derive.py --answers openapi.json gateway-receive.schema.json > answers.json

The first is the platform's OpenAPI document, the second a JSON Schema of what goes over the gateway in one
direction. With ``--answers`` the result says what the platform itself answers and sends; tests hold the fake
against it. A node of the result is a type's name, or an object with some of: ``type``, ``ref``, ``null``,
``min`` and ``max`` (of a number, or of a length), ``enum``, ``items``, ``props`` and ``need``, ``values``,
``one`` (any of these), ``unique``, ``format``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

Node = Any
"""A node of a specification, or of the result: JSON."""

_CHANNEL, _MESSAGE = "/channels/{channel_id}", "/channels/{channel_id}/messages/{message_id}"
_REACTION = _MESSAGE + "/reactions/{emoji_name}"
_COMMANDS = ("/applications/{application_id}", "/applications/{application_id}/guilds/{guild_id}")
_HOOK = "/webhooks/{webhook_id}/{webhook_token}"
CALLS: Final[Mapping[str, str]] = {
    "/applications/@me": "get",
    "/oauth2/applications/@me": "get",
    "/gateway": "get",
    "/gateway/bot": "get",
    "/users/@me": "get",
    "/users/@me/guilds": "get",
    "/users/@me/channels": "post",
    "/users/{user_id}": "get",
    "/guilds/{guild_id}": "get",
    "/guilds/{guild_id}/channels": "get",
    "/guilds/{guild_id}/members/{user_id}": "get",
    "/guilds/{guild_id}/roles": "get",
    "/guilds/{guild_id}/threads/active": "get",
    _CHANNEL: "get patch delete",
    _CHANNEL + "/messages": "get post",
    _CHANNEL + "/messages/bulk-delete": "post",
    _MESSAGE: "get patch delete",
    _MESSAGE + "/reactions": "delete",
    _REACTION: "get delete",
    _REACTION + "/@me": "put delete",
    _REACTION + "/{user_id}": "delete",
    _MESSAGE + "/threads": "post",
    _CHANNEL + "/threads": "post",
    _CHANNEL + "/threads/archived/public": "get",
    _CHANNEL + "/thread-members/@me": "put delete",
    _CHANNEL + "/typing": "post",
    **{f"{prefix}/commands": "get put post" for prefix in _COMMANDS},
    **{f"{prefix}/commands/{{command_id}}": "get patch delete" for prefix in _COMMANDS},
    "/interactions/{interaction_id}/{interaction_token}/callback": "post",
    _HOOK: "post",
    _HOOK + "/messages/@original": "get patch delete",
    _HOOK + "/messages/{message_id}": "get patch delete",
}
"""The paths and verbs that the fake knows."""

_OPS = {
    "2": "GatewayIdentifyData",
    "3": "GatewayPresenceUpdateData",
    "4": "GatewayVoiceStateUpdateData",
    "6": "GatewayResumeData",
    "8": "GatewayRequestGuildMembersData",
}
_EVENTS = (
    "Ready GuildCreate ChannelCreate ChannelUpdate ChannelDelete ThreadCreate ThreadUpdate ThreadDelete "
    "ThreadMembersUpdate MessageCreate MessageUpdate MessageDelete MessageDeleteBulk MessageReactionAdd "
    "MessageReactionRemove MessageReactionRemoveAll MessageReactionRemoveEmoji TypingStart "
    "InteractionCreate GuildMembersChunk GuildMemberAdd"
)
_MEANINGLESS = (1521, 152133)
"""Stand-ins for "no limit of its own"."""

_LEFT_OUT = re.compile(
    "ForModal|Forum|Poll|ClientTheme|Autocomplete|SocialLayer|LaunchActivity|ScheduledEvent|Presence(?!Update)|"
    "Sticker|Soundboard|Stage|Voice(?!StateUpdateData)|Entitlement|PrimaryEntryPoint|Ping|ModalSubmit|Media(?!G)|"
    "GuildFeature|OAuth2Scopes|Lobby|Snapshot|Purchase|RoleSubscription|MessageCall|GroupDM|APIGroup|Directory|"
    "APIApplication(?!Command)|APITeam|Nameplate|Collectible|AvatarDecoration|Activity(?!Update|Type)"
)
"""Types of what the fake has not got. Anything may stand in their place."""


class Deriver:
    """Collects nodes of specifications in the small form, and all the types that they need."""

    def __init__(self, formats: Sequence[str] = ()) -> None:
        self.types: dict[str, Node] = {}
        self._formats = formats

    def node(self, given: Node, library: Mapping[str, Node]) -> Node:
        """The small form of a node. ``library`` holds the types that it may refer to."""
        if "$ref" in given:
            return self._referred(unquote(given["$ref"]).rsplit("/", 1)[1], library)
        for union in ("oneOf", "anyOf"):
            if union in given:
                return self._one_of(given[union], given, library)
        if "allOf" in given and "type" not in given:
            return self.node(given["allOf"][0], library)
        return self._plain(given, library)

    def _referred(self, name: str, library: Mapping[str, Node]) -> Node:
        if name == "SnowflakeType" or name == "Snowflake":
            return {"type": "snowflake"}
        if _LEFT_OUT.search(name):
            return {"type": "any"}
        if name not in self.types:
            self.types[name] = None  # it may refer to itself
            self.types[name] = self.node(library[name], library)
        return name

    def _one_of(self, choices: Sequence[Node], given: Node, library: Mapping[str, Node]) -> Node:
        if all("const" in choice for choice in choices):
            return {"type": given.get("type", "any"), "enum": [choice["const"] for choice in choices]}
        null = any(choice.get("type") == "null" for choice in choices)
        nodes = [self.node(choice, library) for choice in choices if choice.get("type") != "null"]
        nodes = [node for node in nodes if node != {"type": "any"}] or [{"type": "any"}]
        if len(nodes) > 1:
            node: Node = {"one": nodes}
        else:
            node = {"ref": nodes[0]} if isinstance(nodes[0], str) else dict(nodes[0])
        if null:
            node["null"] = True
        return node["ref"] if list(node) == ["ref"] else node

    def _plain(self, given: Node, library: Mapping[str, Node]) -> Node:
        kinds = given.get("type", "any")
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        null = "null" in kinds
        kinds = [kind for kind in kinds if kind != "null"]
        if len(kinds) > 1:
            return {"one": [{"type": kind} for kind in kinds], **({"null": True} if null else {})}
        node: Node = {"type": kinds[0] if kinds else "null"}
        if null:
            node["null"] = True
        node |= _limits(given)
        if given.get("format") in self._formats:
            node["format"] = given["format"]
        if "const" in given or "enum" in given:
            node["enum"] = given.get("enum", [given.get("const")])
        if isinstance(given.get("items"), dict):
            node["items"] = self.node(given["items"], library)
        if isinstance(given.get("additionalProperties"), dict):
            node["values"] = self.node(given["additionalProperties"], library)
        if "properties" in given:
            node["props"] = {key: self.node(value, library) for key, value in given["properties"].items()}
        if given.get("required"):
            node["need"] = sorted(given["required"])
        return node


def _limits(given: Node) -> Node:
    found: Node = {}
    for small, names in {
        "min": ("minimum", "minLength", "minItems"),
        "max": ("maximum", "maxLength"),
    }.items():
        for name in (*names, "maxItems") if small == "max" else names:
            if name in given and given[name] not in _MEANINGLESS:
                found[small] = given[name]
    if given.get("uniqueItems"):
        found["unique"] = True
    return found


def _calls(document: Node) -> Iterable[tuple[str, Node, Sequence[Node]]]:
    for path, verbs in CALLS.items():
        found = document["paths"][path]
        for verb in verbs.split():
            yield f"{verb.upper()} {path}", found[verb], found.get("parameters", ())


def requests(openapi: Node, sending: Node) -> Node:
    """What each call and each gateway payload of a bot takes."""
    deriver = Deriver(formats=("uri",))
    library = openapi["components"]["schemas"]
    calls: dict[str, Node] = {}
    for name, call, shared in _calls(openapi):
        entry: Node = {}
        query = [p for p in (*shared, *call.get("parameters", ())) if p["in"] == "query"]
        if query:
            entry["query"] = {p["name"]: deriver.node(p["schema"], library) for p in query}
        content = call.get("requestBody", {}).get("content", {})
        if content:
            entry["body"] = deriver.node(content["application/json"]["schema"], library)
        if "multipart/form-data" in content:
            entry["files"] = True
        calls[name] = entry
    ops = {
        op: deriver.node(sending["definitions"][name], sending["definitions"]) for op, name in _OPS.items()
    }
    _correct(calls, ops, deriver.types)
    return {"calls": calls, "ops": ops, "types": deriver.types}


def _correct(calls: dict[str, Node], ops: dict[str, Node], types: dict[str, Node]) -> None:
    """What the documents leave out, or say of more than bots; and what libraries send and nobody minds."""
    flag = {"type": "boolean", "null": True}
    for props in (node["props"] for node in types.values() if "props" in node):
        if "content" in props and props["content"]["max"] == 4000:
            props["content"]["max"] = 2000  # 4000 is for subscribers
        if "allowed_mentions" in props:
            props |= {"tts": flag, "enforce_nonce": flag}
    for name in ("ApplicationCommandCreateRequest", "ApplicationCommandUpdateRequest"):
        types[name]["props"]["nsfw"] = flag
    threads = types[calls["POST " + _MESSAGE + "/threads"]["body"]]["props"]
    threads["type"] = {"type": "integer", "null": True}
    ops["2"]["props"]["large_threshold"] |= {"min": 50, "max": 250}


def answers(openapi: Node, receiving: Node) -> Node:
    """What each call answers, and what the gateway sends."""
    deriver = Deriver()
    library = openapi["components"]["schemas"]
    calls: dict[str, Node] = {}
    for name, call, _ in _calls(openapi):
        for status, answer in call["responses"].items():
            content = answer.get("content", {}).get("application/json")
            if status.startswith("2") and content is not None:
                calls[name] = deriver.node(content["schema"], library)
    definitions = receiving["definitions"]
    events: dict[str, Node] = {}
    for event in _EVENTS.split():
        name = "".join("_" + c if c.isupper() else c.upper() for c in event).strip("_")
        events[name] = deriver.node(definitions[f"Gateway{event}DispatchData"], definitions)
    return {"calls": calls, "events": events, "types": deriver.types}


def written(result: Node) -> str:
    """The result as text: one entry a line, so that changes can be read."""
    sections: list[str] = []
    for section, entries in result.items():
        lines = [
            f"{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'))}"
            for name, entry in entries.items()
        ]
        sections.append(f"{json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{" + ",\n".join(sections) + "}\n"


def main(arguments: Sequence[str]) -> None:
    """Read the specifications that are named, write the result to the output."""
    make = answers if "--answers" in arguments else requests
    given = [json.loads(Path(name).read_text()) for name in arguments if not name.startswith("--")]
    sys.stdout.write(written(make(*given)))


if __name__ == "__main__":
    main(sys.argv[1:])
