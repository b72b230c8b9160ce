"""The text of a schema file: one line for each entry, so that a change can be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def lines_of(document: Mapping[str, Any]) -> str:
    """Return a document as JSON: a line for each entry of its objects, and for each other value."""
    sections: list[str] = []
    for section, entries in document.items():
        if isinstance(entries, Mapping):
            lines = [f"{json.dumps(name)}: {_compact(entry)}" for name, entry in entries.items()]
            sections.append(f"{json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n}")
        else:
            sections.append(f"{json.dumps(section)}: {_compact(entries)}")
    return "{" + ",\n".join(sections) + "}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
