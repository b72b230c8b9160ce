"""Derives ``schema.json`` from machine-readable descriptions of the Bot API: ``derive.py SPEC… >
schema.json``.

A SPEC is a JSON document with ``methods`` and ``types``, each with ``fields`` of ``name``, ``types``,
``required`` and ``description``. A later one replaces what an earlier one says. What comes out are facts and
no prose, one line for each method and type; ``schema.py`` says how to read it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_SHORT = {"Integer": "I", "String": "S", "Boolean": "B", "True": "B", "Float": "F", "InputFile": "File"}
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

# What no chat bot gateway does: business accounts, payments, gifts, stories, sticker sets, passports, games.
_LEFT_OUT = re.compile(
    r"Business|Star|(?<!Accepted)Gift|Story|Sticker|Passport|Game|Invoice|Payment|Shipping|PreCheckout|Paid|Giveaway|Checklist"
    r"|Boost|VideoChat|SuggestedPost|Background|Verification|ManagedBot|Community|InputContact|InputLocation|InputVenue"
)

Fields = dict[str, dict[str, Any]]


def merged(specs: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Methods and types of all documents, the last word winning."""
    methods: dict[str, Any] = {}
    types: dict[str, Any] = {}
    for spec in specs:
        methods |= spec["methods"]
        types |= spec["types"]
    return methods, types


class Writer:
    """Writes types in the short notation, and collects which of them were mentioned."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self.types = types
        self.mentioned: list[str] = []
        self._unions = {
            name: frozenset(kind["subtypes"]) for name, kind in types.items() if kind.get("subtypes")
        }

    def fields(self, fields: Iterable[Mapping[str, Any]]) -> str:
        """All fields of a method or a type on one line."""
        return " ".join(filter(None, map(self._field, fields)))

    def union(self, subtypes: Iterable[str]) -> str:
        """The members of a union."""
        return "|".join(self._one(name) for name in subtypes if name in self.types and not _left_out(name))

    def _field(self, field: Mapping[str, Any]) -> str:
        description = _said(field)
        if constant := _CONST.match(description):
            return f'{field["name"]}!="{constant[1]}"'
        names = [name for name in self._folded(field["types"]) if not _left_out(name)]
        if not names:
            return ""
        written = self._written(names)
        if words := _words(field["name"], description):
            written = "|".join(f'"{word}"' for word in words)
        return f"{field['name']}{'!' * field['required']}={written}{_limit(description)}"

    def _written(self, names: list[str]) -> str:
        """Alternatives; those of a list's items inside its brackets."""
        if all(name.startswith("Array of ") for name in names):
            return f"[{self._written([name.removeprefix('Array of ') for name in names])}]"
        return "|".join(map(self._one, names))

    def _folded(self, names: list[str]) -> list[str]:
        """Types, with the members of a union written out replaced by its name."""
        array = "Array of " if all(name.startswith("Array of ") for name in names) else ""
        bare = {name.removeprefix(array) for name in names}
        for union, members in sorted(self._unions.items(), key=lambda item: -len(item[1])):
            if len(members) > 1 and members <= bare:
                bare = bare - members | {union}
        order = [name.removeprefix(array) for name in names]
        kept = sorted(bare, key=lambda name: order.index(name) if name in order else -1)
        return [array + name for name in kept]

    def _one(self, name: str) -> str:
        if name.startswith("Array of "):
            return f"[{self._one(name.removeprefix('Array of '))}]"
        if name in _SHORT:
            return _SHORT[name]
        self.mentioned.append(name)
        return name


def _needed(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field of a type is required where its description does not begin with "Optional"."""
    return {**field, "required": not _said(field).startswith("Optional")}


def _said(field: Mapping[str, Any]) -> str:
    text = field.get("description") or ""
    return text if isinstance(text, str) else " ".join(text)


def _left_out(name: str) -> bool:
    return _LEFT_OUT.search(name) is not None


def _words(name: str, description: str) -> Iterable[str]:
    """The words that a field may hold, where the description lists them."""
    if name == "action" and "broadcast" in description:
        return dict.fromkeys(one or other for one, other in _ACTION.findall(description))
    return (
        dict.fromkeys(_WORD.findall(description, found.end())) if (found := _ENUM.search(description)) else ()
    )


def _limit(description: str) -> str:
    if most := _MOST.search(description):
        return f"{{0..{most[1]}}}"
    found = _LIMIT.search(description)
    if not found:
        return ""
    low, high = (found[1] or found[4]), (found[2] or found[5])
    return f"{{{low}..{high}{'b' if found[3] == 'bytes' else ''}}}"


def schema(specs: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The whole document: all methods, and the types that they and updates lead to."""
    methods, types = merged(specs)
    writer = Writer(types)
    lines = {
        name: writer.fields(methods[name].get("fields", ()))
        for name in sorted(methods)
        if not _left_out(name[0].upper() + name[1:])
    }
    writer.mentioned += _ROOTS
    written: dict[str, str] = {}
    for name in writer.mentioned:  # grows while it is read
        if name in types and name not in written and not _left_out(name):
            kind = types[name]
            written[name] = writer.union(kind.get("subtypes") or ()) or writer.fields(
                map(_needed, kind["fields"])
            )
    return {"methods": lines, "types": dict(sorted(written.items()))}


def main(paths: list[str]) -> None:
    """Write the schema of the documents at ``paths`` to the standard output."""
    specs = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    json.dump(schema(specs), sys.stdout, indent=0, ensure_ascii=False)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])
