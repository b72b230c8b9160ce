"""The result of one check."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Status = Literal["ok", "warn", "fail"]


class Finding(Struct, frozen=True):
    """The result of one check; ``advice`` says what to do unless the status is ok."""

    name: str
    status: Status
    detail: str
    advice: str = ""


def ok(name: str, detail: str) -> Finding:
    """Return a finding of a check that passed."""
    return Finding(name, "ok", detail)


def warn(name: str, detail: str, advice: str) -> Finding:
    """Return a finding for a part that works but may be set by mistake."""
    return Finding(name, "warn", detail, advice)


def fail(name: str, detail: str, advice: str) -> Finding:
    """Return a finding for a part that does not work."""
    return Finding(name, "fail", detail, advice)
