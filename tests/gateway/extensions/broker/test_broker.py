"""The broker: what a confined plugin may do outside of its process, and what it is refused."""

from __future__ import annotations

import base64
import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec.structs import replace

from gateway.contract.errors import (
    AddressRefusedError,
    BudgetExceededError,
    FetchError,
    InvalidRequestError,
    NotFoundError,
    ToolError,
)
from gateway.contract.messages import Message, TextPart
from gateway.events.bus import BusEvent, EventBus
from gateway.extensions.admission.capabilities import (
    Capabilities,
    ExecAccess,
    FilesystemAccess,
    LlmAccess,
    NetworkAccess,
)
from gateway.extensions.admission.manifest import Admitted, Manifest
from gateway.extensions.broker import Broker, BrokerServices, CapabilityDenied, Gate, Reply
from gateway.extensions.deadlines import Limit
from gateway.plugin_services.completions import Completion
from gateway.settings.layers.own_files import OwnFiles


class Grants:
    """Decisions in memory; ``decision`` is what an admin presses."""

    def __init__(self) -> None:
        self.allowed: set[str] = set()
        self.denied: set[str] = set()
        self.decision: str | None = None
        self.asked: list[tuple[str, str, str, str]] = []

    def given(self, plugin: str) -> set[str]:
        return self.allowed

    def refused(self, plugin: str) -> set[str]:
        return self.denied

    async def ask(self, plugin: str, grant: str, action: str, session: str) -> Any:
        self.asked.append((plugin, grant, action, session))
        return self.decision


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, bool]] = []

    def record(self, plugin: Any, action: str, value: str, arguments: object = (), **more: Any) -> None:
        self.lines.append((action, value, more["allowed"]))


class Table:
    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}

    async def get(self, key: str) -> Any:
        return self.entries.get(key)

    async def put(self, key: str, value: Any, *, expected: Any = ...) -> bool:
        self.entries[key] = value
        return True

    async def delete(self, key: str, *, expected: Any = ...) -> bool:
        return self.entries.pop(key, None) is not None

    async def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.entries if key.startswith(prefix))

    async def items(self, prefix: str = "") -> list[tuple[str, Any]]:
        return [(key, self.entries[key]) for key in await self.keys(prefix)]

    async def size(self, *, without: str = "") -> int:
        return sum(len(str(value)) for key, value in self.entries.items() if key != without)


class View:
    """A session in memory."""

    id = "chat"

    def messages(self) -> tuple[Message, ...]:
        return tuple(
            Message(session_id="chat", role="user", parts=(TextPart(f"message {number}"),))
            for number in range(5)
        )

    def subscribe(self, listener: Any) -> Any:
        raise AssertionError


class Sessions:
    def get(self, session_id: str) -> View | None:
        return View()

    def live(self) -> Sequence[View]:
        return ()

    async def find(self, session_id: str) -> View:
        return View()


class Models:
    async def complete(self, plugin: str, session: str, prompt: str, **more: Any) -> Completion:
        return Completion(f"{plugin} {session} {prompt} {more['budget']}", 1, 2, 0.5)


class SpentModels(Models):
    """Models that the plugin has no money left for."""

    async def complete(self, plugin: str, session: str, prompt: str, **more: Any) -> Completion:
        raise BudgetExceededError(f"the plugin {plugin!r} has spent its budget")


