"""Gateways on the local network: announced and found with real mDNS, on the loopback interface alone."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from gateway.cli.discovery import SERVICE, Discovered, _described, find  # pyright: ignore[reportPrivateUsage]
from tests.gateway.cli.processes import Terminal, environment, gateway, trunkline

LOOPBACK = "127.0.0.1"
HERE = ("--discover", "--interface", LOOPBACK)
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """All tests of this machine share its loopback interface, so one at a time announces something there."""
    with (Path(tempfile.gettempdir()) / "trunkline-test-discovery.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.asynccontextmanager
async def announced(port: int, name: str = "Stranger", **properties: str) -> AsyncIterator[None]:
    """An announcement of another program."""
    async with AsyncZeroconf([LOOPBACK]) as network:
        info = AsyncServiceInfo(
            SERVICE,
            f"{name}.{SERVICE}",
            parsed_addresses=[LOOPBACK],
            port=port,
            properties={"path": "/", "tls": "no", **properties},
            server=f"stranger-{port}.local.",
        )
        await (await network.async_register_service(info))
        yield
        await network.async_unregister_all_services()


class Stranger:
    """A server that keeps what clients send, and answers none of it."""

    def __init__(self) -> None:
        self.heard = b""
        self.socket = socket.create_server((LOOPBACK, 0))
        self.port: int = self.socket.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.socket.accept()
                with client:
                    self.heard += client.recv(65_536)
                    client.sendall(
                        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    )


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    stranger = Stranger()
    yield stranger
    stranger.socket.close()


async def run(*args: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(lambda: trunkline(*args, home=home, **environ))


async def test_004_T22_a_gateway_is_announced_found_and_withdrawn(tmp_path: Path):
    with gateway(tmp_path, TRUNKLINE_SERVER__ANNOUNCE="true") as running:
        done = await run("send", "hello", *HERE, "--yes", home=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
        [found] = await find(LOOPBACK, seconds=0, most=30)
        assert found == Discovered(found.name, f"http://127.0.0.1:{running.port}")
        assert found.name.startswith("Trunkline on ")
        assert running.stop() == 0
    assert await find(LOOPBACK, seconds=0, most=2) == []


async def test_an_announcement_has_no_secret(tmp_path: Path):
    environ = {"TRUNKLINE_SERVER__ANNOUNCE": "true", "TRUNKLINE_SERVER__TOKEN": TOKEN}
    with gateway(tmp_path, **environ) as running:
        [found] = await find(LOOPBACK, seconds=0, most=30)
        async with AsyncZeroconf([LOOPBACK]) as network:
            info = AsyncServiceInfo(SERVICE, f"{found.name}.{SERVICE}")
            assert await info.async_request(network.zeroconf, 30_000)
        assert info.properties == {b"txtvers": b"1", b"path": b"/", b"tls": b"no"}
        assert (info.parsed_addresses(), str(info.port)) == ([LOOPBACK], running.port)
        assert running.stop() == 0


async def test_nothing_is_announced_unless_the_settings_say_so(tmp_path: Path):
    with gateway(tmp_path) as running:
        assert await find(LOOPBACK, seconds=0, most=2) == []
        assert running.stop() == 0


def test_the_library_is_imported_only_when_it_is_used(tmp_path: Path):
    code = "import gateway.cli.run, gateway.cli.chat.send, sys; sys.exit('zeroconf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment(tmp_path)).returncode == 0


async def test_no_token_of_the_settings_is_sent_to_a_stranger(tmp_path: Path, stranger: Stranger):
    async with announced(stranger.port):
        done = await run(
            "send", "hello", *HERE, "--yes", "--timeout", "5", home=tmp_path, TRUNKLINE_SERVER__TOKEN=TOKEN
        )
        assert done.returncode == 1
        assert b"GET /" in stranger.heard
        assert TOKEN.encode() not in stranger.heard
        own = ("--token", "a-token-for-this-gateway", "--timeout", "5")
        await run("send", "hello", *HERE, "--yes", *own, home=tmp_path, TRUNKLINE_SERVER__TOKEN=TOKEN)
        assert b"a-token-for-this-gateway" in stranger.heard
        assert TOKEN.encode() not in stranger.heard


async def test_without_a_terminal_a_found_gateway_is_not_used(tmp_path: Path, stranger: Stranger):
    async with announced(stranger.port):
        for command in (("send", "hello"), ("chat",)):
            done = await run(*command, *HERE, home=tmp_path)
            assert done.returncode == 2
            assert f"use it with --url http://127.0.0.1:{stranger.port}, or add --yes" in done.stderr
    assert stranger.heard == b""


async def test_at_a_terminal_the_user_confirms_the_address(tmp_path: Path, stranger: Stranger):
    def refuse() -> None:
        with contextlib.closing(Terminal(tmp_path, "send", "hello", *HERE, "--token", "x" * 32)) as terminal:
            terminal.expect(r"Every machine in the network can announce any name\.")
            terminal.expect(rf"Send the message and your token to http://127\.0\.0\.1:{stranger.port}")
            terminal.type("n\r")
            assert terminal.wait() == 1

    async with announced(stranger.port):
        await asyncio.to_thread(refuse)
    assert stranger.heard == b""


async def test_several_gateways_are_listed(tmp_path: Path, stranger: Stranger):
    async with announced(stranger.port, "Home"), announced(stranger.port + 1, "Office"):
        done = await run("send", "hello", *HERE, "--yes", home=tmp_path)
    assert done.returncode == 2
    assert "2 gateways were found; pick one:" in done.stderr
    assert f"--url http://127.0.0.1:{stranger.port}   Home" in done.stderr
    assert f"--url http://127.0.0.1:{stranger.port + 1}   Office" in done.stderr
    assert stranger.heard == b""


async def test_a_search_without_a_result_ends(tmp_path: Path):
    done = await run("send", "hello", *HERE, home=tmp_path)
    assert done.returncode == 1
    assert "no gateway was found on the local network within 10 s; name it with --url" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--discover", "--url", "http://x"), "--url and --discover exclude each other"),
        (("--yes",), "--yes and --interface need --discover"),
        (("--interface", LOOPBACK), "--yes and --interface need --discover"),
        (("--discover", "--interface", "nowhere"), "the local network cannot be searched"),
        (("--discover", "--interface", "203.0.113.7"), "the local network cannot be searched"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, args: tuple[str, ...], said: str):
    done = trunkline("send", "hello", *args, home=tmp_path)
    assert done.returncode in (1, 2)
    assert said in done.stderr


@pytest.mark.parametrize("command", ["run --port 0", "config check", "send hello --discover"])
def test_a_missing_extra_is_named(tmp_path: Path, command: str):
    code = f"import sys; sys.modules['zeroconf'] = None; sys.argv[1:] = {command.split()}\n"
    code += "from gateway.__main__ import main; sys.exit(main())"
    environ = environment(tmp_path, TRUNKLINE_SERVER__ANNOUNCE="true")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "the extra discovery is not installed. Run pip install 'trunkline[discovery]'" in done.stderr


def labels(*names: bytes) -> bytes:
    return b"".join(bytes([len(name)]) + name for name in names) + b"\0"


def packet(instance: bytes, *, service: bool = True, text: bytes = b"\x06path=/") -> bytes:
    """A DNS message that announces an instance: names and texts of its records are not checked here."""
    kind, host = (b"_trunkline", b"_tcp", b"local"), labels(b"host", b"local")
    name = labels(instance, *kind)
    records = [(labels(*kind), 12, 1, name)]
    if service:
        place = struct.pack("!HHH", 0, 0, 8080) + host
        address = socket.inet_aton("192.168.1.5")
        records += [(name, 33, 0x8001, place), (name, 16, 0x8001, text), (host, 1, 0x8001, address)]
    body = b"".join(n + struct.pack("!HHIH", k, c, 120, len(d)) + d for n, k, c, d in records)
    return struct.pack("!HHHHHH", 0, 0x8400, 0, len(records), 0, 0) + body


async def test_hostile_packets_do_not_end_the_search():
    hostile = [
        *(packet(name) for name in (b"\x1b[31mred", b"\xff\xfe", b"a\0b", b"x" * 63)),
        *(packet(b"cut")[:size] for size in (0, 5, 11, 40, 90)),
        packet(b"no service", service=False),
        packet(b"bad text", text=b"\xff\xff"),
        packet(b"bad path", text=b"\x0dpath=@evil.de"),
    ]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as network:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            network.setsockopt(socket.SOL_SOCKET, option, 1)
        network.bind((LOOPBACK, 5353))
        network.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
        async with asyncio.TaskGroup() as tasks:
            searching = tasks.create_task(find(LOOPBACK, seconds=4, most=30))
            while not searching.done():
                for each in (*hostile, packet(b"good")):
                    network.sendto(each, ("224.0.0.251", 5353))
                await asyncio.sleep(0.1)
    found = {one.name: one.url for one in searching.result()}
    assert found["good"] == "http://192.168.1.5:8080"
    assert all(name.isprintable() and url == "http://192.168.1.5:8080" for name, url in found.items())
    assert not {"no service", "bad path", "cut"} & set(found)


FORGED = [
    (["192.168.1.5"], 8080, {}, "http://192.168.1.5:8080"),
    (["192.168.1.5"], 8080, {b"path": b"/bot/", b"tls": b"yes"}, "https://192.168.1.5:8080/bot"),
    (["fe80::1%eth0", "fe80::1", "fd00::1"], 1, {b"path": None}, "http://[fd00::1]:1"),
    (["0.0.0.0", "224.0.0.1"], 8080, {}, None),
    ([], 8080, {}, None),
    (["192.168.1.5"], 0, {}, None),
    (["192.168.1.5"], None, {}, None),
    *(
        (["192.168.1.5"], 8080, {b"path": path}, None)
        for path in (
            b"x",
            b"@evil.example/",
            b"/a b",
            b"/\r\nX: y",
            b"/?token=x",
            b"/\xff",
            b"/" + b"a" * 300,
        )
    ),
]


@pytest.mark.parametrize(("addresses", "port", "properties", "url"), FORGED)
def test_a_forged_announcement_names_a_plain_address_or_nothing(addresses, port, properties, url):
    found = _described("\x1b[2JA\nname" + "x" * 100, addresses, port, properties)
    assert (found and found.url) == url
    if found:
        assert len(found.name) <= 60
        assert found.name.isprintable()
