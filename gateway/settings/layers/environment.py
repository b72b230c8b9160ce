"""Environment variables: ``TRUNKLINE_SERVER__PORT=9000`` is ``server.port = 9000``.

Two underscores separate a table from its key. Lists and tables are written as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from gateway.settings.entries import Entry, KeyPath, flat
from gateway.settings.validation import known_keys, resolve_key

PREFIX = "TRUNKLINE_"
FILE_VARIABLE = "TRUNKLINE_CONFIG"
"""The variable with the path of the only settings file to read."""

_OUR_OWN = ("CONFIG", "TEST_", "REQUIRE_")


class _Variables(EnvSettingsSource):
    """Reads the variables of a given environment instead of the process's."""

    def __init__(self, model: type[BaseSettings], environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(model)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environ.items()}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Return invalid JSON unchanged; validation then reports it with its place."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


def read_variables(
    model: type[BaseSettings], environ: Mapping[str, str], base: Path
) -> tuple[list[Entry], list[str]]:
    """Read the variables that are settings; return complaints about likely misspellings."""
    ours = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    complaints = [complaint for name in ours if (complaint := _complaint(model, name))]
    return [
        Entry(path=path, value=_decoded(model, path, value), place=_variable(path), base=base)
        for path, value in flat(_Variables(model, ours)())
    ], complaints


def _variable(path: KeyPath) -> str:
    return PREFIX + "__".join(path).upper()


def _decoded(model: type[BaseSettings], path: KeyPath, value: Any) -> Any:
    """Decode a list or table where a plugin or channel defines the type."""
    if isinstance(value, str) and value[:1] in "[{" and not resolve_key(model, path).typed:
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _complaint(model: type[BaseSettings], name: str) -> str | None:
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
