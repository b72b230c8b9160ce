"""Agents in their sandbox, in a keeper: what they reach, with which key, and when they are refused."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gateway import PluginError
from gateway.api import ProgramPrefix
from gateway.extensions.process import kernel
from gateway.extensions.process.service import Processes
from plugins.coding_agents.adapters import find_adapter
from plugins.coding_agents.confinement.profile import (
    PLACEHOLDER,
    UNCONFINED,
    Confined,
    Confinement,
    Folders,
    installation,
)
from plugins.coding_agents.errors import SandboxUnavailableError
from plugins.coding_agents.keeper_client import Exit, KeeperClient, KeeperLaunch, start_keeper
from plugins.coding_agents.records import SessionRecord
from plugins.coding_agents.settings import CodingAgentSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(kernel.missing(kernel.layers(), strict=True)), reason="the kernel cannot confine"
    ),
]

SECONDS = 60
KEY = "sk-real-key"
ADAPTER = structs.replace(
    find_adapter("shell"), key="MODEL_KEY", url="MODEL_URL", service="https://model.invalid/v1"
)


class Tasks:
    """Tasks of a test, in its group."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def create_task(self, work: Any, *, name: str = "") -> object:
        return self._group.create_task(work, name=name)


class Sandbox:
    """A session whose program runs in a keeper, confined by settings."""

    def __init__(
        self, folder: Path, group: asyncio.TaskGroup, environ: Mapping[str, str], **settings: Any
    ) -> None:
        self.data = folder / "data"
        self.work = folder / "work"
        self.home = self.data / "coding-agents/homes/one"
        self.record = SessionRecord(
            id="pty-1", agent="shell", status="pending", owner="test:ada", workdir=str(self.work),
            created_at=0, last_activity=0, key=os.urandom(32).hex(),
        )  # fmt: skip
        self.folder = self.data / "coding-agents/sessions/pty-1"
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder / "operator"), **environ}
        self.confinement = Confinement(
            Processes(), CodingAgentSettings(**settings), environ, Tasks(group),
            data=self.data, own=self.data / "coding-agents",
        )  # fmt: skip
        for path in (self.work, self.home, folder / "operator/.ssh"):
            path.mkdir(parents=True, exist_ok=True)

    async def confine(self, program: str = "/bin/bash") -> Confined:
        return await self.confinement.confine(self.record, ADAPTER, program, self.home)

    async def run(self, *argv: str, **env: str) -> tuple[int, str]:
        """Run a program to its end. Return its status and its output."""
        confined = await self.confine(argv[0])
        await self.start(confined, *argv, **env)
        return await self.follow(confined)

    async def start(self, confined: Confined, *argv: str, **env: str) -> None:
        await start_keeper(
            KeeperLaunch(
                folder=self.folder, argv=(*confined.prefix, *argv), cwd=str(self.work),
                key=b"k" * 32, mark=self.record.key,
                env={"PATH": "/usr/bin:/bin", "HOME": str(self.home), **confined.env, **env},
            )
        )  # fmt: skip

    async def follow(self, confined: Confined) -> tuple[int, str]:
        output, ended = bytearray(), asyncio.get_running_loop().create_future()

        def end(exit: Exit) -> None:
            ended.set_result(exit.status)

        client = await KeeperClient.attach(
            self.folder, b"k" * 32, 0, on_output=lambda _, data: output.extend(data), on_exit=end,
            on_gone=lambda: None, on_stream=confined.on_stream,
        )  # fmt: skip
        async with asyncio.timeout(SECONDS):
            status = await ended
        await client.acknowledge_exit()
        return status, output.decode().replace("\r\n", "\n")

    async def python(self, code: str, **env: str) -> str:
        status, output = await self.run("/usr/bin/python3", "-c", code, **env)
        assert status == 0, output
        return output


@asynccontextmanager
async def sandbox(
    folder: Path, environ: Mapping[str, str] | None = None, **settings: Any
) -> AsyncGenerator[Sandbox]:
    async with asyncio.TaskGroup() as group:
        yield Sandbox(folder, group, environ or {}, **settings)


@asynccontextmanager
async def http(answer: bytes) -> AsyncGenerator[tuple[str, list[str]]]:
    """A server of one answer; yields its address, and the heads of requests that it got."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "sessions" not in path.parts]


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nfine\n"

ESCAPES = """
import json, os, socket, sys
facts = json.loads(sys.argv[1])

def attempt(action):
    try:
        action()
    except (OSError, ValueError) as error:
        return str(error)
    return "worked"

def connect(kind, host, port):
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.settimeout(5)
        sock.connect((host, port))
        sock.send(b"x")

