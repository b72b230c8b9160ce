"""Make the schemas of the fake Discord from published specifications: its calls, and their parameters.

    python -m tests.tools.discord_schema openapi.json gateway-send.schema.json \\
        > channels/discord/fake/schema.json
    python -m tests.tools.discord_schema --answers openapi.json gateway-receive.schema.json \\
        > tests/channels/discord/answers.json

The first is the platform's OpenAPI document, the second a JSON Schema of what goes over the gateway in one
direction. With ``--answers`` the result describes what the platform itself answers and sends; tests hold the
fake against it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from tests.tools.schema_lines import lines_of

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
    """Reduces nodes of specifications to the facts in them, and collects all the types that they need."""

    def __init__(self, formats: Sequence[str] = ()) -> None:
        self.types: dict[str, Node] = {}
        self._formats = formats

    def node(self, given: Node, library: Mapping[str, Node]) -> Node:
        """Return the schema of a node. ``library`` holds the types that it may refer to."""
        if "$ref" in given:
            return self._referred(unquote(given["$ref"]).rsplit("/", 1)[1], library)
        for union in ("oneOf", "anyOf"):
            if union in given:
                return self._one_of(given[union], given, library)
        if "allOf" in given and "type" not in given:
            return self.node(given["allOf"][0], library)
        return self._plain(given, library)

    def _referred(self, name: str, library: Mapping[str, Node]) -> Node:
        if name in ("SnowflakeType", "Snowflake"):
            return {"type": ["integer", "string"], "format": "snowflake", "minimum": 0}
        if _LEFT_OUT.search(name):
            return {}
        if name not in self.types:
            self.types[name] = None  # it may refer to itself
            self.types[name] = self.node(library[name], library)
        return {"$ref": f"#/$defs/{quote(name)}"}

    def _one_of(self, choices: Sequence[Node], given: Node, library: Mapping[str, Node]) -> Node:
        if all("const" in choice for choice in choices):
            return {**_typed(given.get("type", ())), "enum": [choice["const"] for choice in choices]}
        nodes = [self.node(choice, library) for choice in choices if choice.get("type") != "null"]
        nodes = [node for node in nodes if node] or [{}]
        node = {"anyOf": nodes} if len(nodes) > 1 else nodes[0]
        return _nullable(node) if any(choice.get("type") == "null" for choice in choices) else node

    def _plain(self, given: Node, library: Mapping[str, Node]) -> Node:
        kinds = given.get("type", ())
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        null = "null" in kinds
        kinds = [kind for kind in kinds if kind != "null"]
        if not kinds:
            return {"type": "null"} if null else {}
        if len(kinds) > 1:
            node: Node = {"anyOf": [_typed(kind) for kind in kinds]}
            return _nullable(node) if null else node
        node = {**_typed(kinds[0]), **_limits(given)}
        if given.get("format") in self._formats:
            node["format"] = given["format"]
        if "const" in given or "enum" in given:
            node["enum"] = given.get("enum", [given.get("const")])
        if isinstance(given.get("items"), dict):
            node["items"] = self.node(given["items"], library)
        if "properties" in given:
            node["properties"] = {
                key: self.node(value, library) for key, value in given["properties"].items()
            }
            node["additionalProperties"] = False
        if given.get("required"):
            node["required"] = sorted(given["required"])
        if isinstance(given.get("additionalProperties"), dict):
            node["additionalProperties"] = self.node(given["additionalProperties"], library)
        return _nullable(node) if null else node


def _typed(kind: str) -> Node:
    """Return the schema of a type. The platform takes digits for a number."""
    if kind == "integer":
        return {"type": ["integer", "string"], "pattern": "^-?[0-9]+$"}
    if kind == "number":
        return {"type": ["number", "string"], "pattern": r"^-?[0-9]+(\.[0-9]+)?$"}
    return {"type": kind} if kind else {}


def _nullable(node: Node) -> Node:
    """Return the schema of a node that may be null, too."""
    if "anyOf" in node:
        return {"anyOf": [*node["anyOf"], {"type": "null"}]}
    if "type" not in node:
        return {"anyOf": [node, {"type": "null"}]} if node else {}
    kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
    allowed: Node = {"enum": [*node["enum"], None]} if "enum" in node else {}
    return {**node, "type": [*kinds, "null"], **allowed}


def _limits(given: Node) -> Node:
    names = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "uniqueItems")
    return {name: given[name] for name in names if given.get(name) not in (None, *_MEANINGLESS)}


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
            fields = {p["name"]: deriver.node(p["schema"], library) for p in query}
            entry["query"] = {"type": "object", "properties": fields, "additionalProperties": False}
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
    return {"calls": calls, "ops": ops, "$defs": deriver.types}


def _correct(calls: dict[str, Node], ops: dict[str, Node], types: dict[str, Node]) -> None:
    """What the documents leave out, or say of more than bots; and what libraries send and servers ignore."""
    flag = {"type": ["boolean", "null"]}
    for fields in (node["properties"] for node in types.values() if "properties" in node):
        if "content" in fields and fields["content"]["maxLength"] == 4000:
            fields["content"]["maxLength"] = 2000  # 4000 is for subscribers
        if "allowed_mentions" in fields:
            fields |= {"tts": flag, "enforce_nonce": flag}
    for name in ("ApplicationCommandCreateRequest", "ApplicationCommandUpdateRequest"):
        types[name]["properties"]["nsfw"] = flag
    body = calls["POST " + _MESSAGE + "/threads"]["body"]["$ref"].rpartition("/")[2]
    types[body]["properties"]["type"] = _nullable(_typed("integer"))
    ops["2"]["properties"]["large_threshold"] |= {"minimum": 50, "maximum": 250}


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
    deriver.types["MessageReferenceType"]["enum"] = [0, 1]  # 1 is for forwarded messages
    return {"calls": calls, "events": events, "$defs": deriver.types}


def main(arguments: Sequence[str]) -> None:
    """Read the specifications that are named, write the result to the output."""
    make = answers if "--answers" in arguments else requests
    given = [json.loads(Path(name).read_text()) for name in arguments if not name.startswith("--")]
    sys.stdout.write(lines_of(make(*given)))


if __name__ == "__main__":
    main(sys.argv[1:])
