"""Indexes of plugins, fetched over real HTTP: signatures, pins, copies, installation, withdrawn versions."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from gateway import PluginError, SettingsError
from gateway.extensions.admission.lock import granted
from gateway.extensions.admission.packages.index import PluginIndexes, notes
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.settings import Settings
from gateway.testing.served import serving, until

if TYPE_CHECKING:
    from conftest import Desk

MANIFEST = """\
name: audit
version: "{version}"
description: Audits
capabilities: {{send: true}}
"""
CODE = "from trunkline_plugin import plugin\n\n\n@plugin\nasync def audit(ctx):\n    return {}\n"


class Publisher:
    """A server with an index and its wheels, and the key that signs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, bytes] = {}
        self.key = Ed25519PrivateKey.generate()
        self.serial = 1
        self.plugin: dict[str, Any] = {"name": "audit", "description": "Audits calls", "versions": []}
        files = self.files

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = files.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/index.json"

    @property
    def public(self) -> str:
        der = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return base64.b64encode(der).decode()

    @property
    def settings(self) -> str:
        index = f'plugins.indexes = [{{ url = "{self.url}", key = "{self.public}" }}]\n'
        return f'{index}fetch.allow = ["127.0.0.0/8"]\n'

    def release(self, desk: Desk, version: str = "1.0", **more: Any) -> dict[str, Any]:
        """Add a version with its wheel to the index."""
        files = {
            "trunkline_plugin_audit/plugin.yml": MANIFEST.format(version=version),
            "trunkline_plugin_audit/main.py": CODE,
        }
        wheel = desk.wheel(files, folder=self.folder / version)
        data = wheel.read_bytes()
        self.files[f"/{version}/{wheel.name}"] = data
        listed = {
            "version": version,
            "url": f"{version}/{wheel.name}",
            "sha256": hashlib.sha256(data).hexdigest(),
            "size": len(data),
            "capabilities": ["send"],
            **more,
        }
        self.plugin["versions"].append(listed)
        self.publish()
        return listed

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def publish(self, key: Ed25519PrivateKey | None = None, **more: Any) -> bytes:
        data = json.dumps({"format": 1, "serial": self.serial, "plugins": [self.plugin], **more}).encode()
        self.files["/index.json"] = data
        self.files["/index.json.sig"] = (key or self.key).sign(data)
        return data


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    made = Publisher(tmp_path / "wheels")
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.stop()
    thread.join()


def indexes(desk: Desk) -> PluginIndexes:
    return PluginIndexes(desk.settings)


async def test_001_46_plugins_are_found_with_their_capabilities_and_ratings(
    desk: Desk, publisher: Publisher
) -> None:
    publisher.plugin |= {"author": "Ada", "ratings": {"average": 4.5, "count": 12}}
    publisher.release(desk)
    publisher.release(desk, "1.10", advisories=[])
    publisher.release(desk, "1.9")
    publisher.release(desk, "2.0rc1")
    publisher.plugin["advisories"] = [
        {"id": "A-1", "versions": "<1.5", "summary": "old"},
        {"id": "A-2", "versions": ">1.9", "summary": "new"},
    ]
    publisher.publish()
    desk.set(publisher.settings)
    found = indexes(desk)
    assert await found.refresh() == []
    (offer,) = found.search(["AUDITS", "ada"])
    assert (offer.release.version, offer.release.capabilities) == ("1.10", ("send",))
    assert (offer.plugin.ratings.average, offer.plugin.ratings.count) == (4.5, 12)
    assert offer.warnings == ["A-2: new"]
    assert [*found.search(["other"])] == []


def test_a_name_is_installed_from_the_index_restored_and_updated(desk: Desk, publisher: Publisher) -> None:
    listed = publisher.release(desk)
    desk.set(publisher.settings)
    assert desk.install("audit") == "audit"
    locked = desk.admission.lock().plugins["audit"]
    assert locked.requested == "audit"
    assert locked.source.endswith(f"#sha256={listed['sha256']}&size={listed['size']}")
    assert [wheel.sha256 for wheel in locked.wheels] == [listed["sha256"]]
    shutil.rmtree(desk.admission.admit("audit").folder)
    desk.admission.install_missing(["audit"], {})
    assert desk.admission.admit("audit").manifest.version == "1.0"
    publisher.serial = 2
    publisher.release(desk, "1.1")
    installer = desk.installer
    with installer.prepare(locked.requested) as prepared:
        assert prepared.before is not None
        installer.place(prepared, granted(["send"], "operator"), "operator")
    assert desk.admission.admit("audit").manifest.version == "1.1"
    assert desk.install("audit==1.0") == "audit"


