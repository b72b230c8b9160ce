"""The file of an organization: fetched by real commands from a server with TLS, and its copy."""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.contract.errors import SettingsError
from gateway.settings.layers.remote import Copy, RemoteFile
from gateway.settings.loader import _checked  # pyright: ignore[reportPrivateUsage]
from tests.gateway.cli.processes import gateway, trunkline

GOOD = 'system_prompt = "Be brief."\nmax_tokens = 77\n[limits]\nmax_llm_calls = 9\n'


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 and localhost, which is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file, secret = folder / "authority.pem", folder / "key.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file, secret


class Host:
    """The server of an organization. ``answer`` is what it sends: status, media type, text, target."""

    def __init__(self, folder: Path, *, tls: bool = True) -> None:
        self.status, self.kind, self.text, self.location = 200, "application/toml", GOOD, ""
        self.asked: list[str] = []
        self.released = threading.Event()
        self.slow = False
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host.asked.append(self.path)
                if host.slow:
                    host.released.wait()
                    return
                self.send_response(host.status)
                self.send_header("Content-Type", host.kind)
                if host.location:
                    self.send_header("Location", host.location)
                data = host.text.encode() if isinstance(host.text, str) else host.text
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.authority, secret = certificate(folder)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.authority, secret)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        self.url = f"https://127.0.0.1:{self.port}/trunkline.toml"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


