"""Runs a plugin: loads its code, calls its factory, and answers the calls of the gateway.

``main`` is the process of a confined plugin; ``serve`` alone runs a plugin with ``trust = "full"``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from .api import Command, Data, Factory, Handler, Response, Tool, tool, wrap
from .context import Ambient, CallContext, Context
from .frames import Descriptor, Peer

OBSERVING_SECONDS = {"file.modified": 30.0, "file.deleted": 30.0}
"""Time limits of observing handlers; 5 s for the other events."""
_KEYS = ("on", "hooks", "tools", "commands", "auth", "schedule", "routes")
_PIECE = 500_000
"""Bytes of a body in one frame."""


def main(fd: int, folder: str, entry: str, site: str | None) -> None:
    """Run a plugin on an inherited socket until the gateway closes it."""
    asyncio.run(serve(socket.socket(fileno=fd), folder, entry, site))


async def serve(
    sock: socket.socket,
    folder: str,
    entry: str,
    site: str | None,
    objects: dict[str, Any] | None = None,
) -> None:
    """Run a plugin on a socket.

    ``objects`` receives what cannot cross a process boundary, such as model providers: only for a plugin
    that runs in the gateway's process.
    """
    runtime = Runtime(folder, entry, site, objects)
    peer = runtime.peer = Peer(sock, runtime.answer)
    try:
        await peer.run()
    finally:
        runtime.unload()
        sock.close()


class Runtime:
    """One plugin: its module, and its handlers by name."""

    peer: Peer

    def __init__(
        self, folder: str, entry: str, site: str | None, objects: dict[str, Any] | None = None
    ) -> None:
        self._folder = Path(folder)
        self._entry = entry
        self._site = site
        self._objects = objects
        self._ambient = Ambient()
        self._module = f"_plugin_{id(self):x}"
        self._on: dict[str, Handler] = {}
        self._hooks: dict[str, Handler] = {}
        self._tools: dict[str, Tool] = {}
        self._commands: dict[str, Command] = {}
        self._auth: dict[str, Handler] = {}
        self._jobs: dict[str, Handler] = {}
        self._routes: dict[str, Handler] = {}
        self._methods: dict[str, Callable[[Any], Any]] = {
            "activate": self._activate,
            "hook": self._hook,
            "event": self._event,
            "tool": self._tool,
            "command": self._command,
            "auth": self._token,
            "schedule": self._job,
            "route": self._route,
            "deactivate": lambda _: None,
        }

    def answer(self, method: str, params: Any) -> Any:
        """Answer a call: return its result, or an awaitable of it."""
        known = self._methods.get(method)
        if known is None:
            raise LookupError(f"this plugin does not know {method!r}")
        return known(params)

    def unload(self) -> None:
        """Remove the plugin's modules from ``sys.modules``; the next import reads the files again."""
        for name in [name for name in sys.modules if name.partition(".")[0] == self._module]:
            del sys.modules[name]

    async def _activate(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self.peer.bound(params.get("in_flight") or self.peer.in_flight)
        self._context = Context(self.peer, self._ambient, params)
        factory = self._find_factory(self._load())
        made: Any = factory(self._context)
        if inspect.isawaitable(made):
            made = await made
        if not isinstance(made, Mapping | None):
            raise TypeError(f"the factory must return a mapping, not {type(made).__name__}")
        return self._declare(cast("Mapping[str, Any]", made or {}))

    def _load(self) -> ModuleType:
        if self._site is not None and self._site not in sys.path:
            sys.path.append(self._site)
        spec = spec_from_file_location(
            self._module, self._folder / self._entry, submodule_search_locations=[str(self._folder)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{self._entry} is not a Python file")
        module = sys.modules[self._module] = module_from_spec(spec)
        # Compiled code in the folder would keep the plugin from being approved again.
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            spec.loader.exec_module(module)
        except SystemExit as error:
            raise ImportError(f"{self._entry} ended with sys.exit({error.code})") from None
        finally:
            sys.dont_write_bytecode = before
        return module

    def _find_factory(self, module: ModuleType) -> Factory:
        found = [value for value in vars(module).values() if isinstance(value, Factory)]
        if len(found) != 1:
            raise ImportError(f"{self._entry} must have one function with @plugin, not {len(found)}")
        return found[0]

    def _declare(self, made: Mapping[str, Any]) -> Mapping[str, Any]:
        self._on = dict(made.get("on") or {})
        self._hooks = dict(made.get("hooks") or {})
        self._tools = {each.name: each for each in map(_as_tool, made.get("tools") or ())}
        self._commands = {each.name: each for each in map(_as_command, made.get("commands") or ())}
        auth: Mapping[str, Any] = made.get("auth") or {}
        self._auth = dict(auth.get("providers") or {})
        self._jobs = dict(made.get("schedule") or {})
        self._routes = dict(made.get("routes") or {})
        _check_functions("on", self._on)
        _check_functions("hooks", self._hooks)
        _check_functions("auth.providers", self._auth)
        _check_functions("schedule", self._jobs)
        _check_functions("routes", self._routes)
        others = [key for key in made if key not in _KEYS]
        if self._objects is not None:
            self._objects.update({key: made[key] for key in others})
        return {
            "tools": [
                {"name": each.name, "description": each.description, "schema": dict(each.schema)}
                for each in self._tools.values()
            ],
            "commands": [
                {"name": each.name, "description": each.description, "admin": each.admin}
                for each in self._commands.values()
            ],
            "hooks": list(self._hooks),
            "events": list(self._on),
            "auth": list(self._auth),
            "schedule": list(self._jobs),
            "routes": list(self._routes),
            "others": others,
        }

    def _hook(self, params: Mapping[str, Any]) -> Any:
        args: Sequence[Any] = params["args"]
        self._ambient.session.set(args[-1].get("session", ""))
        return self._hooks[params["name"]](*map(wrap, args))

    def _event(self, params: Mapping[str, Any]) -> Any:
        name, payload = params["event"], params["payload"]
        self._ambient.session.set(payload.get("session_id", ""))
        if params.get("observed"):
            return self._observe(name, Data(payload))
        return self._on[name](Data(payload))

    async def _observe(self, name: str, event: Data) -> None:
        try:
            async with asyncio.timeout(OBSERVING_SECONDS.get(name, 5.0)):
                made = self._on[name](event)
                if inspect.isawaitable(made):
                    await made
        except TimeoutError as error:
            raise TimeoutError(f"{name}: no end within its time") from error
        except Exception as error:
            raise RuntimeError(f"{name}: {type(error).__name__}: {error}") from error

    async def _tool(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self._enter(params)
        found = self._tools[params["name"]]
        result = found.execute(Data(params["args"]), CallContext(self._context, params))
        if inspect.isawaitable(result):
            result = await result
        return _as_result(result)

    async def _command(self, params: Mapping[str, Any]) -> str | None:
        self._enter(params)
        found = self._commands[params["name"]]
        reply = found.execute(params["args"], CallContext(self._context, params))
        if inspect.isawaitable(reply):
            reply = await reply
        return None if reply is None else _as_result(reply)["content"]

    async def _job(self, params: Mapping[str, Any]) -> None:
        made = self._jobs[params["name"]](Data(params))
        if inspect.isawaitable(made):
            await made

    async def _route(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        request = {key: value for key, value in params.items() if key not in ("id", "name")}
        if params["body"] is None:
            opened: Descriptor = await self.peer.call("request.body", {"id": params["id"]})
            with os.fdopen(opened.fd, "rb") as file:
                request["body"] = file.read()
        else:
            request["body"] = b64decode(params["body"])
        made = self._routes[params["name"]](Data(request, text=request["body"].decode(errors="replace")))
        if inspect.isawaitable(made):
            made = await made
        answer = _as_response(made)
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        while len(body) > _PIECE:
            piece, body = b64encode(body[:_PIECE]).decode(), body[_PIECE:]
            await self.peer.call("answer.piece", {"id": params["id"], "data": piece})
        return {"status": answer.status, "headers": answer.headers, "body": b64encode(body).decode()}

    async def _token(self, params: Mapping[str, Any]) -> Any:
        made = self._auth[params["name"]](wrap(params.get("config") or {}))
        if inspect.isawaitable(made):
            made = await made
        return {"token": made} if isinstance(made, str) else made

    def _enter(self, params: Mapping[str, Any]) -> None:
        self._ambient.session.set(params.get("session") or "")
        self._ambient.call_id.set(params.get("call_id") or "")


def _check_functions(kind: str, handlers: Mapping[str, Any]) -> None:
    for name, handler in handlers.items():
        if not callable(handler):
            raise TypeError(f"{kind}: {name!r} is not a function")


def _as_tool(given: Tool | Mapping[str, Any]) -> Tool:
    return given if isinstance(given, Tool) else tool(given)


def _as_command(given: Command | Mapping[str, Any]) -> Command:
    return given if isinstance(given, Command) else Command(**given)


def _as_response(made: Any) -> Response:
    """Return the response for what a route returned: a text, bytes, or a JSON value."""
    if isinstance(made, Response):
        return made
    if made is None:
        return Response(b"", 204)
    if isinstance(made, str):
        return Response(made, headers={"content-type": "text/plain; charset=utf-8"})
    if isinstance(made, bytes):
        return Response(made, headers={"content-type": "application/octet-stream"})
    return Response(json.dumps(made, ensure_ascii=False), headers={"content-type": "application/json"})


def _as_result(result: Any) -> dict[str, Any]:
    """Return the text of a result, and whether it is an error."""
    failed = False
    if isinstance(result, Mapping) and isinstance(
        success := cast("Mapping[str, Any]", result).get("success"), bool
    ):
        failed = not success
        value = cast("Mapping[str, Any]", result).get("error" if failed else "data")
        result = ("failed" if failed else "done") if value is None else value
    if not isinstance(result, str):
        result = json.dumps(result, ensure_ascii=False)
    return {"content": result, "is_error": failed}
