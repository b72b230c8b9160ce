"""Removes secrets by pattern from what users write, before a model gets it and before it is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trunkline_plugin import Context, Data, plugin

PATTERNS = {
    "aws": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "bearer": r"(?i:\bauthorization\s*:\s*(?:bearer|basic|token)\s+)(?P<secret>[\w.~+/=-]{8,})",
    "github": r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,})",
    "gitlab": r"\bglpat-[\w-]{20,}",
    "google": r"\bAIza[\w-]{30,}",
    "jwt": r"\beyJ[\w-]{10,2000}\.eyJ[\w-]{10,8000}\.[\w-]*",
    "key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    "openai": r"\bsk-[\w-]{20,}",
    "password": r"(?i:(?<![A-Za-z])(?:password|passwd|passphrase|secret|token|(?:api|access)[_-]?key)\b[\"']?"
    r"(?:[ \t]{0,9}[=:][ \t]{0,9}|[ \t]{1,9}is[ \t]{1,9}(?=\S{0,99}\d)))(?!\[\w+ removed\])"
    r"(?P<secret>\"[^\"\n]+\"|'[^'\n]+'|[^\s\"',;]{4,})",
    "slack": r"\bxox[abeprs]-[\w-]{10,}",
    "stripe": r"\b(?:[rs]k_(?:live|test)|whsec)_[A-Za-z0-9]{16,}",
    "telegram": r"\b\d{8,10}:AA[\w-]{30,}",
    "url": r"\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,200}:(?P<secret>[^\s/@]{1,500})(?=@)",
}


@plugin
def secret_filter(ctx: Context) -> Mapping[str, Any]:
    """Replace each match by the name of its pattern."""
    kinds = ctx.config.get("kinds", tuple(PATTERNS))
    chosen = {**{kind: PATTERNS[kind] for kind in kinds}, **ctx.config["patterns"]}
    patterns = {name: compiled(name, pattern) for name, pattern in chosen.items()}

    def message(event: Data) -> Mapping[str, str] | None:
        text = event.text
        for name, pattern in patterns.items():
            text = removed(pattern, name, text)
        return None if text == event.text else {"text": text}

    return {"on": {"chat.message": message}}


def compiled(name: str, pattern: str) -> re.Pattern[str]:
    """Return a pattern of the settings. Raises ValueError, which names it."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"patterns.{name}: {pattern!r} is not a regular expression: {error}; correct it"
        ) from None


def removed(pattern: re.Pattern[str], name: str, text: str) -> str:
    """Return a text without the matches of a pattern, or without their group ``secret`` if it has one."""
    part = "secret" if "secret" in pattern.groupindex else 0

    def mask(found: re.Match[str]) -> str:
        span = found.span(part if found[part] is not None else 0)
        begin, end = (at - found.start() for at in span)
        return f"{found[0][:begin]}[{name} removed]{found[0][end:]}"

    return pattern.sub(mask, text)
