"""Names for the code of a plugin: the factory, tools, commands, and the two errors of the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from .context import Context

Handler = Callable[..., Any]


class Block(Exception):
    """A refusal of what a deciding handler was asked about; its text is the reason."""


class CapabilityDenied(Exception):
    """A call that the gateway refused. The text names the capability, the value and the manifest line."""


class Data(dict[str, Any]):
    """A JSON object whose fields are attributes, too: ``event.tool`` is ``event["tool"]``."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return wrap(self[name])
        except KeyError:
            raise AttributeError(f"there is no field {name!r}; there are {', '.join(self)}") from None


def wrap(value: Any) -> Any:
    """Return a JSON value with its objects as ``Data``; nested ones are wrapped when they are read."""
    if type(value) is dict:
        return Data(cast("dict[str, Any]", value))
    if type(value) is list:
        return [wrap(item) for item in cast("list[Any]", value)]
    return value


def frozen(value: Any) -> Any:
    """Return a JSON value that cannot be changed: mappings raise on assignment, lists are tuples."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return MappingProxyType({key: frozen(item) for key, item in items})
    if isinstance(value, list):
        return tuple(frozen(item) for item in cast("list[Any]", value))
    return value


@dataclass(frozen=True)
class Tool:
    """A tool for the model. ``schema`` is a JSON Schema of an object, ``execute(args, ctx)`` runs a call.

    It returns a text, any JSON value, or ``{"success": bool, "data": …, "error": …}``; an exception is an
    error for the model.
    """

    name: str
    description: str
    execute: Handler
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Command:
    """A slash command. ``execute(args, ctx)`` gets the text after the name and returns the reply."""

    name: str
    description: str
    execute: Handler
    admin: bool = False


@dataclass(frozen=True)
class Response:
    """An answer of an HTTP route, at most 5 MiB. Redirects lead to paths of the plugin."""

    body: str | bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/html; charset=utf-8"})


_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({"type": "object", "properties": {}})


def tool(
    spec: Mapping[str, Any] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    schema: Mapping[str, Any] = _NO_ARGUMENTS,
    execute: Handler | None = None,
) -> Tool:
    """Make a tool of keyword arguments, or of one mapping with the same keys. Raises TypeError."""
    if spec is not None:
        return tool(**spec)
    if not name or not description or execute is None:
        raise TypeError("a tool needs a name, a description and execute")
    if schema.get("type") != "object":
        raise TypeError(f'the schema of tool {name!r} must have "type": "object"')
    return Tool(name, description, execute, schema)


class Factory:
    """The function that ``@plugin`` marks: it is called once, with the context of the plugin."""

    def __init__(self, function: Callable[[Context], Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __call__(self, ctx: Context) -> Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None:
        """Return what the plugin handles."""
        return self.function(ctx)


def plugin(function: Callable[[Context], Any]) -> Factory:
    """Mark the factory of the plugin: a function of its context, async or not.

    It returns a mapping with any of ``on`` (handlers by event), ``hooks`` (functions by hook), ``tools``,
    ``commands``, ``schedule`` (functions of a run by job; a run has ``name``, ``due`` in ms, and ``key``),
    ``routes`` (functions of a request by method and path, such as ``GET /items/{id}``) and ``auth``
    (``{"providers": {name: async function of the provider's settings}}``).
    """
    return Factory(function)
