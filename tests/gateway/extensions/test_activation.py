"""The rules of a team: which plugins may be activated, and which must be."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import Plugin, SettingsError
from gateway.app import Gateway
from gateway.settings import Settings


class Named(Plugin):
    def __init__(self, name: str) -> None:
        self.name = name


def gateway(tmp_path: Path, enabled: list[str], team: dict[str, object], **more: object) -> Gateway:
    settings = Settings.model_validate(
        {
            "data_dir": tmp_path,
            "channels": {},
            "model": "demo/demo",
            "plugins": {"enabled": enabled, **more},
            "teams": {"plugins": team},
        }
    )
    return Gateway(settings, resolve_plugin=lambda name: Named(Path(name).stem))


async def refusal(made: Gateway) -> str:
    with pytest.raises(SettingsError) as caught:
        async with made.running():
            pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("enabled", "team", "told"),
    [
        (["audit"], {"blocklist": ["audit"], "allowlist": ["audit"]}, "is in teams.plugins.blocklist"),
        (["./audit.py"], {"blocklist": ["audit"]}, "is in teams.plugins.blocklist"),
        (["audit", "other"], {"allowlist": ["audit"]}, "'other' is not in teams.plugins.allowlist"),
        ([], {"required": ["audit"]}, "plugin 'audit' is missing; add it to plugins.enabled"),
    ],
)
async def test_001_43_the_rules_of_a_team_come_before_the_users_lists(
    tmp_path: Path, enabled: list[str], team: dict[str, object], told: str
) -> None:
    assert told in await refusal(gateway(tmp_path, enabled, team))


async def test_001_43_a_required_plugin_cannot_be_disabled_or_optional(tmp_path: Path) -> None:
    team: dict[str, object] = {"required": ["audit"]}
    said = await refusal(gateway(tmp_path, ["audit"], team, disabled=["audit"]))
    assert "must not be disabled; remove it from plugins.disabled" in said
    blocked: dict[str, object] = {**team, "blocklist": ["audit"]}
    said = await refusal(gateway(tmp_path, ["audit"], blocked, audit={"optional": True}))
    assert "teams.plugins.required: plugin 'audit' failed" in said


async def test_001_43_allowed_and_required_plugins_run_beside_the_built_in_ones(tmp_path: Path) -> None:
    made = gateway(tmp_path, ["./audit.py"], {"allowlist": ["audit"], "required": ["audit"]})
    async with made.running():
        assert made.registry.get("audit") is not None
        assert made.registry.get("providers") is not None


@pytest.mark.parametrize("enabled", [["./audit.py", "audit"], ["audit", "./audit.py"]])
async def test_a_plugin_whose_name_another_one_has_is_not_left_out_without_a_word(
    tmp_path: Path, enabled: list[str]
) -> None:
    said = await refusal(gateway(tmp_path, enabled, {}))
    assert f"plugin 'audit' is already registered; fix it, remove {enabled[1]!r} from plugins.enabled" in said


async def test_an_entry_that_is_listed_twice_is_one_plugin(tmp_path: Path) -> None:
    made = gateway(tmp_path, ["audit", "audit", "providers"], {})
    async with made.running():
        assert made.registry.get("audit") is not None
