"""The fake's schema: all of it is handled, and it is made from the specifications as it should be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from channels.discord.fake import FakeDiscord
from channels.discord.fake.checking import Findings, Shapes, error_tree, shapes
from channels.discord.fake.derive import CALLS, Deriver, written

LIBRARY: dict[str, Any] = {
    "Name": {"type": "string", "minLength": 1, "maxLength": 32},
    "Free": {"type": "string", "maxLength": 152133},
    "Kind": {"type": "integer", "oneOf": [{"title": "A", "const": 1}, {"title": "B", "const": 2}]},
    "SnowflakeType": {"type": "string", "format": "snowflake"},
    "Tree": {
        "type": "object",
        "description": "words",
        "required": ["name"],
        "properties": {
            "name": {"$ref": "#/components/schemas/Name"},
            "inside": {"type": ["array", "null"], "maxItems": 3, "items": {"$ref": "#/x/Tree"}},
            "kind": {"oneOf": [{"type": "null"}, {"$ref": "#/x/Kind"}]},
        },
    },
    "TreeForModal": {"type": "object"},
}


def test_every_call_of_the_schema_is_handled_and_no_other() -> None:
    described = {f"{verb.upper()} {path}" for path, verbs in CALLS.items() for verb in verbs.split()}
    assert set(shapes().calls) == described
    assert set(FakeDiscord().handlers) == described


@pytest.mark.parametrize(
    ("given", "node"),
    [
        ({"$ref": "#/x/SnowflakeType"}, {"type": "snowflake"}),
        ({"$ref": "#/x/TreeForModal"}, {"type": "any"}),
        ({"type": ["string", "null"]}, {"type": "string", "null": True}),
        ({"oneOf": [{"type": "null"}, {"$ref": "#/x/Name"}]}, {"ref": "Name", "null": True}),
        ({"anyOf": [{"$ref": "#/x/Name"}, {"$ref": "#/x/Kind"}]}, {"one": ["Name", "Kind"]}),
        ({"type": "integer", "minimum": 0, "maximum": 9}, {"type": "integer", "min": 0, "max": 9}),
        ({"type": "array", "uniqueItems": True}, {"type": "array", "unique": True}),
        ({"type": "integer", "enum": [2], "allOf": [{"$ref": "#/x/Kind"}]}, {"type": "integer", "enum": [2]}),
    ],
)
def test_nodes_become_small(given: dict[str, Any], node: dict[str, Any]) -> None:
    assert Deriver().node(given, LIBRARY) == node


def test_types_are_collected_once_also_when_they_hold_themselves() -> None:
    deriver = Deriver()
    assert deriver.node({"$ref": "#/x/Tree"}, LIBRARY) == "Tree"
    assert deriver.node({"$ref": "#/x/Free"}, LIBRARY) == "Free"
    assert deriver.types["Kind"] == {"type": "integer", "enum": [1, 2]}
    assert deriver.types["Free"] == {"type": "string"}
    assert deriver.types["Tree"]["props"]["inside"] == {
        "type": "array",
        "null": True,
        "max": 3,
        "items": "Tree",
    }
    text = written({"types": deriver.types})
    assert json.loads(text) == {"types": deriver.types}
    assert "words" not in text


def checked(value: object) -> Findings:
    deriver = Deriver()
    deriver.node({"$ref": "#/x/Tree"}, LIBRARY)
    return Shapes({"types": deriver.types}).value("Tree", value)


def test_what_is_right_is_right() -> None:
    findings = checked({"name": "a", "inside": [{"name": "b", "kind": 2, "inside": None}]})
    assert (findings.wrong, findings.unknown, findings.problem) == ([], [], None)


def test_everything_that_is_wrong_is_said_where_it_is() -> None:
    findings = checked({"name": "", "inside": [{"kind": 3}, 7], "other": 1})
    assert findings.unknown == ["other"]
    tree = error_tree(findings.wrong)
    assert tree["name"]["_errors"][0]["message"] == "Must be between 1 and 32 in length."
    assert tree["inside"]["0"]["name"]["_errors"][0]["code"] == "BASE_TYPE_REQUIRED"
    assert tree["inside"]["0"]["kind"]["_errors"][0]["message"] == "Value must be one of {1, 2}."
    assert tree["inside"]["1"]["_errors"][0]["code"] == "DICT_TYPE_CONVERT"
    assert "inside.1" in (findings.problem or "")


@pytest.mark.parametrize(
    ("node", "value", "fine"),
    [
        ({"type": "snowflake"}, "17", True),
        ({"type": "snowflake"}, 17, True),
        ({"type": "snowflake"}, "x", False),
        ({"type": "snowflake"}, True, False),
        ({"type": "integer"}, "8", True),
        ({"type": "integer"}, True, False),
        ({"type": "integer"}, 1.5, False),
        ({"type": "number"}, 1.5, True),
        ({"type": "boolean"}, 1, False),
        ({"type": "string"}, None, False),
        ({"one": [{"type": "string"}, {"type": "integer", "null": True}]}, None, True),
        ({"type": "array", "unique": True}, [1, 1], False),
        ({"type": "any"}, object, True),
        ({"type": "object", "values": {"type": "string"}}, {"a": 1}, False),
    ],
)
def test_values_fit_their_nodes_or_not(node: dict[str, Any], value: object, fine: bool) -> None:
    assert (Shapes({"types": {}}).value(node, value).wrong == []) is fine
