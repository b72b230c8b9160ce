"""The HTTP routes and websockets of plugins, checked when a plugin is registered; the server answers them.

In: ``Plugin.routes()``. Out: routes with the types in the annotations of their handlers, or ``PluginError``
that names the route and the fix.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from gateway.contract.errors import AlreadyRegisteredError, PluginError
from gateway.contract.plugin import ApiCall, ApiConnection, ApiRoute, ApiSocket, Plugin

_PATH = re.compile(r"(/([A-Za-z0-9_-][A-Za-z0-9_.-]*|\{[a-z_]+\}))+")
_PARAMETER = re.compile(r"\{(\w+)\}")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_PREFIX = re.compile(r"/api/([a-z][a-z0-9-]*)")
RESERVED = frozenset(
    (
        *(
            "agents",
            "approvals",
            "audit",
            "browser",
            "commands",
            "console",
            "dead",
            "events",
            "files",
            "models",
            "nodes",
            "now",
            "pairs",
            "plugins",
        ),
        *("questions", "rooms", "search", "sessions", "settings", "shares", "status", "usage", "v1", "why"),
    )
)
"""The first words after ``/api/`` of the gateway's own routes."""


class PluginRoute(Struct, frozen=True):
    """A route of a plugin with the types of its path, query, body and answer; None for what it has not."""

    plugin: str
    route: ApiRoute | ApiSocket
    url: str
    """The full path."""
    path: type[Struct] | None
    query: type[Struct] | None
    body: type[Struct] | None
    answer: type[Struct] | None

    @property
    def place(self) -> str:
        """The method and the path after that of the plugin."""
        return f"{self.route.method} {self.route.path}"


def pages_of(plugin: str) -> str:
    """Return the path under which a plugin reads and answers requests itself."""
    return f"/plugins/{plugin}"


def prefix_of(plugin: str) -> str:
    """Return the path under which all routes of a plugin are."""
    return f"/api/plugins/{plugin}"


def check_prefixes(plugin: Plugin, taken: Mapping[str, str]) -> None:
    """Check the paths that a plugin has besides ``/api/plugins/NAME``. ``taken`` are those of other plugins.

    Raises AlreadyRegisteredError for one that is taken, and PluginError for one that is wrong.
    """
    for prefix in plugin.api_prefixes:
        text = f"plugin {plugin.name!r}: api_prefixes has {prefix!r}"
        # The package is Trunkline's own (``check_siblings``); files and distributions have other modules.
        if type(plugin).__module__.partition(".")[0] != "plugins":
            raise PluginError(f"{text}; only plugins that come with Trunkline have prefixes: remove it")
        match = _PREFIX.fullmatch(prefix)
        if match is None:
            raise PluginError(f"{text}; write it as /api/word")
        owner = "the gateway" if match[1] in RESERVED else taken.get(prefix)
        if owner is not None:
            raise AlreadyRegisteredError(f"{text}, which is a path of {owner}")


def check_routes(
    plugin: str, offered: Sequence[ApiRoute | ApiSocket], prefixes: Sequence[str] = ()
) -> tuple[PluginRoute, ...]:
    """Return a plugin's routes with their types. ``prefixes`` begin the paths that are complete.

    Raises AlreadyRegisteredError for two with one method and path, and PluginError for one that is wrong.
    """
    if offered and not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", plugin):
        raise PluginError(f"a plugin with routes needs a name of letters, digits, _, - and ., not {plugin!r}")
    taken: dict[tuple[str, str], str] = {}
    found: list[PluginRoute] = []
    for route in offered:
        place = f"route {route.method} {route.path!r}"
        has_prefix = any(f"{route.path}/".startswith(f"{prefix}/") for prefix in prefixes)
        checked = _checked(plugin, route, "" if has_prefix else prefix_of(plugin), place)
        key = route.method, _PARAMETER.sub("{}", route.path)
        if key in taken:
            raise AlreadyRegisteredError(f"{place} has the method and path of {taken[key]}; remove one")
        taken[key] = place
        found.append(checked)
    return tuple(found)


def _checked(plugin: str, route: ApiRoute | ApiSocket, before: str, place: str) -> PluginRoute:
    if route.method not in METHODS:
        raise PluginError(f"{place}: the method is not one of {', '.join(METHODS)}")
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
    checked = PluginRoute(plugin, route, f"{before}{route.path}", path, query, body, answer)
    try:
        msgspec.json.schema_components([kind for kind in (path, query, body, answer) if kind is not None])
    except TypeError as error:
        raise PluginError(f"{place}: a type cannot be described: {error}") from None
    return checked


def _hints_of(handler: Callable[..., Any], place: str, advice: str) -> dict[str, Any]:
    if not inspect.iscoroutinefunction(handler):
        raise PluginError(f"{place}: the handler is not an async function; {advice}")
    try:
        return get_type_hints(handler)
    except (NameError, TypeError) as error:
        raise PluginError(f"{place}: the annotations cannot be read ({error}); {advice}") from None


def _types_of(route: ApiRoute | ApiSocket, place: str) -> tuple[Any, Any, Any, Any]:
    is_socket = isinstance(route, ApiSocket)
    signature = (
        "(self, call: ApiCall[Path, Query, None], client: ApiConnection) -> None"
        if is_socket
        else "(self, call: ApiCall[Path, Query, Body]) -> Answer"
    )
    advice = f"write async def handler{signature}, each a Struct or None"
    hints = _hints_of(route.handler, place, advice)
    answer = hints.pop("return", None)
    calls = [kind for kind in hints.values() if get_origin(kind) is ApiCall]
    others = [kind for kind in hints.values() if get_origin(kind) is not ApiCall]
    if answer is None or len(calls) != 1 or others != [ApiConnection] * is_socket:
        raise PluginError(f"{place}: the handler lacks annotations; {advice}")
    kinds = [None if kind is NoneType else kind for kind in (*get_args(calls[0]), answer)]
    wrong = [kind for kind in kinds if kind is not None and not _is_struct(kind)]
    if wrong:
        raise PluginError(f"{place}: {wrong[0]!r} is not a msgspec.Struct; {advice}")
    if is_socket and kinds[3] is not None:
        raise PluginError(f"{place}: the handler of a websocket returns None; {advice}")
    return kinds[0], kinds[1], kinds[2], kinds[3]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)