class Box:
    """A broker with everything around it."""

    def __init__(self, folder: Path, capabilities: Capabilities, *, granted: bool) -> None:
        self.folder = folder
        self.own = OwnFiles((folder / "data", folder / "config/settings.toml"), (folder / "config",))
        self.grants = Grants()
        self.log = Log()
        self.stopped: list[str] = []
        self.sent: list[tuple[str, str, str]] = []
        self.events: list[BusEvent] = []
        self.ran: list[tuple[tuple[str, ...], bool]] = []
        bus = EventBus()
        bus.subscribe_all(self.events.append)
        manifest = Manifest("weather", "1.0", capabilities=capabilities, secrets=("TOKEN", "UNSET"))
        held = frozenset(capabilities.grants()) if granted else frozenset[str]()
        admitted = Admitted(manifest, folder, "hash", held)
        self.gate = Gate(admitted, self.grants, self.log, self.stopped.append)
        services = BrokerServices(
            workspace=folder,
            own=lambda: self.own,
            private=(ip_network("127.0.0.0/8"),),
            events=bus,
            sessions=Sessions(),
            facts=self._facts,
            send=self._send,
            models=Models(),
            table=Table(),
            run=self._run,
            secret={"TOKEN": "s3cret", "OTHER": "no"}.get,
            tools=lambda: (),
            notify=lambda _message, _level: None,
        )
        self.services = services
        self.admitted = admitted
        self.broker = Broker(admitted, self.gate, services)

    async def call(self, method: str, /, **params: Any) -> Any:
        return await self.broker.serve(method, params)

    async def _facts(self, session: str) -> Mapping[str, Any]:
        return {"channel": "telegram", "owner": session}

    async def _send(self, session: str, text: str, key: str) -> None:
        self.sent.append((session, text, key))

    async def _run(
        self, argv: Sequence[str], data: bytes, seconds: float, *, confined: bool, session: str
    ) -> tuple[int, bytes, bytes]:
        self.ran.append((tuple(argv), confined))
        return 0, data, b""


FILES = FilesystemAccess(read=True, write=True, delete=True, restricted=(".env", ".ssh/*"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("outside")
    inside = tmp_path / "work"
    (inside / "src").mkdir(parents=True)
    (inside / "src/a.txt").write_text("hello")
    (inside / ".env").write_text("KEY=1")
    (inside / ".ssh").mkdir()
    (inside / ".ssh/id").write_text("key")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "up").symlink_to(tmp_path)
    os.mkfifo(inside / "pipe")
    return inside


def read(reply: Reply) -> str:
    assert reply.fd is not None
    with os.fdopen(reply.fd, "rb") as file:
        return file.read().decode()


async def test_001_21_what_the_manifest_does_not_declare_is_denied_without_a_question(folder: Path) -> None:
    box = Box(folder, Capabilities(), granted=True)
    box.grants.decision = "always"
    calls: Mapping[str, dict[str, Any]] = {
        "fs.open": {"path": "src/a.txt"},
        "fs.list": {"path": "."},
        "fs.write": {"path": "b", "data": ""},
        "fs.delete": {"path": "src/a.txt"},
        "http.request": {"url": "https://api.example.org/"},
        "exec": {"argv": ["ls"]},
        "docker.run": {"image": "alpine"},
        "kv.get": {"key": "a"},
        "kv.set": {"key": "a", "value": 1},
        "kv.delete": {"key": "a"},
        "kv.list": {},
        "send": {"session": "chat", "text": "hello", "key": "1"},
        "session.messages": {"session": "chat"},
        "llm.complete": {"prompt": "hello", "session": "chat"},
    }
    with box.broker.working_in("chat"):
        for method, params in calls.items():
            with pytest.raises(CapabilityDenied, match=r"not declared by the plugin 'weather'.*plugin\.yml"):
                await box.broker.serve(method, {**params, "session": "chat"})
            box.gate._denials.clear()
    assert box.grants.asked == []
    assert len(box.log.lines) == len(calls)
    assert not any(allowed for _, _, allowed in box.log.lines)


async def test_001_22_files_are_read_written_listed_and_deleted_below_the_roots(folder: Path) -> None:
    box = Box(folder, Capabilities(filesystem=FILES), granted=True)
    assert read(await box.call("fs.open", path="src/a.txt")) == "hello"
    data = base64.b64encode(b"new").decode()
    assert await box.call("fs.write", path="src/b.txt", data=data) == 3
    assert await box.call("fs.write", path="src/b.txt", data=data, append=True) == 3
    assert (folder / "src/b.txt").read_text() == "newnew"
    assert [entry.name for entry in await box.call("fs.list", path="src")] == ["a.txt", "b.txt"]
    assert ".env" not in [entry.name for entry in await box.call("fs.list", path=".")]
    await box.call("fs.delete", path="src/b.txt")
    assert not (folder / "src/b.txt").exists()
    with pytest.raises(NotFoundError, match=r"there is no '.*src/b\.txt'"):
        await box.call("fs.delete", path="src/b.txt")
    assert [type(event).__name__ for event in box.events] == ["FileModified", "FileModified", "FileDeleted"]


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "src/../../secret", "up/secret", "link", ".env", "src/../.ENV"]
)
async def test_001_22_no_path_leads_out_or_to_a_restricted_file(folder: Path, path: str) -> None:
    box = Box(folder, Capabilities(filesystem=FILES), granted=True)
    for method, more in (("fs.open", {}), ("fs.write", {"data": ""}), ("fs.delete", {})):
        if path == "link" and method == "fs.delete":
            continue  # deletes the link itself
        with pytest.raises((CapabilityDenied, InvalidRequestError)):
            await box.call(method, path=path, **more)
    assert (folder.parent / "secret").read_text() == "outside"
    assert (folder / ".env").exists()


