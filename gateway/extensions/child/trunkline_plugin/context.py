"""The context of a plugin: every method is a call of the gateway, which checks what the plugin may do.

A call that the manifest does not declare, or that was not granted, raises CapabilityDenied.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from .api import Data, frozen, wrap
from .frames import Descriptor, Peer

Call = Callable[..., Awaitable[Any]]
_PIECE = 500_000
"""Bytes of a file in one frame."""


class Ambient:
    """The session and the call that the running handler works for."""

    def __init__(self) -> None:
        self.session: ContextVar[str] = ContextVar("session", default="")
        self.call_id: ContextVar[str] = ContextVar("call_id", default="")


class Files:
    """Files below the folders that the manifest names; links are not followed."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def read(self, path: str) -> str:
        """Return the text of a file in UTF-8."""
        return (await self.read_bytes(path)).decode()

    async def read_bytes(self, path: str) -> bytes:
        """Return the content of a file."""
        opened: Descriptor = await self._call("fs.open", path=path)
        with os.fdopen(opened.fd, "rb") as file:
            return file.read()

    async def write(self, path: str, content: str | bytes) -> None:
        """Write a whole file; it is created if it does not exist."""
        data = content.encode() if isinstance(content, str) else content
        for begin in range(0, len(data) or 1, _PIECE):
            piece = b64encode(data[begin : begin + _PIECE]).decode()
            await self._call("fs.write", path=path, data=piece, append=begin > 0)

    async def delete(self, path: str) -> None:
        """Delete a file."""
        await self._call("fs.delete", path=path)

    async def list(self, path: str = ".") -> list[Data]:
        """Return ``name``, ``folder`` (a boolean) and ``size`` of each entry of a folder."""
        return await self._call("fs.list", path=path)


class Http:
    """Requests to the hosts that the manifest names."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: str | bytes | None = None,
        timeout: float = 30,  # noqa: ASYNC109 - the gateway's time limit
    ) -> Data:
        """Make a request. Returns ``url``, ``status``, ``headers``, ``body`` (bytes) and ``text``."""
        data = body.encode() if isinstance(body, str) else body or b""
        answer = await self._call(
            "http.request",
            method=method,
            url=url,
            headers=dict(headers or {}),
            body=b64encode(data).decode(),
            timeout=timeout,
        )
        if isinstance(answer, Descriptor):
            with os.fdopen(answer.fd, "rb") as file:
                content = file.read()
            answer = answer.value
        else:
            content = b64decode(answer["body"])
        return Data(answer, body=content, text=content.decode(errors="replace"))

    async def get(self, url: str, **more: Any) -> Data:
        """Make a GET request; see ``request``."""
        return await self.request("GET", url, **more)


class Llm:
    """Calls of models, paid from the plugin's budget."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def complete(
        self, prompt: str, *, system: str = "", model: str = "", max_tokens: int = 4096
    ) -> Data:
        """Return the answer of a model as ``text``; without ``model`` that of the session answers.

        ``max_tokens`` limits the answer with the reasoning before it.
        """
        return await self._call(
            "llm.complete", prompt=prompt, system=system, model=model, max_tokens=max_tokens
        )


class Docker:
    """Containers without network that change nothing."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def run(self, image: str, argv: Sequence[str], *, timeout: float = 60) -> Data:  # noqa: ASYNC109
        """Run a command. Returns ``exit_code``, ``stdout`` and ``stderr``."""
        return await self._call("docker.run", image=image, argv=list(argv), timeout=timeout)


class Values:
    """Durable values by key: a key of at most 256 bytes, a JSON value of at most 256 KiB."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        value = await self._call("kv.get", key=key)
        return default if value is None else value

    async def set(self, key: str, value: Any) -> None:
        """Store a value. It is durable when this returns."""
        await self._call("kv.set", key=key, value=value)

    async def delete(self, key: str) -> bool:
        """Remove a value. Returns whether there was one."""
        return await self._call("kv.delete", key=key)

    async def list(self, prefix: str = "") -> list[str]:
        """Return the keys with a prefix, sorted."""
        return await self._call("kv.list", prefix=prefix)