class Member:
    """A machine whose personal settings name the organization."""

    def __init__(self, home: Path, host: Host) -> None:
        self.home, self.host = home, host
        self.personal = home / "xdg/trunkline/trunkline.toml"
        self.personal.parent.mkdir(parents=True)
        self.personal.write_text(f'organization = "{host.url}"\nfetch.allow = ["127.0.0.1/32"]\n')
        self.cache = home / "cache/trunkline"
        self.environ = {
            "SSL_CERT_FILE": str(host.authority),
            "XDG_CACHE_HOME": str(home / "cache"),
            "SECRET": "hunter2",
        }

    def run(self, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return trunkline("config", *args, home=self.home, **{**self.environ, **environ})

    def shown(self, **environ: str) -> dict[str, tuple[object, str, str]]:
        done = self.run("show", "--origin", "--json", **environ)
        assert done.returncode == 0, done.stderr
        return {row["key"]: (row["value"], row["layer"], row["source"]) for row in json.loads(done.stdout)}

    @property
    def copy(self) -> Path:
        [file] = self.cache.glob("*.json")  # beside it may be the one that replaces it
        return file

    def keep(self, age: float = 0) -> None:
        """Write a copy that was fetched so many seconds ago."""
        copy = Copy(self.host.url, time.time() - age, ".toml", GOOD)
        RemoteFile(self.host.url, self.cache)._keep(copy)  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def member(tmp_path: Path, host: Host) -> Member:
    return Member(tmp_path, host)


def test_004_T19_the_file_of_an_organization_is_the_lowest_layer(member: Member, host: Host):
    (member.home / "config").mkdir()
    (member.home / "config/trunkline.toml").write_text("max_tokens = 5\n")
    # A variable of Python itself makes it a started process, which has imported nothing before.
    shown = member.shown(PYTHONUNBUFFERED="1")
    assert shown["system_prompt"] == ("Be brief.", "organization", f"{host.url}:1")
    assert shown["limits.max_llm_calls"] == (9, "organization", f"{host.url}:4")
    assert shown["max_tokens"] == (5, "operator", "config/trunkline.toml:1")
    assert shown["organization"][1] == "personal"
    assert (member.copy.stat().st_mode & 0o777, member.cache.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_variable_names_the_organization_and_a_host_alone_is_enough(member: Member, host: Host):
    member.personal.unlink()
    url, allowed = f"https://localhost:{host.port}", '["127.0.0.1/32"]'
    shown = member.shown(TRUNKLINE_ORGANIZATION=url, TRUNKLINE_FETCH__ALLOW=allowed)
    assert shown["max_tokens"] == (77, "organization", f"{url}/.well-known/trunkline.toml:2")
    assert host.asked == ["/.well-known/trunkline.toml"]


def test_a_file_in_json_is_known_by_its_media_type(member: Member, host: Host):
    host.kind, host.text = "application/json", '{\n// …\n"maxTokens": 78}'
    member.personal.write_text(member.personal.read_text().replace("/trunkline.toml", "/settings"))
    assert member.shown()["max_tokens"][:2] == (78, "organization")


def refuse_connections(host: Host) -> None:
    host.close()


def stall(host: Host) -> None:
    host.slow = True


def answer(**changes: object):
    def change(host: Host) -> None:
        for name, value in changes.items():
            setattr(host, name, value)

    return change


FAILURES = {
    "down": (refuse_connections, "cannot be reached"),
    "slow": (stall, "did not answer within 5 s"),
    "gone": (answer(status=404), "answered with status 404"),
    "a page": (answer(kind="text/html", text="<html>"), "is text/html, not a settings file"),
    "no TOML": (answer(text="<html>"), "trunkline.toml:1:1: Invalid statement"),
    "no text": (answer(text=b"\xff\xfe"), "is not UTF-8 text"),
    "oversized": (answer(text="#" * 200_000), "sent more than 131072 bytes"),
    "deep": (answer(text="model = " + "[" * 60_000), "is nested too deeply"),
    "many values": (answer(text="\n".join(f'aliases.a{n} = "x/y"' for n in range(1500))), "has 1500 values"),
    "a wrong value": (
        answer(text="max_tokens = -1"),
        "trunkline.toml:1: max_tokens = -1 must be greater than 0",
    ),
    "to http": (answer(status=302, location="http://example.com/x"), "only https addresses are allowed"),
    "to loopback": (
        answer(status=302, location="https://127.0.0.2/x"),
        "127.0.0.2:443 is not a public address",
    ),
    "to metadata": (
        answer(status=301, location="https://169.254.169.254/latest"),
        "169.254.169.254:443 is not a public address",
    ),
    "to a file": (answer(status=302, location="file:///etc/passwd"), "only http and https"),
    "in a circle": (answer(status=302, location="/again"), "redirects too often"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_004_T19_the_last_good_copy_stays_in_use(member: Member, host: Host, failure: str):
    change, said = FAILURES[failure]
    member.keep(3 * 3600 + 5)
    kept = member.copy.read_bytes()
    change(host)
    done = member.run("check")
    assert done.returncode == 0
    assert host.url in done.stderr
    assert said in done.stderr
    assert "the copy in use is 3 hours old" in done.stderr
    assert member.copy.read_bytes() == kept


@pytest.mark.parametrize("failure", ["down", "no TOML", "to loopback"])
def test_without_a_copy_a_failure_is_an_error(member: Member, host: Host, failure: str):
    change, said = FAILURES[failure]
    change(host)
    done = member.run("check")
    assert done.returncode == 2
    assert said in done.stderr
    assert "there is no copy of it yet" in done.stderr
    assert not member.cache.exists()


def test_a_private_address_needs_fetch_allow(member: Member):
    member.personal.write_text(f'organization = "{member.host.url}"\n')
    done = member.run("check")
    assert done.returncode == 2
    assert "is not a public address; networks of an organization can be listed in fetch.allow" in done.stderr


def test_a_certificate_of_an_unknown_authority_is_refused(member: Member, tmp_path: Path):
    (tmp_path / "other").mkdir()
    other, _ = certificate(tmp_path / "other")
    done = member.run("check", SSL_CERT_FILE=str(other))
    assert done.returncode == 2
    assert "cannot be fetched" in done.stderr


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/x", "https://me:pw@127.0.0.1/x", "ftp://x", "x", "https://"]
)
def test_the_address_is_an_https_one_without_password(member: Member, url: str):
    member.personal.write_text(f'organization = "{url}"\n')
    done = member.run("check")
    assert done.returncode == 2
    assert "trunkline.toml:1: organization" in done.stderr
    assert "must be an https address" in done.stderr
    assert "pw@" not in done.stderr


REFUSED = [
    'data_dir = "/tmp/x"',
    'server.token = "x"',
    'server.host = "0.0.0.0"',
    'plugins.enabled = ["./x.py"]',
    'channels.telegram.token = "x"',
    'providers.openai.base_url = "https://evil.example"',
    'providers.openai.api_key = "x"',
    'providers.openai.region = "x"',
    'providers.openai.custom_headers = { a = "b" }',
    'store.url = "sqlite://"',
    'fetch.allow = ["10.0.0.0/8"]',
    'organization = "https://example.com"',
    'trusted_projects = ["/"]',
    'permissions.shell = "allow"',
    'permissions.git = { "push *" = "ask" }',
    'system_prompt = "${SECRET}"',
    'agents.y.system_prompt = "{env:SECRET}"',
    'agents.x.system_prompt = "{file:/etc/passwd}"',
    'aliases.x = "openai/${SECRET}"',
]


def test_an_organization_must_not_set_what_reaches_secrets_or_other_machines(member: Member, host: Host):
    host.text = "\n".join(REFUSED)
    done = member.run("check")
    assert done.returncode == 2
    lines = {int(number) for number in re.findall(rf"{re.escape(host.url)}:(\d+):", done.stderr)}
    assert lines == set(range(1, len(REFUSED) + 1))
    assert "hunter2" not in done.stderr
    assert not member.cache.exists()


@pytest.mark.parametrize("line", REFUSED)
def test_each_of_these_is_refused_by_itself(line: str):
    """In the process of the test: the rules need no server."""
    with pytest.raises(SettingsError, match=r"must not (be set|read)|is read only"):
        _checked(Copy("https://x/y", time.time(), ".toml", line))


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def open_to_all(file: Path) -> None:
    file.chmod(0o666)


def link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to(file.with_name("elsewhere"))


@pytest.mark.parametrize("spoil", [damage, open_to_all, link, Path.unlink])
def test_a_copy_that_is_damaged_or_may_be_forged_is_fetched_again(member: Member, host: Host, spoil):
    member.keep()
    file = member.copy
    spoil(file)
    assert member.shown()["max_tokens"][0] == 77
    assert len(host.asked) == 1
    assert file.stat(follow_symlinks=False).st_mode & 0o777 == 0o600
    assert member.shown()["max_tokens"][0] == 77
    assert len(host.asked) == 1  # a copy is used without asking the host


def test_a_copy_that_cannot_be_written_is_a_warning(member: Member):
    (member.home / "cache").write_text("a file, not a folder")
    done = member.run("check")
    assert done.returncode == 0
    assert "cannot be copied to" in done.stderr
    assert member.shown()["max_tokens"][0] == 77


def test_a_gateway_starts_with_the_copy_and_refreshes_it_for_the_next_start(member: Member, host: Host):
    member.keep()
    host.text = GOOD.replace("77", "78")
    with gateway(member.home, **member.environ) as running:
        said = "".join(running.lines(5))
        deadline = time.monotonic() + 30
        while "= 78" not in json.loads(member.copy.read_text())["text"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert running.stop() == 0
        assert running.process.stderr is not None
        errors = running.process.stderr.read()
    assert f"no config/trunkline.toml; also {host.url} (fetched " in said
    assert "(personal)" in said
    assert "has changed; the next start applies it" in errors
    assert member.shown()["max_tokens"][0] == 78


def test_a_gateway_starts_while_the_host_hangs(member: Member, host: Host):
    member.keep(2 * 86_400 + 5)
    host.slow = True
    with gateway(member.home, **member.environ) as running:
        assert "(fetched 2 days ago) (organization)" in "".join(running.lines(5))
        assert running.stop() == 0
