"""Make the schemas of the fake Slack from the published descriptions of its methods.

    python -m tests.tools.slack_schema METHODS_FOLDER COMMON_ERRORS_JSON > channels/slack/fake/schema.json

``METHODS_FOLDER`` holds one JSON file for each method as docs.slack.dev publishes it, ``COMMON_ERRORS_JSON``
the errors that each method may answer. Only facts are kept: tier, scopes, arguments with their types and
limits, names of errors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.tools.schema_lines import lines_of

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
    """Print the schemas, one method a line."""
    errors = sorted({*json.loads(common.read_text())["errors"], "invalid_arguments", "invalid_auth"})
    written = {name: _method(json.loads((methods / f"{name}.json").read_text()), name) for name in METHODS}
    sys.stdout.write(lines_of({"errors": errors, "methods": written}))


def _method(told: Mapping[str, Any], name: str) -> dict[str, Any]:
    measured = MEASURED.get(name, {})
    required = dict.fromkeys(told["args"].get("required", ()), True)
    arguments = {
        argument: _argument(argument, facts)
        for argument, facts in told["args"]["properties"].items()
        if argument != "token"
    }
    for argument, facts in measured.get("args", {}).items():
        required[argument] = facts.get("required", required.get(argument, False))
        more = {key: fact for key, fact in facts.items() if key != "required"}
        arguments[argument] = {"type": "string", **arguments.get(argument, {}), **more}
    needed = [argument for argument in arguments if required.get(argument)]
    scopes: dict[str, Any] = dict(told.get("scope") or {})
    return {
        "tier": int(told["rate_limits"].removeprefix("t")),
        "json": bool(told.get("json_input_supported")),
        "scopes": sorted(scopes.get("bot", ())),
        "arguments": {
            "type": "object",
            "properties": arguments,
            **({"required": needed} if needed else {}),
            "additionalProperties": False,
        },
        "errors": sorted({*told["errors"], *measured.get("errors", ())}),
    }


def _argument(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    kept = {limit: facts[limit] for limit in (*LIMITS, "enum") if limit in facts}
    if name in JSON_VALUED:
        longest = facts.get("items", {}).get("maxLength") if "maxItems" in kept else None
        items = {"items": {"type": "string", "maxLength": longest}} if longest else {}
        return {"type": "array", **kept, **items} if "maxItems" in kept else {}
    types = {facts.get("type"), *(one.get("type") for one in facts.get("anyOf", ()))}
    kind = next((kind for kind in ("boolean", "integer", "number") if kind in types), "string")
    return {"type": kind, **kept}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
