"""Make the schema of the fake Telegram from machine-readable descriptions of the Bot API.

    python -m tests.tools.telegram_schema SPEC... > channels/telegram/fake/schema.json

A SPEC is a JSON document with ``methods`` and ``types``, each with ``fields`` of ``name``, ``types``,
``required`` and ``description``. A later one replaces methods and types of an earlier one. The result is JSON
Schema without prose, one line for each method and type. ``bytes`` limits the length of a string in bytes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.tools.schema_lines import lines_of

_PLAIN = {
    "Integer": "integer",
    "String": "string",
    "Boolean": "boolean",
    "True": "boolean",
    "Float": "number",
}
_LIMIT = re.compile(r"\b(\d+)-(\d+) (characters|bytes)|(?:must include|list of) (\d+)-(\d+) ")
_MOST = re.compile(r"At most (\d+) .* can be specified")
_ENUM = re.compile(r"(?:[Mm]ust|can) be (?:one of |either )?(?=['\"][^'\" ]+['\"])")
_WORD = re.compile(r"['\"]([^'\" ]+)['\"]")
_CONST = re.compile(
    r"^(?:Optional\. )?(?:Type|Scope type|Error source|The member's status).*?"
    r"(?:must be|always) [\W_]*(\w+)[\W_]*$"
)
_ROOTS = (
    "Update",
    "WebhookInfo",
    "File",
    "ForumTopic",
    "ChatFullInfo",
    "ResponseParameters",
    "MessageId",
    "Message",
)
_ACTION = re.compile(r":code:`(\w+)`|\b((?:upload|record|choose|find)_\w+|typing)\b")

# What no chat bot gateway does: business accounts, payments, gifts, stories, stickers, passports.
_LEFT_OUT = re.compile(
    r"Business|Star|(?<!Accepted)Gift|Story|Sticker|Passport|Game|Invoice|Payment|Shipping|PreCheckout|Paid|Giveaway|Checklist"
    r"|Boost|VideoChat|SuggestedPost|Background|Verification|ManagedBot|Community|InputContact|InputLocation|InputVenue"
)
# Messages of users contain these all the same.
_RECEIVED = {
    *("Story", "Sticker", "Checklist", "ChecklistTask", "Game", "Invoice", "Giveaway", "GiveawayWinners"),
    *("PaidMediaInfo", "PaidMedia", "PaidMediaPhoto", "PaidMediaVideo", "PaidMediaPreview"),
    "PaidMediaLivePhoto",
    *("BusinessConnection", "BusinessBotRights", "BusinessMessagesDeleted"),
    *("GetBusinessConnection", "DeleteBusinessMessages"),
}

Schema = dict[str, Any]


def merged(specs: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Methods and types of all documents, the last word winning."""
    methods: dict[str, Any] = {}
    types: dict[str, Any] = {}
    for spec in specs:
        methods |= spec["methods"]
        types |= spec["types"]
    return methods, types