def write(path):
    # Its own /tmp may be around its folders here; what it writes there is nowhere else.
    with open(path, "w") as file:
        file.write("x")

data, operator, session = facts["data"], facts["operator"], facts["session"]
attacks = {
    "database": lambda: open(f"{data}/trunkline.db").read(),
    "token": lambda: open(f"{data}/token").read(),
    "names of the data": lambda: os.listdir(data).index("trunkline.db"),
    "another workspace": lambda: open(f"{data}/coding-workspaces/two/secret").read(),
    "another home": lambda: os.listdir(f"{data}/coding-agents/homes").index("two"),
    "the keeper's socket": lambda: socket.socket(socket.AF_UNIX).connect(f"{session}/keeper.sock"),
    "the keeper's output": lambda: open(f"{session}/output.0").read(),
    "ssh": lambda: os.listdir(f"{operator}/.ssh"),
    "the operator's home": lambda: os.listdir(operator),
    "write to its own code": lambda: open(facts["code"], "a"),
    "the gateway's variables": lambda: open(f"/proc/{facts['pid']}/environ").read(),
    "end the gateway": lambda: os.kill(facts["pid"], 0),
    "TCP": lambda: connect(socket.SOCK_STREAM, "127.0.0.1", facts["port"]),
    "metadata": lambda: connect(socket.SOCK_STREAM, "169.254.169.254", 80),
    "UDP": lambda: connect(socket.SOCK_DGRAM, "192.0.2.1", 53),
    "DNS": lambda: socket.getaddrinfo("example.com", 443),
}
print(json.dumps({name: attempt(action) for name, action in attacks.items()}))
for path in (f"{os.getcwd()}/../new", f"{data}/new", f"{data}/trunkline.db", f"{operator}/.ssh/known"):
    attempt(lambda: write(path))
"""


async def test_44_an_agent_reads_no_database_token_workspace_or_key_of_others(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as box, http(OK) as (address, _):
        for name in (
            "trunkline.db",
            "token",
            "coding-workspaces/two/secret",
            "coding-agents/homes/two/secret",
        ):
            (box.data / name).parent.mkdir(parents=True, exist_ok=True)
            (box.data / name).write_text("secret")
        facts = {
            "data": str(box.data), "operator": str(tmp_path / "operator"), "session": str(box.folder),
            "pid": os.getpid(), "port": int(address.partition(":")[2]), "code": subprocess.__file__,
        }  # fmt: skip
        status, output = await box.run("/usr/bin/python3", "-c", ESCAPES, json.dumps(facts))
        assert status == 0, output
        outcomes = json.loads(output)
        assert {name for name, outcome in outcomes.items() if outcome == "worked"} == set()
        found = {str(path.relative_to(tmp_path)): path for path in await asyncio.to_thread(files, tmp_path)}
        secrets = [name for name in found if found[name].read_text() == "secret"]
        assert len(secrets) == 4
        assert not [name for name in found if name.endswith(("new", "known"))]


PROXIED = """
import os, socket, sys
def ask(host, port, line=b"CONNECT %s:%d HTTP/1.1\\r\\n\\r\\n"):
    with socket.create_connection(("127.0.0.1", 3128)) as sock:
        sock.sendall(line % (host.encode(), port))
        answer = sock.recv(1000)
        if b" 200 " in answer:
            sock.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
            answer += b"".join(iter(lambda: sock.recv(1000), b""))
        else:
            answer += sock.recv(1000)
        print(answer.decode())
for host in sys.argv[1:]:
    name, _, port = host.rpartition(":")
    ask(name, int(port))
"""


async def test_45_the_only_way_out_is_the_proxy_to_allowed_hosts(tmp_path: Path) -> None:
    async with http(OK) as (address, heads):
        port = address.partition(":")[2]
        named = (f"localhost:{port}", "127.0.0.0/8")
        hosts = (f"localhost:{port}", "169.254.169.254:80", "metadata.google.internal:443", "example.com:443")
        async with sandbox(tmp_path, network="list", allow_hosts=named) as box:
            status, output = await box.run("/usr/bin/python3", "-c", PROXIED, *hosts)
            assert status == 0, output
            assert output.count("HTTP/1.1 403") == 3
            assert output.count("is not among the allowed hosts") == 3
            assert "HTTP/1.1 200 Connection established" in output
            assert "fine" in output
        # The name alone leads to this machine, and network = "model" leaves the list out.
        for settings in (
            {"network": "list", "allow_hosts": (*named[:1], "@npm")},
            {"network": "model", "allow_hosts": named},
        ):
            async with sandbox(tmp_path, **settings) as box:
                status, output = await box.run("/usr/bin/python3", "-c", PROXIED, hosts[0])
                assert "HTTP/1.1 403" in output
        assert len(heads) == 1


FETCH = """
import os, urllib.request
for name in ("MODEL_KEY", "HTTPS_PROXY", "NO_PROXY"):
    print(name, os.environ.get(name))
