"""Makes ``schema.json`` from Slack's published method descriptions.

    python -m channels.slack.fake.derive METHODS_FOLDER COMMON_ERRORS_JSON > channels/slack/fake/schema.json

``METHODS_FOLDER`` holds one JSON file per method as docs.slack.dev publishes it; ``COMMON_ERRORS_JSON`` what
any method may answer. Only facts are kept: tier, scopes, arguments with their types and limits, error names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

METHODS = [
    "agents.sessions.rename",
    "agents.sessions.setStatus",
    "apps.connections.open",
    "assistant.threads.setStatus",
    "assistant.threads.setSuggestedPrompts",
    "assistant.threads.setTitle",
    "auth.revoke",
    "auth.test",
    "bots.info",
    "chat.appendStream",
    "chat.delete",
    "chat.getPermalink",
    "chat.postEphemeral",
    "chat.postMessage",
    "chat.startStream",
    "chat.stopStream",
    "chat.update",
    "conversations.history",
    "conversations.info",
    "conversations.join",
    "conversations.list",
    "conversations.members",
    "conversations.open",
    "conversations.replies",
    "files.completeUploadExternal",
    "files.delete",
    "files.getUploadURLExternal",
    "files.info",
    "oauth.v2.access",
    "reactions.add",
    "reactions.get",
    "reactions.remove",
    "team.info",
    "users.conversations",
    "users.info",
    "users.list",
    "views.open",
    "views.publish",
    "views.push",
    "views.update",
]

JSON_VALUED = frozenset(
    [
        "attachments",
        "blocks",
        "chunks",
        "file_ids",
        "files",
        "loading_messages",
        "metadata",
        "prompts",
        "unfurled_attachments",
        "view",
    ]
)
"""Arguments that hold JSON: as a string in a form, as a string or the value itself in a JSON body."""

LIMITS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")

MEASURED: Mapping[str, Mapping[str, Any]] = {
    # The published descriptions are behind or beside the platform in these points.
    "agents.sessions.setStatus": {"args": {"title": {"maxLength": 200}, "username": {"maxLength": 200}}},
    "agents.sessions.rename": {"args": {"title": {"minLength": 1, "maxLength": 200}}},
    "chat.appendStream": {
        "args": {"markdown_text": {"required": False}},
        "errors": ["invalid_blocks_format", "msg_too_long"],
    },
    "chat.postMessage": {"errors": ["invalid_attachments", "invalid_thread_ts", "msg_too_long"]},
    "chat.postEphemeral": {
        "errors": [
            "invalid_metadata_format",
            "invalid_metadata_schema",
            "invalid_thread_ts",
            "metadata_too_large",
            "msg_blocks_too_long",
        ]
    },
    "chat.startStream": {
        "args": {"thread_ts": {"required": True}},
        "errors": ["invalid_thread_ts", "msg_too_long"],
    },
    "chat.stopStream": {
        "args": {
            "session_status": {"type": "string", "enum": ["active", "processing", "suspended", "closed"]}
        },
        "errors": ["invalid_blocks_format", "msg_too_long"],
    },
    "chat.update": {"errors": ["msg_blocks_too_long"]},
    "conversations.history": {"args": {"limit": {"maximum": 999}}},
    "conversations.list": {"args": {"limit": {"maximum": 999}}},
    "files.completeUploadExternal": {"errors": ["invalid_blocks_format", "invalid_thread_ts"]},
    "oauth.v2.access": {"args": {"code": {"required": True}}},
}


def main(methods: Path, common: Path) -> None:
    """Print the schema, one method a line."""
    lines = [f"{json.dumps(name)}: {_compact(_method(methods, name))}" for name in METHODS]
    errors = sorted({*json.loads(common.read_text())["errors"], "invalid_arguments", "invalid_auth"})
    sys.stdout.write('{"errors": ' + _compact(errors) + ',\n"methods": {\n' + ",\n".join(lines) + "\n}}\n")


def _method(folder: Path, name: str) -> dict[str, Any]:
    told = json.loads((folder / f"{name}.json").read_text())
    measured = MEASURED.get(name, {})
    required = set(told["args"].get("required", ()))
    arguments = {
        argument: _argument(argument, facts, required=argument in required)
        for argument, facts in told["args"]["properties"].items()
        if argument != "token"
    }
    for argument, facts in measured.get("args", {}).items():
        arguments[argument] = _plain({"type": "string", **arguments.get(argument, {}), **facts})
    scopes: dict[str, Any] = dict(told.get("scope") or {})
    return {
        "tier": int(told["rate_limits"].removeprefix("t")),
        "json": bool(told.get("json_input_supported")),
        "scopes": sorted(scopes.get("bot", ())),
        "args": arguments,
        "errors": sorted({*told["errors"], *measured.get("errors", ())}),
    }


def _argument(name: str, facts: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    kept = {limit: facts[limit] for limit in (*LIMITS, "enum") if limit in facts}
    items = facts.get("items")
    if isinstance(items, dict) and "maxLength" in items:
        kept["itemLength"] = items["maxLength"]
    return _plain({"type": _type(name, facts), "required": required, **kept})


def _type(name: str, facts: Mapping[str, Any]) -> str:
    if name in JSON_VALUED:
        return "json"
    types = {facts.get("type"), *(one.get("type") for one in facts.get("anyOf", ()))}
    return next((kind for kind in ("boolean", "integer", "number") if kind in types), "string")


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if fact is not False}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def run(arguments: Sequence[str]) -> None:
    """Run as a program."""
    main(Path(arguments[0]), Path(arguments[1]))


if __name__ == "__main__":
    run(sys.argv[1:])
