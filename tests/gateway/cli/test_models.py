"""``trunkline models``: which there are, and what is known of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from gateway.testing.fake_models.server import MODELS, FakeModels
from tests.gateway.cli.processes import trunkline

SETTINGS = """
model = "desk/fake-small"
fallback = ["openai", "fast"]

[providers.desk]
base_url = "{url}"

[providers.openai]
base_url = "http://127.0.0.1:9/v1"
max_retries = 0

[aliases]
fast = "desk/fake-large"

[models."desk/fake-small"]
context_window = 32000
images = false
input_price = 2.5
output_price = 10
equivalents = ["openai/gpt-4o"]
"""


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[FakeModels]:
    """A server with two models; another provider cannot be reached."""
    async with FakeModels() as server:
        (tmp_path / "config").mkdir()
        (tmp_path / "config/trunkline.toml").write_text(SETTINGS.format(url=server.openai_url))
        yield server


async def models(home: Path, *args: str, **environ: str) -> CompletedProcess[str]:
    """Run the command while the event loop serves."""
    return await asyncio.to_thread(trunkline, "models", *args, home=home, **environ)


async def listed(home: Path, *args: str, **environ: str) -> dict[str, Any]:
    """The models that the command lists for a machine, by name."""
    done = await models(home, "list", "--json", *args, **environ)
    return {each["model"]: each for each in json.loads(done.stdout)}


async def test_the_providers_that_are_set_up_are_asked(tmp_path: Path, fake: FakeModels) -> None:
    done = await models(tmp_path, "list")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    [small] = [line.split() for line in lines if "desk/fake-small" in line]
    assert small == ["desk/fake-small", "32k", "-", "2.5", "10", "tools", "reasoning", "json_mode"]
    [large] = [line.split() for line in lines if "desk/fake-large" in line]
    assert large[-1] == "fast"
    assert any("openai/gpt-4o " in line for line in lines), "what is known offline of who does not answer"
    assert done.stderr.startswith("openai is unreachable: cannot reach 127.0.0.1:9: ")
    assert done.stderr.strip().endswith("; showing offline data")
    assert "non-chat models hidden; --all shows them." in done.stdout


async def test_004_T11_without_any_provider_the_data_tells_of_all(tmp_path: Path) -> None:
    found = await listed(tmp_path, "--all")
    assert found["anthropic/claude-sonnet-4-5"]["facts"]["context_window"] == 200_000
    assert found["openai/gpt-4o"]["facts"]["rates"] == {"input": 2.5, "output": 10.0, "cached": 1.25}
    assert not found["openai/gpt-4o"]["listed"]
    assert "openai/whisper-1" in found


async def test_a_list_for_machines_says_what_was_asked_and_what_was_known(
    tmp_path: Path, fake: FakeModels
) -> None:
    found = await listed(tmp_path, "--provider", "desk")
    assert list(found) == [f"desk/{model}" for model in MODELS]
    assert found["desk/fake-small"] == {
        "model": "desk/fake-small",
        "facts": {
            "id": "fake-small",
            "provider": "desk",
            "context_window": 32000,
            "images": False,
            "rates": {"input": 2.5, "output": 10.0},
        },
        "listed": True,
        "can": ["streaming", "tools", "reasoning", "json_mode"],
        "aliases": [],
    }
    assert found["desk/fake-large"]["aliases"] == ["fast"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("LARGE", ["desk/fake-large"]),
        ("fast", ["desk/fake-large"]),
        ("desk/*", ["desk/fake-small", "desk/fake-large"]),
        ("*-small", ["desk/fake-small"]),
        ("fake-sm*", ["desk/fake-small"]),
    ],
)
async def test_a_part_of_a_name_or_a_pattern_chooses(
    tmp_path: Path, fake: FakeModels, pattern: str, found: list[str]
) -> None:
    assert list(await listed(tmp_path, pattern, "--provider", "desk")) == found


async def test_no_match_and_no_provider_to_ask_are_reported(tmp_path: Path) -> None:
    done = await models(tmp_path, "list", "zzz")
    assert (done.returncode, done.stderr.strip()) == (1, "no model matches 'zzz'")
    done = await models(tmp_path, "list", "--provider", "opnai")
    assert (done.returncode, done.stderr.strip()) == (1, "no provider 'opnai'; did you mean openai?")


async def test_one_model_is_reported_with_those_that_stand_in(tmp_path: Path, fake: FakeModels) -> None:
    done = await models(tmp_path, "info", "fake-small")
    assert done.returncode == 0, done.stderr
    told = {line[:12].strip(): line[12:].strip() for line in done.stdout.splitlines() if line.startswith(" ")}
    assert done.stdout.startswith("desk/fake-small")
    assert told["context"] == "32,000 tokens"
    assert told["can"] == "tools reasoning json_mode"
    assert told["input price"] == "$2.5 per million tokens"
    assert told["endpoint"] == fake.openai_url
    assert told["fallbacks"] == "openai/gpt-4o, desk/fake-large"


async def test_a_model_of_a_provider_that_is_not_set_up_is_reported_too(tmp_path: Path) -> None:
    told = json.loads((await models(tmp_path, "info", "gpt-4o", "--json")).stdout)
    assert told["model"]["model"] == "openai/gpt-4o"
    assert told["problem"] == "'gpt-4o' is a model of openai, which has no key; set OPENAI_API_KEY"


async def test_a_model_that_its_provider_does_not_list_is_reported_with_the_nearest(
    tmp_path: Path, fake: FakeModels
) -> None:
    done = await models(tmp_path, "info", "desk/fake-smal")
    assert done.stdout.splitlines()[-1] == "desk does not list it; did you mean fake-small, fake-large?"


@pytest.mark.parametrize(
    ("name", "told"),
    [("fake-smal", "did you mean desk/fake-small"), ("dsk/fake-small", "did you mean desk/fake-small")],
)
async def test_an_unknown_name_is_answered_with_the_nearest(
    tmp_path: Path, fake: FakeModels, name: str, told: str
) -> None:
    done = await models(tmp_path, "info", name)
    assert done.returncode == 1
    assert told in done.stderr


async def test_without_any_provider_a_wrong_name_is_still_put_right(tmp_path: Path) -> None:
    done = await models(tmp_path, "info", "gpt-4oo")
    assert (done.returncode, "did you mean openai/gpt-4o," in done.stderr) == (1, True)


async def test_no_key_is_shown(tmp_path: Path) -> None:
    key = "sk-very-secret-0123456789"
    async with FakeModels(key="another") as fake:
        (tmp_path / "own.toml").write_text(
            f'model = "desk/x"\n[providers.desk]\nbase_url = "{fake.openai_url}"\napi_key = "{key}"\n'
        )
        for args in (("list", "--config", "own.toml"), ("info", "desk/x", "--config", "own.toml", "--json")):
            done = await models(tmp_path, *args)
            assert key not in done.stdout + done.stderr
            assert "401" in done.stdout + done.stderr