class Writer:
    """Writes fields as JSON Schema, and collects the types that they mention."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self.types = types
        self.mentioned: list[str] = []
        self._unions = {
            name: frozenset(kind["subtypes"]) for name, kind in types.items() if kind.get("subtypes")
        }

    def object(self, fields: Iterable[Mapping[str, Any]]) -> Schema:
        """Return the schema of a type, or of the parameters of a method."""
        written = {field["name"]: schema for field in fields if (schema := self._field(field)) is not None}
        required = [field["name"] for field in fields if field["required"] and field["name"] in written]
        needed: Schema = {"required": required} if required else {}
        return {"type": "object", "properties": written, **needed, "additionalProperties": False}

    def union(self, subtypes: Iterable[str]) -> Schema:
        """Return the schema of a union."""
        names = [name for name in subtypes if name in self.types and not _left_out(name)]
        return {"anyOf": [self._one(name) for name in names]}

    def _field(self, field: Mapping[str, Any]) -> Schema | None:
        description = _said(field)
        if constant := _CONST.match(description):
            return {"const": constant[1]}
        names = [name for name in self._folded(field["types"]) if not _left_out(name)]
        if not names:
            return None
        schema = self._any_of(names)
        if words := [*_words(field["name"], description)]:
            return {"const": words[0]} if len(words) == 1 else {"enum": words}
        return {**schema, **_limit(description, schema)}

    def _any_of(self, names: Sequence[str]) -> Schema:
        """Return the schema of alternatives; those of an array's items are alternatives inside it."""
        if all(name.startswith("Array of ") for name in names):
            return {
                "type": "array",
                "items": self._any_of([name.removeprefix("Array of ") for name in names]),
            }
        if "InputFile" in names:
            file = {"type": "string", "contentMediaType": "application/octet-stream"}
            return file if len(names) > 1 else {**file, "pattern": "^attach://"}
        plain = list(dict.fromkeys(_PLAIN[name] for name in names if name in _PLAIN))
        schemas = [self._one(name) for name in names if name not in _PLAIN]
        if plain:
            schemas.insert(0, {"type": plain[0] if len(plain) == 1 else plain})
        if {} in schemas:
            return {}
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _one(self, name: str) -> Schema:
        if name.startswith("Array of "):
            return {"type": "array", "items": self._any_of([name.removeprefix("Array of ")])}
        if name in _PLAIN:
            return {"type": _PLAIN[name]}
        self.mentioned.append(name)
        return {"$ref": f"#/$defs/{name}"} if name in self.types else {}

    def _folded(self, names: Sequence[str]) -> list[str]:
        """Return types, with the members of a union written out replaced by its name."""
        array = "Array of " if all(name.startswith("Array of ") for name in names) else ""
        bare = {name.removeprefix(array) for name in names}
        for union, members in sorted(self._unions.items(), key=lambda item: -len(item[1])):
            if len(members) > 1 and members <= bare:
                bare = bare - members | {union}
        order = [name.removeprefix(array) for name in names]
        kept = sorted(bare, key=lambda name: order.index(name) if name in order else -1)
        return [array + name for name in kept]


def _needed(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field of a type is required where its description does not begin with "Optional"."""
    return {**field, "required": not _said(field).startswith("Optional")}


def _said(field: Mapping[str, Any]) -> str:
    text = field.get("description") or ""
    return text if isinstance(text, str) else " ".join(text)


def _left_out(name: str) -> bool:
    return name.removeprefix("Array of ") not in _RECEIVED and _LEFT_OUT.search(name) is not None


def _words(name: str, description: str) -> Iterable[str]:
    """The words that a field may hold, where the description lists them."""
    if name == "action" and "broadcast" in description:
        return dict.fromkeys(one or other for one, other in _ACTION.findall(description))
    return (
        dict.fromkeys(_WORD.findall(description, found.end())) if (found := _ENUM.search(description)) else ()
    )


def _limit(description: str, schema: Schema) -> Schema:
    if most := _MOST.search(description):
        return {"maxItems": int(most[1])}
    found = _LIMIT.search(description)
    if not found:
        return {}
    low, high = int(found[1] or found[4]), int(found[2] or found[5])
    if found[3] == "bytes":
        return {"bytes": [low, high]}
    size = "Items" if schema["type"] == "array" else "Length"
    return {**({f"min{size}": low} if low else {}), f"max{size}": high}


def schema(specs: Iterable[Mapping[str, Any]]) -> Mapping[str, Mapping[str, Schema]]:
    """Return the whole document: all methods, and the types that they and updates lead to."""
    methods, types = merged(specs)
    writer = Writer(types)
    written = {
        name: writer.object(methods[name].get("fields", ()))
        for name in sorted(methods)
        if not _left_out(name[0].upper() + name[1:])
    }
    writer.mentioned += _ROOTS
    definitions: dict[str, Schema] = {}
    for name in writer.mentioned:  # grows while it is read
        if name in types and name not in definitions and not _left_out(name):
            subtypes = types[name].get("subtypes")
            fields = [_needed(field) for field in types[name]["fields"]]
            definitions[name] = writer.union(subtypes) if subtypes else writer.object(fields)
    return {"methods": written, "$defs": dict(sorted(definitions.items()))}


def main(paths: Sequence[str]) -> None:
    """Write the schema of the documents at ``paths`` to the standard output."""
    specs = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    sys.stdout.write(lines_of(schema(specs)))


if __name__ == "__main__":
    main(sys.argv[1:])
