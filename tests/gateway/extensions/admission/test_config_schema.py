"""The settings of a plugin, checked with the schema of its manifest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from gateway import PluginError
from gateway.extensions.admission.config_schema import check_schema, plugin_config

if TYPE_CHECKING:
    from conftest import Desk

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "days": {"type": "integer", "default": 3, "minimum": 1},
        "token": {"type": "string", "minLength": 40},
        "place": {"type": "object", "properties": {"city": {"type": "string", "default": "Berlin"}}},
    },
    "additionalProperties": False,
}


def test_defaults_fill_what_is_not_set(desk: Desk) -> None:
    assert plugin_config(desk.settings, ["audit"], SCHEMA) == {"days": 3, "place": {"city": "Berlin"}}
    desk.set("[plugins.audit]\ndays = 5\noptional = true\n")
    assert plugin_config(desk.settings, ["audit"], SCHEMA)["days"] == 5


def test_a_plugin_cannot_change_the_defaults_of_its_next_start(desk: Desk) -> None:
    schema = {"properties": {"cities": {"type": "array", "default": ["Berlin"]}}}
    plugin_config(desk.settings, ["audit"], schema)["cities"].append("Rome")
    assert plugin_config(desk.settings, ["audit"], schema) == {"cities": ["Berlin"]}


def test_every_wrong_value_is_named_with_its_line(desk: Desk) -> None:
    desk.set('[plugins.audit]\ndays = "x"\ncolour = 1\n[plugins.audit.place]\ncity = 5\n')
    with pytest.raises(PluginError) as caught:
        plugin_config(desk.settings, ["audit"], SCHEMA)
    said = str(caught.value)
    assert re.search(r"config/trunkline\.toml:3: plugins\.audit\.days is wrong", said)
    assert re.search(r"config/trunkline\.toml:6: plugins\.audit\.place\.city is wrong", said)
    assert "colour" in said


def test_a_wrong_secret_is_not_shown(desk: Desk) -> None:
    desk.set('[plugins.audit]\ntoken = "hunter2"\n')
    with pytest.raises(PluginError, match="token is wrong") as caught:
        plugin_config(desk.settings, ["audit"], SCHEMA)
    assert "hunter2" not in str(caught.value)


def test_without_a_schema_the_table_is_passed_on(desk: Desk) -> None:
    desk.set("[plugins.audit]\ncolour = 1\n")
    assert plugin_config(desk.settings, ["audit"], {}) == {"colour": 1}


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "array"}, "must have type: object"),
        ({"properties": {"optional": {}}}, "uses this name itself"),
        ({"properties": {"a": {"$ref": "https://example.org/schema"}}}, "Retrieval is disabled"),
        ({"properties": {"a": {"type": "strng"}}}, "is not a JSON Schema"),
        ({"properties": {"a": {"pattern": "(a)\\1"}}}, "is not a JSON Schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: dict[str, Any], told: str) -> None:
    assert any(told in complaint for complaint in check_schema(schema)), [*check_schema(schema)]