async def test_001_28_the_audit_log_tells_a_refused_file_from_a_used_one(folder: Path) -> None:
    box = Box(folder, Capabilities(filesystem=FILES), granted=True)
    await box.call("fs.list", path="src")
    for path in (".env", ".ssh/id", "link", "up/secret"):
        with pytest.raises(CapabilityDenied):
            await box.call("fs.open", path=path)
    assert box.log.lines == [
        ("filesystem.read", "src", True),
        *(("filesystem.read", path, False) for path in (".env", ".ssh/id", "link", "up/secret")),
    ]


async def test_a_plugin_that_tries_restricted_files_is_stopped(folder: Path) -> None:
    box = Box(folder, Capabilities(filesystem=FILES), granted=True)
    for _ in range(10):
        with pytest.raises(CapabilityDenied, match="restricted"):
            await box.call("fs.open", path=".env")
    assert len(box.stopped) == 1


async def test_001_22_a_restricted_folder_covers_all_below_it(folder: Path) -> None:
    box = Box(folder, Capabilities(filesystem=FILES), granted=True)
    with pytest.raises(CapabilityDenied, match="restricted"):
        await box.call("fs.open", path=".ssh/id")


async def test_the_gateways_own_files_are_closed_also_in_a_granted_folder(folder: Path) -> None:
    for path in ("data/rows.db", "config/settings.toml", "config/other"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(path)
    box = Box(folder, Capabilities(filesystem=FILES), granted=True)
    for path in ("data/rows.db", "data", "DATA/rows.db", "config/settings.toml", "src/../data/new"):
        for method, more in (("fs.open", {}), ("fs.list", {}), ("fs.write", {"data": ""}), ("fs.delete", {})):
            with pytest.raises(CapabilityDenied, match="belongs to the gateway"):
                await box.call(method, path=path, **more)
            box.gate._denials.clear()
    assert read(await box.call("fs.open", path="config/other")) == "config/other"
    await box.call("fs.write", path="src/plugin.py", data="")
    box.own = replace(box.own, guarded=(*box.own.guarded, folder / "src/plugin.py"))  # enabled meanwhile
    for path in (
        "src/plugin.py",
        "config/other",
        "config",
        "config/trunkline.json",
        "Config/agents/helper.md",
    ):
        for method, more in (("fs.write", {"data": ""}), ("fs.delete", {})):
            with pytest.raises(CapabilityDenied, match="belongs to the gateway"):
                await box.call(method, path=path, **more)
            box.gate._denials.clear()
    named = replace(FILES, roots=("workspace", str(folder / "data")))
    box = Box(folder, Capabilities(filesystem=named), granted=True)
    assert read(await box.call("fs.open", path="data/rows.db")) == "data/rows.db"


async def test_a_pipe_or_device_is_not_opened(folder: Path) -> None:
    files = replace(FILES, roots=("workspace", "/dev"))
    box = Box(folder, Capabilities(filesystem=files), granted=True)
    for path in ("pipe", "/dev/zero"):
        with pytest.raises(InvalidRequestError, match="not a regular file"):
            await box.call("fs.open", path=path)


async def test_a_link_that_is_swapped_in_during_the_call_is_not_followed(folder: Path) -> None:
    box = Box(folder, Capabilities(filesystem=FILES), granted=True)
    (folder / "src").rename(folder / "old")
    (folder / "src").symlink_to(folder.parent)
    with pytest.raises((CapabilityDenied, InvalidRequestError)):
        await box.call("fs.open", path="src/secret")


async def test_an_unread_file_is_missing(folder: Path) -> None:
    box = Box(folder, Capabilities(filesystem=FILES), granted=True)
    with pytest.raises(NotFoundError):
        await box.call("fs.open", path="src/none")


async def test_long_work_on_files_does_not_hold_up_the_event_loop(folder: Path) -> None:
    """A plugin chooses the folder, which may have a million entries or be on a slow network."""
    box = Box(folder, Capabilities(filesystem=FILES), granted=True)
    threads: dict[str, set[int]] = {}
    watched = {"os.scandir", "os.remove", "open"}

    def note(event: str, _arguments: object) -> None:
        if event in watched:
            threads.setdefault(event, set()).add(threading.get_ident())

    sys.addaudithook(note)  # a hook stays for the life of the process; it is idle from the end of the test on
    await box.call("fs.list", path="src")
    await box.call("fs.write", path="src/b.txt", data="")
    await box.call("fs.delete", path="src/b.txt")
    watched.clear()
    assert threads.keys() >= {"os.scandir", "os.remove"}
    assert threading.get_ident() not in threads["os.scandir"] | threads["os.remove"]


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async def echo(request: web.Request) -> web.Response:
        body = await request.read()
        return web.Response(
            text=f"{request.method} {body.decode()} {request.headers.get('X-Key', '-')}", status=201
        )

    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound(request.query["to"])

    async def large(_request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 600_000)

    app = web.Application()
    app.router.add_route("*", "/echo", echo)
    app.router.add_get("/elsewhere", elsewhere)
    app.router.add_get("/large", large)
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    yield server
    await server.close()


def network(server: TestServer, **more: Any) -> Capabilities:
    return Capabilities(
        network=NetworkAccess(
            enabled=True, allowlist=(f"http://127.0.0.1:{server.port}",), methods=("GET", "POST"), **more
        )
    )


async def test_001_23_requests_reach_the_allowed_hosts(folder: Path, server: TestServer) -> None:
    box = Box(folder, network(server), granted=True)
    body = base64.b64encode(b"data").decode()
    reply = await box.call(
        "http.request", url=str(server.make_url("/echo")), method="post", body=body, headers={"X-Key": "k"}
    )
    assert reply.value["status"] == 201
    assert base64.b64decode(reply.value["body"]) == b"POST data k"
    large = await box.call("http.request", url=str(server.make_url("/large")))
    assert len(read(large)) == 600_000


async def test_001_23_other_hosts_ports_methods_and_redirects_are_refused(
    folder: Path, server: TestServer
) -> None:
    box = Box(folder, network(server), granted=True)
    other = server.port % 60_000 + 1
    for url, method in (
        ("https://evil.example/", "GET"),
        (f"http://127.0.0.1:{other}/echo", "GET"),
        (f"http://localhost:{server.port}/echo", "GET"),
        (f"https://127.0.0.1:{server.port}/echo", "GET"),
        (str(server.make_url("/echo")), "DELETE"),
    ):
        with pytest.raises(CapabilityDenied):
            await box.call("http.request", url=url, method=method)
        box.gate._denials.clear()
    with pytest.raises(CapabilityDenied, match="redirect"):
        await box.call(
            "http.request", url=str(server.make_url("/elsewhere").with_query(to="https://evil.example/"))
        )
    for header in ({"Host": "evil.example"}, {"Cookie": "a"}, {"X": "a\r\nHost: b"}):
        with pytest.raises(InvalidRequestError):
            await box.call("http.request", url=str(server.make_url("/echo")), headers=header)
    with pytest.raises((FetchError, CapabilityDenied)):
        await box.call(
            "http.request", url=str(server.make_url("/elsewhere").with_query(to="file:///etc/passwd"))
        )


async def test_001_28_the_audit_log_has_refused_redirects_as_denied(folder: Path, server: TestServer) -> None:
    box = Box(folder, network(server), granted=True)
    await box.call("http.request", url=str(server.make_url("/echo")))
    away = server.make_url("/elsewhere").with_query(to="https://evil.example/")
    with pytest.raises(CapabilityDenied, match="redirect"):
        await box.call("http.request", url=str(away))
    assert [allowed for *_, allowed in box.log.lines] == [True, False]


@pytest.mark.parametrize(
    ("url", "entry"),
    [
        ("https://api.example.org/a", "api.example.org"),
        ("http://api.example.org/a", "http://api.example.org"),
        ("https://api.example.org:8443/", "api.example.org:8443"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
    ],
)
async def test_001_23_a_denied_request_names_the_entry_that_would_allow_it(
    folder: Path, url: str, entry: str
) -> None:
    box = Box(folder, Capabilities(), granted=True)
    with pytest.raises(CapabilityDenied) as denied:
        await box.call("http.request", url=url)
    assert str(denied.value).endswith(f'capabilities.network.allowlist: ["{entry}"]')
    allowed = Capabilities(network=NetworkAccess(enabled=True, allowlist=(entry,)))
    box = Box(folder, allowed, granted=False)
    with pytest.raises(CapabilityDenied, match="was not granted"):
        await box.call("http.request", url=url)


async def test_001_23_a_private_address_needs_the_operators_permission(
    folder: Path, server: TestServer
) -> None:
    box = Box(folder, network(server), granted=True)
    broker = Broker(box.admitted, box.gate, replace(box.services, private=()))
    with pytest.raises(AddressRefusedError):
        await broker.serve("http.request", {"url": str(server.make_url("/echo"))})
    assert box.log.lines == [("network", f"GET 127.0.0.1:{server.port}", False)]


EXEC = Capabilities(exec=ExecAccess(enabled=True, allowlist=("ls -l *", "sh -c 'echo one'", "git log *")))


async def test_001_24_commands_match_word_by_word(folder: Path) -> None:
    box = Box(folder, EXEC, granted=True)
    result = await box.call("exec", argv=["ls", "-l", "src"], input="text")
    assert (result.exit_code, result.stdout) == (0, "text")
    ((argv, confined),) = box.ran
    assert argv[0].endswith("/ls")
    assert argv[0].startswith("/")
    assert argv[1:] == ("-l", "src")
    assert confined
    await box.call("exec", argv=["sh", "-c", "echo one"])


@pytest.mark.parametrize(
    "argv",
    [
        ["ls"],
        ["ls", "-a"],
        ["ls;id", "-l"],
        ["./ls", "-l"],
        ["/tmp/ls", "-l"],
        ["sh", "-c", "echo two"],
        ["sh", "-c", "echo one", "more"],
        ["git", "log", "--output=/tmp/x"],
        ["git", "-c", "core.pager=id", "log"],
        ["env", "ls", "-l"],
    ],
)
async def test_001_24_other_commands_are_denied(folder: Path, argv: list[str]) -> None:
    box = Box(folder, EXEC, granted=True)
    with pytest.raises(CapabilityDenied):
        await box.call("exec", argv=argv)
    assert box.ran == []


async def test_a_wildcard_covers_no_shell(folder: Path) -> None:
    access = ExecAccess(enabled=True, allowlist=("sh *", "env *", "find *", f"{sys.executable} *"))
    box = Box(folder, Capabilities(exec=access), granted=True)
    for argv in (["sh", "-c", "id"], ["env", "id"], ["find", ".", "-exec", "id"], [sys.executable, "-c", ""]):
        with pytest.raises(CapabilityDenied):
            await box.call("exec", argv=argv)
    await box.call("exec", argv=["find", ".", "-name", "a"])


async def test_a_container_has_no_network_and_no_capabilities(folder: Path) -> None:
    box = Box(folder, Capabilities(docker=True), granted=True)
    if shutil.which("docker") is None:
        with pytest.raises(ToolError, match="not installed"):
            await box.call("docker.run", image="alpine", argv=["id"])
        return
    await box.call("docker.run", image="alpine", argv=["id"])
    ((argv, confined),) = box.ran
    assert {"--network=none", "--read-only", "--cap-drop=ALL"} <= set(argv)
    assert argv[-2:] == ("alpine", "id")
    assert not confined
    with pytest.raises(InvalidRequestError):
        await box.call("docker.run", image="--privileged")


async def test_values_stay_within_the_declared_storage(folder: Path) -> None:
    box = Box(folder, Capabilities(storage_mb=1), granted=True)
    await box.call("kv.set", key="a", value={"n": 1})
    assert await box.call("kv.get", key="a") == {"n": 1}
    assert await box.call("kv.list") == ["a"]
    for number in range(4):
        await box.call("kv.set", key=f"b{number}", value="x" * 240_000)
    with pytest.raises(InvalidRequestError, match="storage_mb"):
        await box.call("kv.set", key="c", value="x" * 240_000)
    assert await box.call("kv.delete", key="a") is True
    with pytest.raises(InvalidRequestError, match="256 bytes"):
        await box.call("kv.set", key="k" * 257, value=1)


async def test_a_plugin_gets_its_own_secrets_only(folder: Path) -> None:
    box = Box(folder, Capabilities(), granted=True)
    assert await box.call("secrets.get", name="TOKEN") == "s3cret"
    with pytest.raises(CapabilityDenied, match="not declared"):
        await box.call("secrets.get", name="OTHER")
    with pytest.raises(NotFoundError, match="trunkline plugin secret set weather UNSET"):
        await box.call("secrets.get", name="UNSET")
    assert box.log.lines == [
        ("secrets", "TOKEN", True),
        ("secrets", "OTHER", False),
        ("secrets", "UNSET", True),
    ]


async def test_messages_are_read_only_in_sessions_the_plugin_works_in(folder: Path) -> None:
    box = Box(folder, Capabilities(messages="read", send=True), granted=True)
    with pytest.raises(CapabilityDenied, match="does not work in the session"):
        await box.call("session.messages", session="chat")
    with box.broker.working_in("chat"):
        found = await box.call("session.messages", session="chat", last=2)
    assert [one["parts"][0]["content"] for one in found] == ["message 3", "message 4"]
    await box.call("send", session="chat", text="hello", key="1")
    assert box.sent == [("chat", "hello", "1")]
    assert box.log.lines == [("messages", "chat", False), ("messages", "chat", True), ("send", "chat", True)]


async def test_001_18_a_plugin_gets_facts_about_the_session_that_it_works_in(folder: Path) -> None:
    box = Box(folder, Capabilities(), granted=True)
    with pytest.raises(InvalidRequestError, match="works in no session"):
        await box.call("session.metadata", session="chat")
    with box.broker.working_in("chat"):
        found = await box.call("session.metadata", session="chat")
    assert found == {"channel": "telegram", "owner": "chat"}


async def test_001_28_the_audit_log_has_calls_beyond_the_budget_as_denied(folder: Path) -> None:
    box = Box(folder, Capabilities(llm=LlmAccess(enabled=True, budget=1.0)), granted=True)
    broker = Broker(box.admitted, box.gate, replace(box.services, models=SpentModels()))
    with broker.working_in("chat"):
        for _ in range(11):
            with pytest.raises(BudgetExceededError):
                await broker.serve("llm.complete", {"prompt": "hello", "session": "chat"})
    assert box.log.lines == [("llm", "model", False)] * 11
    assert box.stopped == []


async def test_a_model_is_called_for_a_session_the_plugin_works_in(folder: Path) -> None:
    box = Box(folder, Capabilities(llm=LlmAccess(enabled=True, budget=1.0)), granted=True)
    with pytest.raises(CapabilityDenied):
        await box.call("llm.complete", prompt="hello", session="chat")
    with box.broker.working_in("chat"):
        made = await box.call("llm.complete", prompt="hello", session="chat", call_id="7")
    assert made.text == "weather chat hello 1.0"


async def test_a_declared_capability_is_asked_for_in_the_chat_of_the_turn(folder: Path) -> None:
    box = Box(folder, Capabilities(filesystem=FILES), granted=False)
    box.grants.decision = "once"
    with box.broker.working_in("chat"):
        assert read(await box.call("fs.open", path="src/a.txt", session="chat")) == "hello"
    # Another session than that of its call is not asked.
    await box.call("fs.list", path=".", session="another")
    assert box.grants.asked == [
        ("weather", "filesystem.read:workspace", f"read files in {folder}", "chat"),
        ("weather", "filesystem.read:workspace", f"read files in {folder}", ""),
    ]
    for decision in ("never", None):
        box.grants.decision = decision
        with pytest.raises(CapabilityDenied, match="trunkline plugin approve weather --allow"):
            await box.call("fs.open", path="src/a.txt")


async def test_a_refusal_outweighs_a_grant_of_the_installation(folder: Path) -> None:
    box = Box(folder, Capabilities(filesystem=FILES), granted=True)
    box.grants.denied = {"filesystem.read:workspace"}
    with pytest.raises(CapabilityDenied, match="refused permanently"):
        await box.call("fs.open", path="src/a.txt")
    assert box.grants.asked == []


async def test_a_job_runs_only_with_the_grant_and_is_recorded(folder: Path) -> None:
    box = Box(folder, Capabilities(schedule=True), granted=True)
    await box.broker.check("schedule", "digest", 7)
    box.grants.denied.add("schedule")
    with pytest.raises(CapabilityDenied, match="approve weather --allow 'schedule'"):
        await box.broker.check("schedule", "digest", 8)
    with pytest.raises(CapabilityDenied, match=r"needs capabilities\.schedule: true"):
        await Box(folder, Capabilities(), granted=True).broker.check("schedule", "digest", 7)
    assert box.log.lines == [("schedule", "digest", True), ("schedule", "digest", False)]
    assert box.grants.asked == []


async def test_ten_denials_within_a_minute_stop_the_plugin(folder: Path) -> None:
    box = Box(folder, Capabilities(), granted=True)
    for _ in range(10):
        assert box.stopped == []
        with pytest.raises(CapabilityDenied):
            await box.call("kv.get", key="a")
    assert len(box.stopped) == 1


async def test_the_clock_of_a_call_stops_while_an_admin_is_asked(folder: Path) -> None:
    box = Box(folder, Capabilities(filesystem=FILES), granted=False)
    missed: list[bool] = []

    async def ask(plugin: str, grant: str, action: str, session: str) -> str:
        ((deadline,),) = box.broker._open["chat"]
        missed.append(deadline._timeout.when() is None)
        return "once"

    box.grants.ask = ask  # type: ignore[method-assign]

    async def hook() -> None:
        with box.broker.working_in("chat"):
            os.close((await box.call("fs.open", path="src/a.txt", session="chat")).fd)

    await Limit("weather", "hook", 2.0).call(hook)
    assert missed == [True]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("fs.rename", {}),
        ("fs.open", {}),
        ("fs.open", {"path": 1}),
        ("fs.open", {"path": "a", "more": 1}),
        ("fs.open", []),
        ("fs.write", {"path": "a", "data": "*"}),
        ("http.request", {"url": "nonsense"}),
        ("http.request", {"url": "https://[::1"}),
        ("exec", {"argv": []}),
        ("exec", {"argv": ["ls", "\0"]}),
        ("exec", {"argv": ["ls"], "timeout": -1}),
    ],
)
async def test_a_malformed_call_is_refused(folder: Path, method: str, params: Any) -> None:
    box = Box(folder, Capabilities(filesystem=FILES), granted=True)
    with pytest.raises(InvalidRequestError):
        await box.broker.serve(method, params)
