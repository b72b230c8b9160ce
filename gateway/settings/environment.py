"""Environment variables: ``TRUNKLINE_SERVER__PORT=9000`` is ``server.port = 9000``.

Two underscores separate a table from its key. Lists and tables are written as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from gateway.settings.entries import Entry, KeyPath, flat
from gateway.settings.validation import known_keys, takes_json, type_at

PREFIX = "TRUNKLINE_"
FILE_VARIABLE = "TRUNKLINE_CONFIG"
"""The variable with the path of the only settings file to read."""

_OUR_OWN = ("CONFIG", "TEST_", "REQUIRE_")


def read_variables(
    model: type[BaseModel], environ: Mapping[str, str], base: Path
) -> tuple[list[Entry], list[str]]:
    """Read the variables that are settings; return complaints about likely misspellings."""
    ours = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    complaints = [complaint for name in ours if (complaint := _complaint(model, name))]
    paths = {tuple(name.removeprefix(PREFIX).lower().split("__")): value for name, value in ours.items()}
    return [
        Entry(path=path, value=value, place=_variable(path), base=base)
        # Tables before their keys, which win.
        for at in sorted(paths, key=len)
        if _is_setting(model, at)
        for path, value in _values(model, at, paths[at])
    ], complaints


def _is_setting(model: type[BaseModel], path: KeyPath) -> bool:
    field = model.model_fields.get(path[0])
    return field is not None and (len(path) == 1 or takes_json(field.annotation))


def _values(model: type[BaseModel], path: KeyPath, text: str) -> Iterable[tuple[KeyPath, Any]]:
    """Return the keys of a variable with their values. Invalid JSON stays text, which validation reports."""
    annotation = type_at(model, path)
    value: Any = text
    if takes_json(annotation):
        with suppress(ValueError):
            value = json.loads(text)
    if annotation is None and path[0] == "plugins":
        # The plugin defines the type, which may be text.
        return [(path, cast("Any", value) if isinstance(value, list | dict) else text)]
    return flat({path[-1]: value}, path[:-1])


def _variable(path: KeyPath) -> str:
    return PREFIX + "__".join(path).upper()


def _complaint(model: type[BaseModel], name: str) -> str | None:
    """Return a complaint about a misspelled variable. Other programs may use the prefix, so a doubtful name
    is ignored.
    """
    key = name.removeprefix(PREFIX).lower()
    if name.startswith(tuple(PREFIX + own for own in _OUR_OWN)) or key.split("__")[0] in model.model_fields:
        return None
    dotted = {"_".join(path): path for path in known_keys(model)}
    if key in dotted:
        return f"{name}: is not a setting; did you mean {_variable(dotted[key])}?"
    first, *rest = key.split("__")
    near = get_close_matches(first, list(model.model_fields), n=1, cutoff=0.8)
    if near:
        return f"{name}: is not a setting; did you mean {_variable((near[0], *rest))}?"
    return f"{name}: is not a setting; `trunkline config schema` lists them all" if rest else None
