"""Schema of the Bot API: its generation, and the checks of calls against it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.fake import chats, messages, problems
from channels.telegram.fake.calls import describe, schemas
from gateway.testing.fake_platform import Schemas

ROOT = Path(__file__).parents[4]


def field(name: str, kind: str, description: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "types": kind.split("|"), "required": required, "description": description}


OLD = {
    "methods": {
        "sendIt": {"fields": [field("text", "String", "Text, 1-10 characters", required=True)]},
        "setGameScore": {"fields": []},
    },
    "types": {
        "Shape": {"fields": [], "subtypes": ["Circle", "Square"]},
        "Circle": {
            "fields": [
                field("type", "String", "Type of the shape, must be circle"),
                field("r", "Integer", "Size"),
            ]
        },
        "Square": {"fields": [field("type", "String", "Type of the shape, must be square")]},
        "Unused": {"fields": []},
    },
}
NEW = {
    "methods": {
        "sendIt": {
            "fields": [
                field("text", "String", "Text, 0-20 characters"),
                field("colour", "String", "The colour. Must be one of 'red' or 'blue'"),
                field("shapes", "Array of Circle|Array of Square", "A list of 1-2 shapes", required=True),
                field("file", "InputFile|String", "The file"),
            ]
        }
    },
    "types": {},
}


def derived(tmp_path: Path) -> Schemas:
    """Return the schema of two documents, made by the command that generates ours."""
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, content in zip(paths, (OLD, NEW), strict=True):
        path.write_text(json.dumps(content))
    command = [sys.executable, "-m", "tests.tools.telegram_schema", *paths]
    made = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return Schemas(json.loads(made.stdout))


def test_a_later_document_replaces_what_an_earlier_one_says(tmp_path: Path) -> None:
    made = derived(tmp_path)
    assert made.at("methods") == {
        "sendIt": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "maxLength": 20},
                "colour": {"enum": ["red", "blue"]},
                "shapes": {
                    "type": "array",
                    "items": {"$ref": "#/$defs/Shape"},
                    "minItems": 1,
                    "maxItems": 2,
                },
                "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            },
            "required": ["shapes"],
            "additionalProperties": False,
        }
    }
    assert made.at("$defs").keys() == {"Circle", "Square", "Shape"}
    assert made.at("$defs", "Shape") == {"anyOf": [{"$ref": "#/$defs/Circle"}, {"$ref": "#/$defs/Square"}]}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([{"type": "circle", "r": 1}, {"type": "square"}], []),
        ([{"type": "circle"}], ['shapes[0]: Can\'t find field "r"']),
        ([{"type": "circle", "r": "1"}], ['shapes[0].r: Field "r" must be of type Number']),
        ([{"type": "circle", "r": True}], ['shapes[0].r: Field "r" must be of type Number']),
        ([{"type": "square", "r": 1}], ["shapes[0].r: Square has no field r"]),
        ([{"type": "star"}], ["shapes[0].type: 'star' is none of circle, square"]),
        ([], ["shapes: 0 items, not 1 to 2"]),
        ({}, ['shapes: Field "shapes" must be of type Array']),
        ([1], ["shapes[0]: expected an Object"]),
    ],
)
def test_values_are_held_against_their_field(tmp_path: Path, value: object, found: list[str]) -> None:
    place = ("methods", "sendIt", "properties", "shapes")
    findings = derived(tmp_path).check(value, *place)
    assert [describe(finding, "shapes") for finding in findings] == found


def test_everything_that_is_played_is_in_the_bot_api() -> None:
    played = {*messages.METHODS, *chats.METHODS}
    assert played <= schemas().at("methods").keys()
    assert len(played) > 40


def test_an_update_is_checked_down_to_its_leaves() -> None:
    message = {"message_id": 1, "date": 2, "chat": {"id": 1, "type": "private"}, "from": {"id": 3}}
    assert problems("Update", {"update_id": 1, "message": message}) == [
        'Update.message.from: Can\'t find field "is_bot"',
        'Update.message.from: Can\'t find field "first_name"',
    ]


def test_the_description_is_small_and_names_no_prose() -> None:
    text = (ROOT / "channels/telegram/fake/schema.json").read_text()
    assert len(text) < 130_000
    assert "description" not in re.findall(r'"(\w+)":', text.replace('"description":{', ""))


def test_without_the_parser_commands_are_still_seen_and_markup_is_refused() -> None:
    """Without tdjson a bot can be tested if it sends entities."""
    code = """
import sys
sys.modules["tdjson"] = None
from channels.telegram.fake.calls import Refused
from channels.telegram.fake.text import styled
print([entity["type"] for entity in styled("/help see https://example.org @somebody").entities])
print(styled("😀 b", "", [{"type": "bold", "offset": 3, "length": 1}]).entities)
for given in (("*b*", "MarkdownV2", []), ("b", "", [{"type": "bold", "offset": 0, "length": 2}])):
    try:
        styled(*given)
    except Refused as refused:
        print(refused.code, refused.description)
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert run.stdout.splitlines() == [
        "['bot_command', 'url', 'mention']",
        "({'type': 'bold', 'offset': 3, 'length': 1},)",
        "501 Bad Request: parse modes are read where tdjson is installed",
        "400 Bad Request: ENTITY_BOUNDS_INVALID",
    ]