url, key = os.environ["MODEL_URL"], os.environ["MODEL_KEY"]
request = urllib.request.Request(url + "/messages", headers={"x-api-key": key})
print(urllib.request.urlopen(request).read().decode())
"""


async def test_a_proxied_key_stays_in_the_gateway(tmp_path: Path) -> None:
    async with http(OK) as (address, heads):
        environ = {"MODEL_KEY": KEY, "MODEL_URL": f"http://{address}/v1/"}
        async with sandbox(tmp_path, environ) as box:
            confined = await box.confine()
            assert confined.key.startswith(PLACEHOLDER)
            assert confined.base_url == "http://127.0.0.1:3129/v1"
            assert KEY not in repr((confined.prefix, confined.env))
            output = await box.python(FETCH)
            assert KEY not in output
            assert output.endswith("fine\n\n")
            assert f"MODEL_KEY {PLACEHOLDER}" in output
            # The same after a restart of the gateway: the program goes on with it.
            assert (await box.confine()).key == confined.key
        assert "GET /v1/messages HTTP/1.1" in heads[0]
        assert f"x-api-key: {KEY}" in heads[0].lower()
        assert f"Host: {address}" in heads[0]


async def test_a_connection_waits_for_a_gateway_that_is_away(tmp_path: Path) -> None:
    async with http(OK) as (address, heads):
        environ = {"MODEL_KEY": KEY, "MODEL_URL": f"http://{address}/v1"}
        async with sandbox(tmp_path, environ) as box:
            confined = await box.confine("/usr/bin/python3")
            await box.start(confined, "/usr/bin/python3", "-c", f"print('asking', flush=True)\n{FETCH}")
            output = bytearray()
            seen = asyncio.Event()

            def hear(_: int, data: bytes) -> None:
                output.extend(data)
                if b"asking" in output:
                    seen.set()

            client = await KeeperClient.attach(
                box.folder, b"k" * 32, 0, on_output=hear, on_exit=lambda _: None, on_gone=lambda: None
            )
            async with asyncio.timeout(SECONDS):
                await seen.wait()
            await client.close()
            assert heads == []
            status, text = await box.follow(confined)
            assert (status, "fine" in text) == (0, True)


async def test_a_direct_key_is_given_and_a_proxied_one_needs_its_own_network(tmp_path: Path) -> None:
    environ = {"MODEL_KEY": KEY}
    async with sandbox(tmp_path, environ, key="direct", network="open") as box:
        confined = await box.confine()
        assert (confined.key, confined.base_url) == (KEY, "")
        assert "HTTPS_PROXY" not in confined.env
    async with sandbox(tmp_path, environ, network="open") as box:
        with pytest.raises(SandboxUnavailableError, match='key = "direct"'):
            await box.confine()


async def test_keys_that_cannot_be_added_to_requests_are_withheld(tmp_path: Path) -> None:
    aider = find_adapter("aider")
    environ = {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_BASE": "https://models.example/v1"}
    async with sandbox(tmp_path, environ) as box:
        confined = await box.confinement.confine(box.record, aider, "/bin/sh", box.home)
        assert confined.withheld == {"ANTHROPIC_API_KEY"}
        assert 'key = "direct"' in confined.notice
    async with sandbox(tmp_path, {**environ, "OPENAI_API_KEY": "sk-other"}) as box:
        confined = await box.confinement.confine(box.record, aider, "/bin/sh", box.home)
        assert (confined.withheld, confined.notice) == ({"ANTHROPIC_API_KEY"}, "")
        assert confined.env["OPENAI_API_KEY"] == confined.key
        assert confined.key.startswith(PLACEHOLDER)
    async with sandbox(tmp_path, environ, agents={"aider": {"key": "direct"}}) as box:
        confined = await box.confinement.confine(box.record, aider, "/bin/sh", box.home)
        assert (confined.withheld, confined.notice) == (frozenset(), "")


async def test_an_open_network_is_that_of_the_machine_and_files_stay_closed(tmp_path: Path) -> None:
    async with http(OK) as (address, heads), sandbox(tmp_path, network="open") as box:
        (box.data / "token").write_text("secret")
        code = f"import urllib.request as u; print(u.urlopen('http://{address}/').read())"
        _, output = await box.run("/bin/bash", "-c", f'python3 -c "{code}"; cat {box.data}/token')
        assert "fine" in output
        assert "No such file" in output
        assert len(heads) == 1


async def test_a_workspace_is_a_repository_that_an_agent_commits_to_and_cannot_configure(
    tmp_path: Path,
) -> None:
    mirror, repository, tree = tmp_path / "data/mirror.git", tmp_path / "data/git/one.git", tmp_path / "work"

    def git(*words: str, folder: Path = tmp_path) -> None:
        subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)

    def prepare() -> None:
        mirror.parent.mkdir(parents=True)
        git("init", "-q", "seed")
        for name, value in (("user.name", "A"), ("user.email", "a@example.com")):
            git("config", name, value, folder=tmp_path / "seed")
        (tmp_path / "seed/file").write_text("text")
        git("add", "file", folder=tmp_path / "seed")
        git("commit", "-qm", "first", folder=tmp_path / "seed")
        git("clone", "-q", "--bare", "seed", str(mirror))
        git("clone", "-q", "--bare", "--shared", str(mirror), str(repository))
        git("worktree", "add", "-q", "-b", "one", str(tree), folder=repository)

    await asyncio.to_thread(prepare)
    admin = next((repository / "worktrees").iterdir())

    async def folders(_: SessionRecord) -> Folders:
        written = (admin, *(repository / name for name in ("objects", "refs", "logs")))
        return Folders(written, (repository, mirror / "objects"))

    script = f"""
    git config --global user.name A; git config --global user.email a@example.com
    echo more >> file && git add file && git commit -qm 'an agent' && git log --oneline | wc -l
    git config core.fsmonitor /tmp/evil && echo CONFIGURED
    echo evil > {repository}/hooks/post-commit && echo HOOKED
    rm -rf {mirror}/objects/* && echo REMOVED
    echo x > {mirror}/refs/heads/evil && echo MOVED
    echo x > "$TMPDIR/x" && echo x > /tmp/x && echo TEMPORARY
    """
    async with sandbox(tmp_path) as box:
        box.confinement.folders_of = folders
        _, output = await box.run("/bin/bash", "-c", script)
    assert output.splitlines()[0] == "2", output
    assert "TEMPORARY" in output
    assert not {"CONFIGURED", "HOOKED", "REMOVED", "MOVED"} & set(output.split())


async def test_a_folder_with_secrets_of_the_operator_is_not_a_working_folder(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as box:
        box.record = structs.replace(box.record, workdir=str(tmp_path / "operator"))
        with pytest.raises(SandboxUnavailableError, match=r"\.ssh, which is closed"):
            await box.confine()


async def test_without_a_sandbox_programs_are_refused_unless_it_is_off(tmp_path: Path) -> None:
    class Refusing:
        """The processes of a machine without the layer."""

        async def program_prefix(self, *_: object) -> ProgramPrefix:
            raise PluginError("landlock: the kernel has none; use a kernel from 5.13 on")

    class Other(Processes):
        program_prefix = Refusing.program_prefix  # pyright: ignore[reportAssignmentType]

    async with asyncio.TaskGroup() as group:
        for processes in (None, Other()):
            for sandbox_is in ("on", "off"):
                confinement = Confinement(
                    processes, CodingAgentSettings(sandbox=sandbox_is), {}, Tasks(group),
                    data=tmp_path, own=tmp_path,
                )  # fmt: skip
                record = SessionRecord(
                    id="pty-1", agent="shell", status="pending", owner="test:ada",
                    workdir=str(tmp_path / "work"), created_at=0, last_activity=0, key="00",
                )  # fmt: skip
                started = confinement.confine(record, ADAPTER, "/bin/sh", tmp_path / "home")
                if sandbox_is == "on":
                    with pytest.raises(SandboxUnavailableError, match=r'sandbox = "off"|cannot confine'):
                        await started
                else:
                    confined = await started
                    assert (tuple(confined.prefix), confined.notice) == ((), UNCONFINED)
                report = await confinement.report()
                assert (report.layers, bool(report.problem)) == ((), True)


def test_the_installation_of_a_program_is_found_through_its_links(tmp_path: Path) -> None:
    package = tmp_path / "lib/node_modules/agent"
    package.mkdir(parents=True)
    (package / "cli.js").write_text("#!/usr/bin/env node\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/agent").symlink_to("../lib/node_modules/agent/cli.js")
    found = list(installation(str(tmp_path / "bin/agent")))
    assert found == [tmp_path / "bin/agent", package / "cli.js", tmp_path / "lib/node_modules"]