class Secrets:
    """The secrets that the manifest names."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def get(self, name: str) -> str:
        """Return a secret of this plugin."""
        return await self._call("secrets.get", name=name)


class Session:
    """The session that the running handler works for."""

    def __init__(self, call: Call, ambient: Ambient) -> None:
        self._call = call
        self._ambient = ambient

    @property
    def id(self) -> str:
        """The id of the session; "" outside of one."""
        return self._ambient.session.get()

    async def messages(self, last: int = 20, *, session: str = "") -> list[Data]:
        """Return the newest messages, oldest first."""
        return await self._call("session.messages", session=session or self.id, last=last)

    async def metadata(self) -> Data:
        """Return facts without text: ``channel``, ``owner``, the ``agent`` and ``model`` chosen in the chat
        ("" for the default), ``parent``, the number of ``messages``, ``input_tokens``, ``output_tokens``,
        ``cost`` in US dollars, and ``created_at`` and ``updated_at`` in ms.
        """
        return await self._call("session.metadata")


class Tools:
    """The tools of the gateway: names and schemas."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def list(self) -> list[Data]:
        """Return name, description and schema of each tool."""
        return await self._call("tools.list")


class Page:
    """The plugin's places on the chat page; ``page`` of the manifest lists them."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def status(self, text: str, color: str = "") -> None:
        """Show a text in the status line, red, green or yellow if it says so; "" removes it."""
        await self._call("page.status", text=text, color=color)

    async def panel(self, markdown: str) -> None:
        """Show Markdown in the plugin's panel; "" removes it."""
        await self._call("page.panel", text=markdown)


class Log:
    """Lines in the gateway's log, under the name of the plugin."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def __call__(self, message: str, level: str = "info") -> None:
        """Write a line; its level is debug, info, warning or error."""
        self._peer.notify("log", {"message": str(message), "level": level})

    def debug(self, message: str) -> None:
        """Write a line for debugging."""
        self(message, "debug")

    def info(self, message: str) -> None:
        """Write a line."""
        self(message)

    def warning(self, message: str) -> None:
        """Write a warning."""
        self(message, "warning")

    def error(self, message: str) -> None:
        """Write an error."""
        self(message, "error")


class Context:
    """The access of factory and handlers to the gateway. Its fields cannot be assigned."""

    fs: Files
    http: Http
    llm: Llm
    docker: Docker
    kv: Values
    secrets: Secrets
    session: Session
    tools: Tools
    page: Page
    log: Log
    name: str
    project: Data
    """``root``, the gateway's working directory, and ``worktree``, the repository it is in."""
    config: Mapping[str, Any]
    """The plugin's settings; assignment raises TypeError."""

    def __init__(self, peer: Peer, ambient: Ambient, params: Mapping[str, Any]) -> None:
        async def call(method: str, /, **given: Any) -> Any:
            # The gateway asks an admin of this chat about a capability that is not granted yet.
            given.setdefault("session", ambient.session.get())
            if call_id := ambient.call_id.get():
                given["call_id"] = call_id
            return wrap(await peer.call(method, given))

        self.__dict__.update(
            fs=Files(call),
            http=Http(call),
            llm=Llm(call),
            docker=Docker(call),
            kv=Values(call),
            secrets=Secrets(call),
            session=Session(call, ambient),
            tools=Tools(call),
            page=Page(call),
            log=Log(peer),
            name=params.get("name", ""),
            project=Data(params.get("project") or {}),
            config=frozen(params.get("config") or {}),
            _call=call,
            _peer=peer,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(f"the context cannot be changed: {name}")

    async def exec(
        self,
        command: str,
        args: Sequence[str] | Mapping[str, Any] = (),
        *,
        input: str = "",
        timeout: float = 30,  # noqa: ASYNC109 - the gateway's time limit
    ) -> Data:
        """Run a program with arguments, without a shell. Returns ``exit_code``, ``stdout`` and ``stderr``.

        A mapping instead of arguments is sent as JSON to the program's standard input.
        """
        if isinstance(args, Mapping):
            args, input = (), json.dumps(args)
        return await self.__dict__["_call"]("exec", argv=[command, *args], input=input, timeout=timeout)

    async def send(self, session: str, text: str, key: str) -> None:
        """Write to the chat of a session. The same key twice makes one message."""
        await self.__dict__["_call"]("send", session=session, text=text, key=key)

    async def notify(self, message: str, level: str = "info") -> None:
        """Show a notice to the operator."""
        await self.__dict__["_call"]("notify", message=message, level=level)


class CallContext(Context):
    """The context of one call of a tool or command: its session and user.

    ``key`` is the same if a call is repeated after a crash. ``role`` is that of a command's sender.
    """

    session_id: str
    user: str
    role: str
    call_id: str
    key: str

    def __init__(self, context: Context, params: Mapping[str, Any]) -> None:
        self.__dict__.update(context.__dict__)
        names = ("user", "role", "call_id", "key")
        self.__dict__.update({name: params.get(name) or "" for name in names})
        self.__dict__["session_id"] = params.get("session") or ""

    def progress(self, text: str) -> None:
        """Show text to the user while the tool runs; it is not part of the result."""
        self.__dict__["_peer"].notify("progress", {"key": self.key, "text": text})
