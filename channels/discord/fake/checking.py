"""Checks what a bot sends against ``schema.json``, and says what is wrong in the platform's own words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

Node = Any
Path_ = tuple[str, ...]

_UNKNOWN: Mapping[str, Any] = {"type": "any"}


class Wrong(Struct, frozen=True):
    """One thing that is wrong: where, and the platform's code and sentence for it."""

    path: Path_
    code: str
    message: str


class Findings:
    """What a check found. ``unknown`` are parameters that the platform ignores and nobody meant to send."""

    def __init__(self) -> None:
        self.wrong: list[Wrong] = []
        self.unknown: list[str] = []

    def add(self, path: Path_, code: str, message: str) -> None:
        """One more thing that is wrong."""
        self.wrong.append(Wrong(path, code, message))

    @property
    def problem(self) -> str | None:
        """All of it in one line, for people; None when there is nothing."""
        said = [f"{'.'.join(wrong.path) or 'body'}: {wrong.message}" for wrong in self.wrong]
        said += [f"{name}: no such parameter" for name in self.unknown]
        return "; ".join(said) or None


def error_tree(wrong: Iterable[Wrong]) -> dict[str, Any]:
    """The ``errors`` of the platform's answer: nested as the body is."""
    tree: dict[str, Any] = {}
    for one in wrong:
        at = tree
        for key in one.path:
            at = at.setdefault(key, {})
        at.setdefault("_errors", []).append({"code": one.code, "message": one.message})
    return tree


class Shapes:
    """The shapes of a schema file: of calls, of gateway payloads, and the types that they are made of."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.calls: Mapping[str, Node] = schema.get("calls", {})
        self._ops: Mapping[str, Node] = schema.get("ops", {})
        self._types: Mapping[str, Node] = schema["types"]

    def query(self, call: str, given: Mapping[str, str]) -> Findings:
        """Check a call's query. What it holds is text, whatever it means."""
        findings = Findings()
        known = self.calls[call].get("query", {})
        for name, value in given.items():
            if name not in known:
                findings.unknown.append(name)
            else:
                self._check(known[name], _from_text(self._resolved(known[name]), value), (name,), findings)
        return findings

    def body(self, call: str, given: object) -> Findings:
        """Check a call's body."""
        node = self.calls[call].get("body")
        findings = Findings()
        if node is not None:
            self._check(node, given, (), findings)
        elif given not in (None, {}):
            findings.unknown.append("a body")
        return findings

    def payload(self, op: int, given: object) -> Findings:
        """Check what was sent over the gateway under an opcode."""
        findings = Findings()
        if (node := self._ops.get(str(op))) is not None:
            self._check(node, given, (), findings)
        return findings

    def value(self, node: Node, given: object) -> Findings:
        """Check anything against a node of the schema."""
        findings = Findings()
        self._check(node, given, (), findings)
        return findings

    def _resolved(self, node: Node) -> Mapping[str, Any]:
        null = False
        while isinstance(node, str) or "ref" in node:
            null = null or (not isinstance(node, str) and bool(node.get("null")))
            node = self._types[node if isinstance(node, str) else node["ref"]]
        return {**node, "null": True} if null else node

    def _check(self, node: Node, given: Any, path: Path_, findings: Findings) -> None:
        node = self._resolved(node)
        if given is None:
            if not self._takes_null(node):
                findings.add(path, "BASE_TYPE_REQUIRED", "This field is required")
        elif "one" in node:
            self._check_union(node["one"], given, path, findings)
        else:
            self._check_plain(node, given, path, findings)

    def _takes_null(self, node: Mapping[str, Any]) -> bool:
        if node.get("null") or node.get("type") in ("any", "null"):
            return True
        return any(self._takes_null(self._resolved(choice)) for choice in node.get("one", ()))

    def _check_plain(self, node: Node, given: Any, path: Path_, findings: Findings) -> None:
        match node["type"]:
            case "object":
                self._check_object(node, given, path, findings)
            case "array":
                self._check_array(node, given, path, findings)
            case "string":
                _check_string(node, given, path, findings)
            case "integer" | "number":
                _check_number(node, given, path, findings)
            case "snowflake":
                if isinstance(given, bool) or not re.fullmatch(r"0|[1-9][0-9]{0,19}", str(given)):
                    findings.add(path, "NUMBER_TYPE_COERCE", f'Value "{given}" is not snowflake.')
            case "boolean" if not isinstance(given, bool):
                findings.add(path, "BOOLEAN_TYPE_CONVERT", "Must be either true or false.")
            case _:
                return

    def _check_union(self, choices: Sequence[Node], given: Any, path: Path_, findings: Findings) -> None:
        best: Findings | None = None
        for choice in self._meant(choices, given):
            found = Findings()
            self._check(choice, given, path, found)
            if best is None or _badness(found) < _badness(best):
                best = found
        if best is None:
            kinds = sorted(kind for choice in choices for kind in self._kinds(choice))
            findings.add(
                (*path, "type"),
                "UNION_TYPE_CHOICES",
                f'Value of field "type" must be one of {tuple(kinds)}.',
            )
            return
        findings.wrong += best.wrong
        findings.unknown += best.unknown

    def _meant(self, choices: Sequence[Node], given: Any) -> Sequence[Node]:
        """Which choices a value can be meant as: by its ``type``, where they differ in it."""
        if not isinstance(given, dict) or "type" not in given or not all(map(self._kinds, choices)):
            return choices
        return [choice for choice in choices if given["type"] in self._kinds(choice)]

    def _kinds(self, choice: Node) -> Sequence[Any]:
        resolved = self._resolved(choice)
        if "one" in resolved:
            return [kind for inner in resolved["one"] for kind in self._kinds(inner)]
        kind = resolved.get("props", {}).get("type")
        return self._resolved(kind).get("enum", ()) if kind is not None else ()

    def _check_object(self, node: Node, given: Any, path: Path_, findings: Findings) -> None:
        if not isinstance(given, dict):
            findings.add(path, "DICT_TYPE_CONVERT", "Only dictionaries may be used in a DictType")
            return
        values = cast("dict[str, Any]", given)
        props: Mapping[str, Node] = node.get("props", {})
        for name in node.get("need", ()):
            if name not in values:
                findings.add((*path, name), "BASE_TYPE_REQUIRED", "This field is required")
        for name, value in values.items():
            if name in props:
                self._check(props[name], value, (*path, name), findings)
            elif "values" in node:
                self._check(node["values"], value, (*path, name), findings)
            elif "props" in node:
                findings.unknown.append(".".join((*path, name)))

    def _check_array(self, node: Node, given: Any, path: Path_, findings: Findings) -> None:
        if not isinstance(given, list):
            findings.add(path, "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType")
            return
        items = cast("list[Any]", given)
        _check_length(node, len(items), path, findings)
        if node.get("unique") and len({repr(item) for item in items}) != len(items):
            findings.add(path, "SET_TYPE_ALREADY_CONTAINS_VALUE", "The set already contains this value")
        for index, item in enumerate(items):
            self._check(node.get("items", _UNKNOWN), item, (*path, str(index)), findings)


