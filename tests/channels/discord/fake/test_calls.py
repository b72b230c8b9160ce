"""The fake's schema: every call is handled, and the schema is generated as it should be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from channels.discord.fake import FakeDiscord
from channels.discord.fake.calls import FORMATS, Findings, check, error_tree, schemas
from gateway.testing.fake_platform import Schemas
from tests.tools.discord_schema import CALLS, Deriver
from tests.tools.schema_lines import lines_of

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
    assert set(schemas().at("calls")) == described
    assert set(FakeDiscord().handlers) == described


INTEGER: dict[str, Any] = {"type": ["integer", "string"], "pattern": "^-?[0-9]+$"}
SNOWFLAKE: dict[str, Any] = {"type": ["integer", "string"], "format": "snowflake", "minimum": 0}


@pytest.mark.parametrize(
    ("given", "node"),
    [
        ({"$ref": "#/x/SnowflakeType"}, SNOWFLAKE),
        ({"$ref": "#/x/TreeForModal"}, {}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        (
            {"oneOf": [{"type": "null"}, {"$ref": "#/x/Name"}]},
            {"anyOf": [{"$ref": "#/$defs/Name"}, {"type": "null"}]},
        ),
        (
            {"anyOf": [{"$ref": "#/x/Name"}, {"$ref": "#/x/Kind"}]},
            {"anyOf": [{"$ref": "#/$defs/Name"}, {"$ref": "#/$defs/Kind"}]},
        ),
        ({"type": "integer", "minimum": 0, "maximum": 9}, {**INTEGER, "minimum": 0, "maximum": 9}),
        ({"type": "array", "uniqueItems": True}, {"type": "array", "uniqueItems": True}),
        ({"type": "integer", "enum": [2], "allOf": [{"$ref": "#/x/Kind"}]}, {**INTEGER, "enum": [2]}),
    ],
)
def test_nodes_keep_their_facts_alone(given: dict[str, Any], node: dict[str, Any]) -> None:
    assert Deriver().node(given, LIBRARY) == node


def test_types_are_collected_once_also_when_they_hold_themselves() -> None:
    deriver = Deriver()
    assert deriver.node({"$ref": "#/x/Tree"}, LIBRARY) == {"$ref": "#/$defs/Tree"}
    assert deriver.node({"$ref": "#/x/Free"}, LIBRARY) == {"$ref": "#/$defs/Free"}
    assert deriver.types["Kind"] == {**INTEGER, "enum": [1, 2]}
    assert deriver.types["Free"] == {"type": "string"}
    assert deriver.types["Tree"]["properties"]["inside"] == {
        "type": ["array", "null"],
        "maxItems": 3,
        "items": {"$ref": "#/$defs/Tree"},
    }
    text = lines_of({"$defs": deriver.types})
    assert json.loads(text) == {"$defs": deriver.types}
    assert "words" not in text


def checked(value: object) -> Findings:
    deriver = Deriver()
    deriver.node({"$ref": "#/x/Tree"}, LIBRARY)
    return check(Schemas({"$defs": deriver.types}), value, "$defs", "Tree")


def test_what_is_right_is_right() -> None:
    findings = checked({"name": "a", "inside": [{"name": "b", "kind": 2, "inside": None}]})
    assert (findings.wrong, findings.unknown, findings.problem) == ((), (), None)


def test_everything_that_is_wrong_is_said_where_it_is() -> None:
    findings = checked({"name": "", "inside": [{"kind": 3}, 7], "other": 1})
    assert findings.unknown == ("other",)
    tree = error_tree(findings.wrong)
    assert tree["name"]["_errors"][0]["message"] == "Must be between 1 and 32 in length."
    assert tree["inside"]["0"]["name"]["_errors"][0]["code"] == "BASE_TYPE_REQUIRED"
    assert tree["inside"]["0"]["kind"]["_errors"][0]["message"] == "Value must be one of {1, 2}."
    assert tree["inside"]["1"]["_errors"][0]["code"] == "DICT_TYPE_CONVERT"
    assert "inside.1" in (findings.problem or "")


@pytest.mark.parametrize(
    ("node", "value", "fine"),
    [
        (SNOWFLAKE, "17", True),
        (SNOWFLAKE, 17, True),
        (SNOWFLAKE, "x", False),
        (SNOWFLAKE, True, False),
        (INTEGER, "8", True),
        (INTEGER, True, False),
        (INTEGER, 1.5, False),
        ({"type": ["number", "string"], "pattern": "^[0-9.]+$"}, 1.5, True),
        ({"type": "boolean"}, 1, False),
        ({"type": "string"}, None, False),
        ({"anyOf": [{"type": "string"}, {"type": ["integer", "null"]}]}, None, True),
        ({"type": "array", "uniqueItems": True}, [1, 1], False),
        ({}, {"any": 1}, True),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": 1}, False),
        ({"type": "string", "format": "uri"}, "", True),
        ({"type": "string", "format": "uri"}, "https://example.org", True),
        ({"type": "string", "format": "uri"}, "ftp://example.org", False),
        ({"type": "string", "format": "uri"}, "https:", False),
    ],
)
def test_values_fit_their_nodes_or_not(node: dict[str, Any], value: object, fine: bool) -> None:
    schemas = Schemas({"nodes": {"one": node}}, formats=FORMATS)
    assert (check(schemas, value, "nodes", "one").wrong == ()) is fine
