"""The plugins of a team over REST: the list with its rules, installation, and what a plugin used."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from gateway.extensions.admission.lock import LOCK, Lock
from gateway.extensions.admission.packages.pack import pack_folder
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.testing.served import serving, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux"),
]

TOKEN = "t" * 40
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
MANIFEST = "api: 1\nname: weather\nversion: {version}\ncapabilities: {{storage_mb: 1, send: true}}\n"
CODE = """\
from trunkline_plugin import plugin


@plugin
async def weather(ctx):
    await ctx.kv.set("day", 1)
    return {}
"""


class Place:
    """A team's machine: settings, a policy, and an index beside them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self.file = root / "trunkline.toml"
        self.policy = root / "policy.toml"
        self.policy.write_text('blocklist = ["other"]\n')
        self.set("")
        self.publish("1.0", "1.1")

    def set(self, plugins: str) -> None:
        self.file.write_text(
            f'data_dir = "{self.data}"\nserver.token = "{TOKEN}"\n[teams]\nid = "acme"\n'
            f'policy = "{self.policy}"\n[plugins]\nindexes = [{{ url = "{self.root}/index.json" }}]\n'
            f'index_check_ms = "100ms"\n{plugins}\n'
        )

    def publish(self, *versions: str, code: str = CODE) -> None:
        listed = []
        for version in versions:
            folder = self.root / f"weather-{version}"
            folder.mkdir(exist_ok=True)
            (folder / "plugin.yml").write_text(MANIFEST.format(version=version))
            (folder / "main.py").write_text(code)
            wheel = pack_folder(folder, self.root)
            data = wheel.read_bytes()
            capabilities = ["send", "storage"]
            listed.append(
                {
                    "version": version,
                    "url": wheel.name,
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "size": len(data),
                    "capabilities": capabilities,
                }
            )
        plugins = [{"name": "weather", "versions": listed}]
        index = {"format": 1, "serial": len(versions), "plugins": plugins}
        (self.root / "index.json").write_text(json.dumps(index))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_001_44_a_team_lists_installs_and_counts_plugins(place: Place) -> None:
    orgs = "/orgs/acme/plugins"
    async with serving(place.data, file=place.file, server={"token": TOKEN}) as served:
        for method, path in (
            ("GET", orgs),
            ("POST", f"{orgs}/install"),
            ("GET", f"{orgs}/weather/analytics"),
        ):
            assert (await served.ask(method, path, json={} if method == "POST" else None))[0] == 401
            elsewhere = path.replace("acme", "other")
            body = {"source": "weather"} if method == "POST" else None
            assert (await served.ask(method, elsewhere, json=body, headers=HEADERS))[0] == 404
        wanted: dict[str, object] = {"source": "weather==1.0", "allow": ["storage"]}
        status, made = await served.ask("POST", f"{orgs}/install", json=wanted, headers=HEADERS)
        assert (status, made["version"], made["granted"]) == (200, "1.0", ["storage"])
        assert made["outcome"] == "disabled"
        for source, told in (
            ("./weather-1.1", "the body"),
            ("other", "no index"),
            ("weather==9", "has no version 9"),
            ("trunkline-plugin-weather", "no index in plugins.indexes has"),
        ):
            status, refused = await served.ask(
                "POST", f"{orgs}/install", json={"source": source}, headers=HEADERS
            )
            assert status in (400, 409), source
            assert told in refused["message"]
        _, listed = await served.ask("GET", orgs, headers=HEADERS)
        assert (listed["allowlist"], listed["blocklist"], listed["required"]) == (None, ["other"], [])
        weather = next(one for one in listed["plugins"] if one["id"] == "weather")
        assert (weather["version"], weather["enabled"], weather["grants"]) == ("1.0", False, ["storage"])
        assert (weather["approved_by"], weather["sha256"]) == ("api:acme", made["sha256"])
    place.set('enabled = ["weather"]')
    async with serving(place.data, file=place.file, server={"token": TOKEN}) as served:
        status, counted = await served.ask("GET", f"{orgs}/weather/analytics?days=1", headers=HEADERS)
        assert status == 200, counted
        actions = {one["action"]: one for one in counted["actions"]}
        assert actions["storage"]["allowed"] == 1
        assert actions["process.started"]["allowed"] >= 1
        assert counted["cost_usd"] == 0
        status, _ = await served.ask("GET", f"{orgs}/unknown/analytics", headers=HEADERS)
        assert status == 404
        status, made = await served.ask(
            "POST", f"{orgs}/install", json={"source": "weather", "allow": ["send"]}, headers=HEADERS
        )
        assert (status, made["version"], made["granted"]) == (200, "1.1", ["send"])
        running = served.gateway.registry.get("weather")
        assert running is not None
        assert (made["outcome"], running.version) == ("replaced", "1.1")
        place.publish("1.0", "1.1", "1.2", code="raise SystemExit('broken')\n")
        body = {"source": "weather"}
        status, refused = await served.ask("POST", f"{orgs}/install", json=body, headers=HEADERS)
        assert status == 409
        assert "weather 1.1 stays" in refused["message"]
        assert served.gateway.registry.get("weather") is running
        locked = Lock.read(place.root / LOCK).plugins["weather"]
        assert {each.grant for each in locked.grants} == {"send", "storage"}
        _, described = await served.ask("GET", "/openapi.json", headers=HEADERS)
        assert {path for path in described["paths"] if path.startswith("/orgs/")} == {
            "/orgs/{orgId}/plugins",
            "/orgs/{orgId}/plugins/install",
            "/orgs/{orgId}/plugins/{id}/analytics",
        }


async def test_001_43_a_plugin_that_the_policy_blocks_is_stopped_while_the_gateway_runs(place: Place) -> None:
    async with serving(place.data, file=place.file, server={"token": TOKEN}) as served:
        wanted = {"source": "weather", "allow": ["storage"]}
        assert (await served.ask("POST", "/orgs/acme/plugins/install", json=wanted, headers=HEADERS))[
            0
        ] == 200
    place.set('enabled = ["weather"]')
    async with serving(place.data, file=place.file, server={"token": TOKEN}) as served:
        plugin = served.gateway.registry.get("weather")
        assert isinstance(plugin, ConfinedPlugin)
        assert plugin.process.state == "running"
        place.policy.write_text('blocklist = ["weather"]\n')
        await until(lambda: plugin.process.state == "stopped")
        assert "is in teams.plugins.blocklist" in await plugin.find_problem()