def _badness(found: Findings) -> tuple[int, int, int]:
    """The choice that a value was meant as has the least of this; of another type is worse than wrong."""
    misfits = sum(wrong.code.endswith(("_COERCE", "_CONVERT")) for wrong in found.wrong)
    return len(found.wrong), misfits, len(found.unknown)


def _check_string(node: Node, given: Any, path: Path_, findings: Findings) -> None:
    if not isinstance(given, str):
        findings.add(path, "STRING_TYPE_CONVERT", f'Could not interpret "{given}" as string.')
        return
    _check_choice(node, given, path, findings)
    _check_length(node, len(given), path, findings)
    if node.get("format") == "uri" and given:
        parts = urlsplit(given)
        if parts.scheme not in ("http", "https", "discord", "attachment"):
            schemes = "('http', 'https', 'discord')"
            message = f'Scheme "{parts.scheme}" is not supported. Scheme must be one of {schemes}.'
            findings.add(path, "URL_TYPE_INVALID_SCHEME", message)
        elif not parts.netloc:
            findings.add(path, "URL_TYPE_INVALID_URL", "Not a well formed URL.")


def _check_number(node: Node, given: Any, path: Path_, findings: Findings) -> None:
    kind = {"integer": "int", "number": "float"}[node["type"]]
    value = _as_number(given, kind)
    if value is None:
        findings.add(path, "NUMBER_TYPE_COERCE", f'Value "{given}" is not {kind}.')
        return
    _check_choice(node, value, path, findings)
    least, most = node.get("min"), node.get("max")
    if least is not None and value < least:
        message = f"{kind} value should be greater than or equal to {least}."
        findings.add(path, "NUMBER_TYPE_MIN", message)
    if most is not None and value > most:
        findings.add(path, "NUMBER_TYPE_MAX", f"{kind} value should be less than or equal to {most}.")


def _check_choice(node: Node, given: object, path: Path_, findings: Findings) -> None:
    choices: Sequence[object] | None = node.get("enum")
    if choices is not None and given not in choices:
        said = ", ".join(repr(choice) for choice in choices)
        findings.add(path, "BASE_TYPE_CHOICES", f"Value must be one of {{{said}}}.")


def _check_length(node: Node, length: int, path: Path_, findings: Findings) -> None:
    least, most = node.get("min", 0), node.get("max")
    if least <= length and (most is None or length <= most):
        return
    if least and most is not None:
        findings.add(path, "BASE_TYPE_BAD_LENGTH", f"Must be between {least} and {most} in length.")
    elif most is not None:
        findings.add(path, "BASE_TYPE_MAX_LENGTH", f"Must be {most} or fewer in length.")
    else:
        findings.add(path, "BASE_TYPE_MIN_LENGTH", f"Must be {least} or more in length.")


def _as_number(given: object, kind: str) -> int | float | None:
    if isinstance(given, bool):
        return None
    if isinstance(given, str):  # the platform takes digits for a number
        try:
            return int(given) if kind == "int" else float(given)
        except ValueError:
            return None
    if isinstance(given, float):
        return None if kind == "int" and not given.is_integer() else given
    return given if isinstance(given, int) else None


def _from_text(node: Mapping[str, Any], value: str) -> object:
    if node.get("type") == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower(), value)
    return value


@cache
def shapes() -> Shapes:
    """The shapes that this fake checks against."""
    return Shapes(
        msgspec.json.decode((Path(__file__).parent / "schema.json").read_bytes(), type=dict[str, Any])
    )