def spoil_content(publisher: Publisher, listed: dict[str, Any]) -> None:
    publisher.files[f"/{listed['url']}"] = b"x" + publisher.files[f"/{listed['url']}"][1:]


def spoil_size(publisher: Publisher, listed: dict[str, Any]) -> None:
    listed["size"] -= 1
    publisher.publish()


def spoil_version(publisher: Publisher, listed: dict[str, Any]) -> None:
    listed["version"] = "1.5"
    publisher.publish()


def spoil_capabilities(publisher: Publisher, listed: dict[str, Any]) -> None:
    listed["capabilities"] = []
    publisher.publish()


def withdraw(publisher: Publisher, listed: dict[str, Any]) -> None:
    listed["withdrawn"] = "it leaks keys"
    publisher.publish()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_content, "has the hash"),
        (spoil_size, "cannot be fetched"),
        (spoil_version, "lists audit 1.5, but the wheel has audit 1.0"),
        (spoil_capabilities, "without the capability send"),
        (withdraw, "all versions of 'audit' were withdrawn"),
    ],
)
def test_what_differs_from_the_index_is_not_installed(
    desk: Desk, publisher: Publisher, spoil: Callable[[Publisher, dict[str, Any]], None], told: str
) -> None:
    spoil(publisher, publisher.release(desk))
    desk.set(publisher.settings)
    with pytest.raises(PluginError, match=told):
        desk.install("audit")
    assert desk.left() == []


def test_a_name_of_no_index_is_not_searched_elsewhere(desk: Desk, publisher: Publisher) -> None:
    publisher.release(desk)
    desk.set(publisher.settings)
    with pytest.raises(PluginError, match=r"no index in plugins\.indexes has a plugin 'weather'"):
        desk.install("weather")
    with pytest.raises(PluginError, match=r"has no version 3\.0 of 'audit'; it has 1\.0"):
        desk.install("audit==3.0")
    assert desk.install(desk.plugin(desk.cwd / "other", name="other")) == "other"


def test_a_withdrawn_version_is_refused_by_the_copy(desk: Desk, publisher: Publisher) -> None:
    listed = publisher.release(desk)
    desk.set(publisher.settings)
    desk.install("audit")
    listed["withdrawn"] = "it leaks keys"
    publisher.serial = 2
    publisher.publish()
    with pytest.raises(PluginError, match="all versions"):
        desk.install("audit")
    publisher.stop()
    with pytest.raises(PluginError, match=r"'audit' 1\.0 was withdrawn from http.*: it leaks keys; run"):
        desk.admission.admit("audit")
    (copy,) = (desk.data / "plugin_indexes").iterdir()
    copy.write_bytes(copy.read_bytes()[:-1])
    with pytest.raises(PluginError, match=r"the copy of the index http.*, cannot be read: .*; run"):
        desk.admission.admit("audit")


async def test_a_withdrawn_version_is_stopped_at_the_next_check(desk: Desk, publisher: Publisher) -> None:
    listed = publisher.release(desk)
    desk.set(publisher.settings)
    await asyncio.to_thread(desk.install, "audit")
    desk.set(f'{publisher.settings}plugins.enabled = ["audit"]\nplugins.index_check_ms = "100ms"\n')
    async with serving(desk.data, file=desk.config) as served:
        plugin = served.gateway.registry.get("audit")
        assert isinstance(plugin, ConfinedPlugin)
        assert plugin.process.state == "running"
        listed["withdrawn"] = "it leaks keys"
        publisher.serial = 2
        publisher.publish()
        await until(lambda: plugin.process.state == "stopped")
        assert "was withdrawn from http" in await plugin.find_problem()
        actions = served.gateway.parts.actions
        await actions.flush()
        (noted,) = [each for each in await actions.latest("audit") if each.action == "withdrawn"]
        assert (noted.allowed, noted.version) == (False, "1.0")
        assert "it leaks keys" in noted.value
    with pytest.raises(SettingsError, match="it leaks keys"):
        async with serving(desk.data, file=desk.config):
            pass


async def test_only_the_key_of_the_settings_signs(desk: Desk, publisher: Publisher) -> None:
    publisher.release(desk)
    publisher.publish(Ed25519PrivateKey.generate())
    desk.set(publisher.settings)
    (problem,) = await indexes(desk).refresh()
    assert "signature is not of the key" in problem
    ((_, problem),) = await indexes(desk).check()
    assert "signature is not of the key" in problem
    assert [*indexes(desk).copies()] == []
    publisher.publish()
    assert [problem for _, problem in await indexes(desk).check()] == [""]
    assert [*indexes(desk).copies()] == []
    desk.set(publisher.settings.replace(publisher.public, "bm8ga2V5"))
    (problem,) = await indexes(desk).refresh()
    assert "not a public key of Ed25519" in problem


