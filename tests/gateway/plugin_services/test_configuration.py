"""The configuration of plugins with a manifest: shown without secrets, changed in the settings file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from gateway.contract.errors import InvalidRequestError, NotFoundError, SettingsError
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.installer import Installer
from gateway.extensions.admission.secrets import PluginSecrets
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.plugin_services.configuration import ConfigChange, PluginConfigs, settings_schema
from gateway.settings import Settings, load_settings
from gateway.testing.served import serving

MANIFEST = """\
api: 1
name: weather
version: "1.0"
description: Tells the weather
secrets: [API_TOKEN]
config:
  type: object
  additionalProperties: false
  properties:
    days: {type: integer, default: 3, minimum: 1}
    city: {type: string}
    pin: {type: string, writeOnly: true}
    unit: {enum: [celsius, kelvin], default: celsius}
    server:
      type: object
      properties:
        host: {type: string, default: api.example.org}
        password: {type: string}
"""
SETTINGS = """\
# Mine
[plugins]
enabled = ["./weather"]  # A list

[plugins.weather]
days = 5   # Enough
pin = "1234"
"""
CODE = "from trunkline_plugin import plugin\n\n\n@plugin\nasync def weather(ctx):\n"
CODE += "    if ctx.config['days'] == 13:\n        raise ValueError('unlucky')\n    return {}\n"


class Place:
    """A settings file with a plugin beside it."""

    def __init__(self, root: Path) -> None:
        self.file = root / "trunkline.toml"
        self.folder = root / "weather"
        self.data = root / "data"
        self.environ: dict[str, str] = {}
        self.folder.mkdir()
        self.file.write_text(f'data_dir = "{self.data}"\n{SETTINGS}')
        (self.folder / "plugin.yml").write_text(MANIFEST)
        (self.folder / "main.py").write_text(CODE)

    @property
    def settings(self) -> Settings:
        return load_settings(self.file, environ=self.environ, cwd=self.file.parent)

    @property
    def configs(self) -> PluginConfigs:
        return PluginConfigs(self.settings, None)

    @property
    def written(self) -> dict[str, Any]:
        return tomllib.loads(self.file.read_text())["plugins"].get("weather", {})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def change(place: Place, secrets: dict[str, str | None] | None = None, **values: Any) -> None:
    place.configs.change("weather", ConfigChange(values, secrets or {}), literal=True)


def test_values_have_defaults_and_no_secrets(place: Place) -> None:
    PluginSecrets(place.data).put("weather", "API_TOKEN", "t0ps3cret")
    text = place.file.read_text() + '[plugins.weather.server]\npassword = "hunter2"\n'
    place.file.write_text(text)
    found = place.configs.read("weather")
    assert found.values == {"days": 5, "unit": "celsius", "server": {"host": "api.example.org"}}
    assert sorted(found.hidden) == ["pin", "server.password"]
    assert sorted(found.given) == ["days", "pin", "server.password"]
    assert found.secrets == {"API_TOKEN": True}
    assert not any(secret in repr(found) for secret in ("1234", "hunter2", "t0ps3cret"))


def test_the_target_of_a_reference_is_not_shown(place: Place) -> None:
    place.environ = {"HOME_TOWN": "Atlantis"}
    place.file.write_text(place.file.read_text() + 'city = "${HOME_TOWN}"\n')
    found = place.configs.read("weather")
    assert "city" in found.hidden
    assert "Atlantis" not in repr(found)


def test_a_change_keeps_comments_and_what_it_does_not_name(place: Place) -> None:
    change(place, {"API_TOKEN": " abc "}, city="Berlin", server={"host": "other.example.org"})
    assert place.written == {
        "days": 5,
        "pin": "1234",
        "city": "Berlin",
        "server": {"host": "other.example.org"},
    }
    assert "# Mine" in place.file.read_text()
    assert "# Enough" in place.file.read_text()
    assert PluginSecrets(place.data).of("weather") == {"API_TOKEN": "abc"}
    change(place, {"API_TOKEN": None}, days=None, server=None)
    assert place.written == {"pin": "1234", "city": "Berlin"}
    assert place.configs.read("weather").values["days"] == 3
    assert PluginSecrets(place.data).of("weather") == {}


def test_what_grants_hosts_and_commands_is_changed_by_the_operator_alone(place: Place) -> None:
    needs = "capabilities: {network: {enabled: true, allowlist: ['config:server.host']}}\n"
    (place.folder / "plugin.yml").write_text(MANIFEST + needs)
    with pytest.raises(InvalidRequestError, match=r"plugins\.weather\.server says what the plugin may do"):
        change(place, server={"host": "evil.example.org"})
    assert "server" not in place.written
    place.configs.change("weather", ConfigChange({"server": {"host": "other.example.org"}}))
    assert place.written["server"] == {"host": "other.example.org"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"days": 0}, "plugins.weather.days is wrong"),
        ({"days": "x"}, "plugins.weather.days is wrong"),
        ({"colour": 1}, "colour"),
        ({"trust": "full"}, "plugins.weather.trust is a setting of the gateway"),
        ({"hookTimeoutMs": 1}, "plugins.weather.hookTimeoutMs is a setting of the gateway"),
        ({"server": {"host": [None]}}, "plugins.weather.server.host is wrong"),
    ],
)
def test_a_wrong_value_changes_nothing(place: Place, values: dict[str, Any], told: str) -> None:
    before = place.file.read_text()
    with pytest.raises(InvalidRequestError, match=told):
        change(place, {"API_TOKEN": "abc"}, **values)
    assert place.file.read_text() == before
    assert PluginSecrets(place.data).of("weather") == {}


def test_a_wrong_secret_is_not_in_the_error(place: Place) -> None:
    with pytest.raises(InvalidRequestError, match="pin is wrong") as caught:
        change(place, pin=987654)
    assert "987654" not in str(caught.value)


def test_secrets_must_be_named_by_the_manifest(place: Place) -> None:
    with pytest.raises(InvalidRequestError, match="no secret 'OTHER'; its manifest names API_TOKEN"):
        change(place, {"OTHER": "x"}, days=7)
    assert place.written["days"] == 5


def test_a_value_that_another_source_overrides_is_refused(place: Place) -> None:
    place.environ = {"TRUNKLINE_PLUGINS__WEATHER__DAYS": "9"}
    before = place.file.read_text()
    with pytest.raises(SettingsError, match="also set in TRUNKLINE_PLUGINS__WEATHER__DAYS"):
        change(place, days=7)
    assert place.file.read_text() == before


def test_a_text_of_a_page_is_not_a_reference(place: Place) -> None:
    place.environ = {"PATH_TO": "secret"}
    for text in ("${PATH_TO}", "{env:PATH_TO}", "{file:/etc/passwd}", "$${PATH_TO}"):
        change(place, city=text)
        assert place.settings.plugins.of("weather").options["city"] == text


def test_settings_that_are_from_no_file_are_not_written(place: Place) -> None:
    settings = Settings(data_dir=place.data, plugins={"enabled": [str(place.folder)]})
    with pytest.raises(SettingsError, match="not from a file"):
        PluginConfigs(settings, None).change("weather", ConfigChange({"days": 4}))


def test_a_file_that_was_edited_meanwhile_is_not_overwritten(place: Place) -> None:
    from gateway.settings.layers.editing import EditedFile

    edited = EditedFile(place.file)
    place.file.write_text(place.file.read_text() + "# Another hand\n")
    with pytest.raises(SettingsError, match="was changed meanwhile"):
        edited.put(("plugins", "weather"), {"days": 4})
    assert place.file.read_text().endswith("# Another hand\n")


def test_an_unknown_plugin_is_not_found(place: Place) -> None:
    with pytest.raises(NotFoundError, match="no plugin 'other'"):
        place.configs.read("other")


def test_the_schema_of_the_settings_has_the_tables_of_enabled_plugins(place: Place) -> None:
    import jsonschema_rs

    schema = settings_schema(Settings.model_json_schema(), place.settings, None)
    check = jsonschema_rs.Draft202012Validator(schema)
    good = {"plugins": {"weather": {"days": 4, "optional": True, "hook_timeout_ms": "3s"}}}
    assert check.is_valid(good)
    for wrong in ({"days": 0}, {"colour": "red"}, {"optional": "x"}):
        assert not check.is_valid({"plugins": {"weather": wrong}}), wrong
        assert check.is_valid({"plugins": {"other": {"colour": "red"}}})


async def test_the_api_needs_the_token_lists_reads_changes_and_describes(place: Place) -> None:
    Installer(Admission(place.settings), {}).approve(str(place.folder), (), "operator")
    token = "t" * 40
    headers = {"Authorization": f"Bearer {token}"}
    path = "/api/plugins/weather/config"
    async with serving(place.data, file=place.file, server={"token": token}) as served:
        for method, url in (("GET", "/api/plugins"), ("GET", path), ("PATCH", path)):
            assert (await served.ask(method, url, json={} if method == "PATCH" else None))[0] == 401
        _, listed = await served.ask("GET", "/api/plugins", headers=headers)
        weather = next(one for one in listed["plugins"] if one["name"] == "weather")
        assert (weather["enabled"], weather["configurable"], weather["rights"]) == (True, True, "confined")
        status, changed = await served.ask(
            "PATCH", path, headers=headers, json={"values": {"days": 8}, "secrets": {"API_TOKEN": "s3cret"}}
        )
        assert (status, changed["outcome"], changed["config"]["values"]["days"]) == (200, "replaced", 8)
        assert place.written["days"] == 8
        status, kept = await served.ask("PATCH", path, headers=headers, json={"values": {"days": 13}})
        assert (status, kept["outcome"]) == (200, "failed")
        assert "unlucky" in kept["problem"]
        plugin = served.gateway.registry.get("weather")
        assert isinstance(plugin, ConfinedPlugin)
        assert (plugin.process.state, plugin.made_of[2]["days"]) == ("running", 8)
        status, refused = await served.ask("PATCH", path, headers=headers, json={"values": {"days": 0}})
        assert (status, refused["error_name"]) == (400, "InvalidRequestError")
        assert "plugins.weather.days" in refused["message"]
        async with served.http.get(f"{served.url}{path}", headers=headers) as answer:
            text = await answer.text()
        assert "1234" not in text
        assert "s3cret" not in text
        assert (await served.ask("GET", "/api/plugins/other/config", headers=headers))[0] == 404
        scoped = URL(f"{served.url}/api/plugins/%40scope%2Fname/config", encoded=True)
        async with served.http.get(scoped, headers=headers) as answer:
            assert "no plugin '@scope/name'" in await answer.text()
        _, described = await served.ask("GET", "/openapi.json", headers=headers)
        assert {"get", "patch"} == described["paths"]["/api/plugins/{name}/config"].keys()
