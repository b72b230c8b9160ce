"""Scripts and styles as they are served: without comments and indentation, which a browser does not need.

Only lines are looked at, so that nothing has to parse JavaScript. Every line keeps its number, because an
error of the browser names it. The meaning never changes: a comment is removed only where it begins a line,
and a file stays as it is if one of its texts may extend over lines.
"""

from __future__ import annotations

from pathlib import Path

_WITHOUT = {".js": ("//", "/*"), ".css": ("/*",)}
"""The beginning of a comment in files with this suffix."""


def compact(path: Path) -> bytes:
    """Return the content of a file, without comments and indentation if it is a script or a style."""
    content = path.read_bytes()
    return _compact(content.decode(), _WITHOUT[path.suffix]).encode() if path.suffix in _WITHOUT else content


def _compact(text: str, comments: tuple[str, ...]) -> str:
    lines: list[str] = []
    is_comment = False
    for line in text.split("\n"):
        kept = line.lstrip(" \t")
        while is_comment or kept.startswith("/*"):
            kept, is_comment = _after_comment(kept)
            if is_comment:
                break
        if kept.startswith(comments):
            kept = ""
        # A text over several lines has its own spaces: a template opens in this line, or a string continues.
        if kept.count("`") % 2 or kept.endswith("\\"):
            return text
        lines.append(kept)
    return "\n".join(lines)


def _after_comment(line: str) -> tuple[str, bool]:
    """Return what follows a comment, and whether the comment continues in the next line."""
    _, end, rest = line.removeprefix("/*").partition("*/")
    return rest.lstrip(" \t"), not end
