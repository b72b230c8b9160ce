"""The HTTP routes of plugins, checked when a plugin is registered; the server answers them.

In: ``Plugin.routes()``. Out: routes with the types in the annotations of their handlers, or ``PluginError``
that names the route and the fix.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

import msgspec
from msgspec import Struct

from gateway.contract.errors import AlreadyRegisteredError, PluginError
from gateway.contract.plugin import ApiCall, ApiRoute

_PATH = re.compile(r"(/([A-Za-z0-9_-][A-Za-z0-9_.-]*|\{[a-z_]+\}))+")
_PARAMETER = re.compile(r"\{(\w+)\}")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class PluginRoute(Struct, frozen=True):
    """A route of a plugin with the types of its path, query, body and answer; None for what it has not."""

    plugin: str
    route: ApiRoute
    path: type[Struct] | None
    query: type[Struct] | None
    body: type[Struct] | None
    answer: type[Struct] | None

    @property
    def url(self) -> str:
        """The full path."""
        return f"{prefix_of(self.plugin)}{self.route.path}"

    @property
    def place(self) -> str:
        """The method and the path after that of the plugin."""
        return f"{self.route.method} {self.route.path}"


class RawRequest(Struct, frozen=True):
    """A request for a plugin that runs in a process of its own. ``path`` follows the plugin's path."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: str


class RawResponse(Struct, frozen=True):
    """An answer of such a plugin, with the headers that it may have."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@runtime_checkable
class AnswersHttp(Protocol):
    """A plugin that answers requests under ``/plugins/NAME``."""

    @property
    def name(self) -> str:
        """The name of the plugin."""
        ...

    @property
    def pages(self) -> Sequence[tuple[str, str]]:
        """Method and path of each route; none without the grant."""
        ...

    @property
    def is_public(self) -> bool:
        """Return whether requests need no token."""
        ...

    def is_ready(self) -> bool:
        """Return whether the plugin can answer now."""
        ...

    async def answer_http(self, request: RawRequest) -> RawResponse:
        """Answer a request. Raises TrunklineError."""
        ...


def pages_of(plugin: str) -> str:
    """Return the path under which a plugin in a process of its own answers."""
    return f"/plugins/{plugin}"


def prefix_of(plugin: str) -> str:
    """Return the path under which all routes of a plugin are."""
    return f"/api/plugins/{plugin}"


def check_routes(plugin: str, offered: Sequence[ApiRoute]) -> tuple[PluginRoute, ...]:
    """Return a plugin's routes with their types.

    Raises AlreadyRegisteredError for two with one method and path, and PluginError for one that is wrong.
    """
    if offered and not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", plugin):
        raise PluginError(f"a plugin with routes needs a name of letters, digits, _, - and ., not {plugin!r}")
    taken: dict[tuple[str, str], str] = {}
    found: list[PluginRoute] = []
    for route in offered:
        place = f"route {route.method} {route.path!r}"
        checked = _checked(plugin, route, place)
        key = route.method, _PARAMETER.sub("{}", route.path)
        if key in taken:
            raise AlreadyRegisteredError(f"{place} has the method and path of {taken[key]}; remove one")
        taken[key] = place
        found.append(checked)
    return tuple(found)


def _checked(plugin: str, route: ApiRoute, place: str) -> PluginRoute:
    if route.method not in _METHODS:
        raise PluginError(f"{place}: the method is not one of {', '.join(_METHODS)}")
    if not _PATH.fullmatch(route.path):
        raise PluginError(f"{place}: write the path as /word/{{parameter}}; {prefix_of(plugin)} is added")
    path, query, body, answer = _types_of(route, place)
    names = _PARAMETER.findall(route.path)
    fields = () if path is None else path.__struct_encode_fields__
    if sorted(names) != sorted(fields):
        raise PluginError(
            f"{place}: the path has the parameters {names}, the type of call.path has {list(fields)}"
        )
    if body is not None and route.method in ("GET", "DELETE"):
        raise PluginError(f"{place}: a {route.method} request has no body; use POST or PUT")
    checked = PluginRoute(plugin, route, path, query, body, answer)
    try:
        msgspec.json.schema_components([kind for kind in (path, query, body, answer) if kind is not None])
    except TypeError as error:
        raise PluginError(f"{place}: a type cannot be described: {error}") from None
    return checked


def _types_of(route: ApiRoute, place: str) -> tuple[Any, Any, Any, Any]:
    advice = (
        "write async def handler(self, call: ApiCall[Path, Query, Body]) -> Answer, each a Struct or None"
    )
    if not inspect.iscoroutinefunction(route.handler):
        raise PluginError(f"{place}: the handler is not an async function; {advice}")
    try:
        hints = get_type_hints(route.handler)
    except (NameError, TypeError) as error:
        raise PluginError(f"{place}: the annotations cannot be read ({error}); {advice}") from None
    answer = hints.pop("return", None)
    calls = [kind for kind in hints.values() if get_origin(kind) is ApiCall]
    if answer is None or len(calls) != 1 or len(hints) != 1:
        raise PluginError(f"{place}: the handler lacks annotations; {advice}")
    kinds = [None if kind is NoneType else kind for kind in (*get_args(calls[0]), answer)]
    wrong = [kind for kind in kinds if kind is not None and not _is_struct(kind)]
    if wrong:
        raise PluginError(f"{place}: {wrong[0]!r} is not a msgspec.Struct; {advice}")
    return kinds[0], kinds[1], kinds[2], kinds[3]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)