async def test_the_last_good_copy_stays_in_use(desk: Desk, publisher: Publisher) -> None:
    publisher.serial = 5
    publisher.release(desk)
    desk.set(publisher.settings)
    assert await indexes(desk).refresh() == []
    for spoil in ({"format": 2}, {"serial": 4}, {"plugins": [{"name": "../x", "versions": []}]}):
        publisher.publish(**spoil)
        (problem,) = await indexes(desk).refresh()
        assert "its last good copy is used" in problem
        found = indexes(desk).find("audit")
        assert found is not None
        assert found.release.version == "1.0"
    publisher.stop()
    assert len(await indexes(desk).refresh()) == 1
    assert indexes(desk).find("audit") is not None
    # A copy that was changed on disk is not one.
    (copy,) = (desk.data / "plugin_indexes").iterdir()
    copy.write_bytes(copy.read_bytes().replace(b"Audits calls", b"Audits lies!"))
    assert indexes(desk).find("audit") is None


async def test_an_index_can_be_pinned_by_its_hash_or_be_a_file(desk: Desk, publisher: Publisher) -> None:
    publisher.release(desk)
    data = publisher.publish()
    digest = hashlib.sha256(data).hexdigest()
    allow = 'fetch.allow = ["127.0.0.0/8"]\n'
    desk.set(f'{allow}plugins.indexes = [{{ url = "{publisher.url}", sha256 = "{digest}" }}]\n')
    assert await indexes(desk).refresh() == []
    publisher.serial = 2
    publisher.publish()
    (problem,) = await indexes(desk).refresh()
    assert "another hash" in problem
    file = publisher.folder / "index.json"
    file.write_bytes(data)
    desk.set(f'plugins.indexes = [{{ url = "{file}" }}]\n')
    assert await indexes(desk).refresh() == []
    found = indexes(desk).find("audit")
    assert found is not None
    assert found.source.startswith(f"{publisher.folder}/1.0/")


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ('{ url = "https://example.org/index.json" }', "needs key or sha256"),
        (
            '{ url = "ftp://example.org/index.json", key = "x" }',
            "neither an http or https address nor a path",
        ),
        ('{ url = "https://example.org/index.json", sha256 = "x" }', "64 digits"),
    ],
)
def test_an_index_that_nothing_protects_is_refused(desk: Desk, index: str, told: str) -> None:
    desk.set(f"plugins.indexes = [{index}]\n")
    with pytest.raises(Exception, match=told):
        _ = desk.settings


def test_001_47_a_version_is_official_only_with_a_completed_review(desk: Desk, publisher: Publisher) -> None:
    listed = publisher.release(desk)
    publisher.plugin["official"] = True
    desk.set(publisher.settings)
    reviews: list[tuple[dict[str, str] | None, bool]] = [
        (None, False),
        ({"reviewer": "Ada", "date": "2026-01-02", "sha256": "0" * 64}, False),
        ({"reviewer": "Ada", "date": "2026-01-02", "sha256": listed["sha256"]}, True),
    ]
    for review, official in reviews:
        listed["review"] = review
        publisher.publish()
        with desk.installer.prepare("audit") as prepared:
            assert prepared.offer is not None
            assert prepared.offer.plugin.is_official(prepared.offer.release) is official
            told = "\n".join(notes(prepared.offer))
            assert ("without a completed review" in told) is not official
    # A record without its reviewer is not a record: the whole file is refused.
    listed["review"] = {"reviewer": "", "date": "2026-01-02", "sha256": listed["sha256"]}
    publisher.serial = 2
    publisher.publish()
    with desk.installer.prepare("audit") as prepared:
        assert prepared.offer is not None
        assert prepared.offer.release.review is not None
        assert prepared.offer.release.review.reviewer == "Ada"


PART = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20), st.floats())
JSON = st.recursive(
    PART,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["format", "serial", "plugins", "name", "versions", "version", "url", "review"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.one_of(st.binary(max_size=200), JSON.map(lambda value: json.dumps(value).encode())))
def test_a_file_of_any_content_is_an_index_or_refused(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "index.json"
        file.write_bytes(data)
        settings = Settings(data_dir=Path(folder), plugins={"indexes": [{"url": str(file)}]})
        found = PluginIndexes(settings)
        problems = asyncio.run(found.refresh())
        assert (problems == []) is (len([*found.copies()]) == 1)
        assert [*found.search([])] == [] or not problems
