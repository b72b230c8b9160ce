"""Schemas of tools, mended so that every backend takes them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.provider_http.schemas import normalize_tool_schema
from gateway.testing.fake_models.dialect import tool_problem

OBJECT = {"type": "object", "properties": {}}
TEXT = {"type": "string"}
ENDLESS = {"A": {"$ref": "#/$defs/A"}}


@pytest.mark.parametrize(
    "sound",
    [
        OBJECT,
        {"type": "object", "properties": {"a": TEXT}, "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": {"anyOf": [TEXT, {"type": "null"}]}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": OBJECT}},
        {"type": "object", "properties": {"a": {"type": "array", "items": TEXT}, "b": True}},
    ],
)
def test_004_T13_what_is_sound_stays_unchanged(sound: dict[str, Any]) -> None:
    assert normalize_tool_schema(sound) == sound


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, OBJECT),
        ({"type": "object"}, OBJECT),
        ({"type": ["object", "null"], "properties": None}, OBJECT),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "x", **OBJECT}, OBJECT),
        ({**OBJECT, "required": ["gone"]}, OBJECT),
        ({**OBJECT, "required": "all"}, OBJECT),
        (
            {"type": "object", "properties": {"a": {"type": "array"}}},
            {"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
        ),
        (
            {"properties": {"a": {"anyOf": [{"type": ["array", "null"]}, {"items": {"type": "array"}}]}}},
            {
                "type": "object",
                "properties": {
                    "a": {
                        "anyOf": [
                            {"type": ["array", "null"], "items": {}},
                            {"items": {"type": "array", "items": {}}},
                        ]
                    }
                },
            },
        ),
        (
            {
                "anyOf": [
                    {"properties": {"a": TEXT, "c": TEXT}, "required": ["a", "c"]},
                    {"properties": {"b": TEXT, "c": TEXT}, "required": ["b", "c"]},
                ]
            },
            {"type": "object", "properties": {"a": TEXT, "c": TEXT, "b": TEXT}, "required": ["c"]},
        ),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/A"}}}}},
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/A"}},
                "$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/A"}}}},
            },
        ),
        ({"$ref": "#/$defs/A", "$defs": ENDLESS}, {**OBJECT, "$defs": ENDLESS}),
        (
            {
                "allOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": TEXT}}],
                "properties": {"a": {"type": "integer"}},
                "required": ["b"],
            },
            {"type": "object", "properties": {"a": {"type": "integer"}, "b": TEXT}, "required": ["b", "a"]},
        ),
    ],
)
def test_004_T13_what_backends_refuse_is_mended(given: dict[str, Any], made: dict[str, Any]) -> None:
    before = repr(given)
    assert normalize_tool_schema(given) == made
    assert tool_problem("tool", normalize_tool_schema(given)) == ""
    assert repr(given) == before
