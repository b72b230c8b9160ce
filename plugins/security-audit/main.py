"""Blocks tool calls with one of three dangerous commands in their arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from trunkline_plugin import Block, Context, Data, plugin

DANGEROUS = {
    "rm -rf /": re.compile(
        r"\brm\s+(?:-\S+\s+)*-(?=\w*r|-recursive)\S*\s+(?:-\S+\s+)*['\"]?/(?:\*|['\"\s;|&]|$)"
    ),
    "chmod 777": re.compile(r"\bchmod\s+(?:-\S+\s+)*(?:0?777|a\+rwx|ugo\+rwx)\b"),
    "wget … | sh": re.compile(r"\b(?:wget|curl)\b[^|;&]*\|\s*(?:sudo\s+)?(?:\S*/)?(?:ba|da|z|k)?sh\b"),
}


@plugin
def security_audit(ctx: Context) -> Mapping[str, Any]:
    """Check each call of the tools that the settings name, or of all tools."""
    checked = frozenset(ctx.config.get("tools", ()))

    def before(event: Data) -> None:
        if checked and event.tool not in checked:
            return
        for text in _texts(event["args"]):
            for name, pattern in DANGEROUS.items():
                if pattern.search(text):
                    raise Block(f"the command looks like {name!r}")

    return {"on": {"tool.execute.before": before}}


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, and the words of each list as one text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from _texts(item)
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        yield " ".join(item for item in items if isinstance(item, str))
        for item in items:
            yield from _texts(item)
