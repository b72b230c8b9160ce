"""Base classes of the tables of settings, and types of their values."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

T = TypeVar("T")

_WRITTEN = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^[0-9.]+ ?(ms|s|m|h|d)?$")]
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)\s*")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _counted_in(unit: str) -> Callable[[object], object]:
    """Return a function that converts text such as ``"2m"`` to a whole number of units."""

    def counted(value: object) -> object:
        if not isinstance(value, str) or value.strip().isdecimal():
            return value
        found = _DURATION.fullmatch(value)
        if found is None:
            raise ValueError(
                'must be a whole number, or text with a unit (ms, s, m, h, d) like "30s" or "2m"'
            )
        count = float(found[1]) * _UNITS_MS[found[2]] / _UNITS_MS[unit]
        if not count.is_integer():
            raise ValueError(f"must be a whole number of {unit}")
        return int(count)

    return counted


def not_blank(value: T) -> T:
    """Return a value that is not blank. A variable without its value must not choose a default."""
    if isinstance(value, str) and not value.strip():
        raise ValueError("must not be blank; give it a value, or remove the line")
    return value


MILLISECONDS = BeforeValidator(_counted_in("ms"), json_schema_input_type=_WRITTEN)
"""Marks a key in milliseconds, for ``looks_like_seconds``."""
Milliseconds = Annotated[int, MILLISECONDS]
"""A duration: a whole number of milliseconds, or text with a unit such as ``"30s"``."""
Seconds = Annotated[int, BeforeValidator(_counted_in("s"), json_schema_input_type=_WRITTEN)]
Minutes = Annotated[int, BeforeValidator(_counted_in("m"), json_schema_input_type=_WRITTEN)]
Days = Annotated[int, BeforeValidator(_counted_in("d"), json_schema_input_type=_WRITTEN)]


class Section(BaseModel):
    """A table of settings: read-only, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)

    advice: ClassVar[Mapping[str, str]] = {}
    """The advice for unknown keys that users are likely to write."""


class OpenSection(Section):
    """A table that also accepts unknown keys. Their values may be secret, so its repr omits them."""

    model_config = ConfigDict(extra="allow")

    tables: ClassVar[type[Section] | None] = None
    """The type of the unknown keys, if each of them is a table."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield from ((name, getattr(self, name)) for name in type(self).model_fields)
        yield from ((name, ...) for name in self.__pydantic_extra__ or {})

    @property
    def options(self) -> Mapping[str, Any]:
        """The unknown keys and their values, as written."""
        return dict(self.__pydantic_extra__ or {})


def networks(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return addresses and networks, unless one is none."""
    for each in given:
        try:
            ipaddress.ip_network(each, strict=False)
        except ValueError:
            raise ValueError(
                f"{each!r} is not an IP address or network, such as 127.0.0.1 or 10.0.0.0/24"
            ) from None
    return given


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a server at the host."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
