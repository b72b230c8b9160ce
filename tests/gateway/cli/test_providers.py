"""``trunkline providers``: all adapters against their fakes, one tiny call of each, and what is known."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.models.contract_trial import all_passed, find_candidates, print_trials
from gateway.contract.messages import now_ms
from gateway.testing.contracts.provider_setup import ProviderSetup
from gateway.testing.contracts.trial import COLUMNS, Trial, candidate
from gateway.testing.fake_models.script import Refusal
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_models.vendors import DIALECTS
from gateway.testing.fake_program import fake_program
from plugins.providers import openai
from plugins.providers.candidates import PROVIDER_SETUPS
from tests.gateway.cli.processes import environment, trunkline
from tests.gateway.why.cases import line

SECRET = "sk-very-secret-indeed-0123456789-abcdef"
PROGRAMS = ("claude-code", "codex", "gemini", "opencode")
NO_PROGRAMS = "/nonexistent"


def tried(home: Path, *names: str, **environ: str) -> tuple[int, dict[str, Any]]:
    """The exit status of a trial, and what came of each."""
    command = ("providers", "test", *names, "--fake", "--json")
    done = trunkline(*command, home=home, patience=170, **{"PATH": NO_PROGRAMS, **environ})
    assert done.stdout, done.stderr
    return done.returncode, {trial["name"]: trial for trial in json.loads(done.stdout)}


def test_without_names_all_sixteen_and_the_four_programs_are_tried() -> None:
    expected = [*(setup.id for setup in PROVIDER_SETUPS), *PROGRAMS]
    assert [each.name for each in find_candidates((), {})] == expected
    absent = [Trial(name="codex", protocol="app server", outcome="not installed")]
    assert all_passed(absent, ())
    assert not all_passed(absent, ["codex"])
    assert not all_passed([Trial(name="openai", protocol="Responses", outcome="failed")], ())


def test_a_provider_and_a_program_that_is_not_installed_are_tried_and_hold(tmp_path: Path) -> None:
    status, trials = tried(tmp_path, "anthropic", "gemini")
    assert (status, list(trials)) == (1, ["anthropic", "gemini"])
    assert trials["anthropic"]["outcome"] == "ok", trials["anthropic"]
    assert trials["anthropic"]["columns"] == dict.fromkeys(COLUMNS, True)
    assert trials["anthropic"]["first_token_ms"] > 0
    assert trials["gemini"]["outcome"] == "not installed"
    assert all(trials["gemini"]["columns"].values())
    assert "npm install -g @google/gemini-cli" in trials["gemini"]["way_out"]


@pytest.mark.parametrize("provider", ["vertex", "bedrock"])
@pytest.mark.parametrize("how", [[], ["--fake"]])
def test_004_33_a_missing_extra_is_named(tmp_path: Path, provider: str, how: list[str]) -> None:
    # As a default install is: without the libraries that the extras bring.
    absent = ("google.auth", "google.auth.transport.requests", "cryptography.hazmat.primitives", "botocore")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r}));"
        "from gateway.cli import app; app(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "providers", "test", provider, *how],
        cwd=tmp_path,
        env={**environment(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert f"needs the extra {provider}: pip install 'trunkline[{provider}]'" in done.stdout
    assert ("not installed" in done.stdout) == bool(how)


def test_a_program_that_is_named_must_be_there_and_work(tmp_path: Path) -> None:
    fake_program(tmp_path, "codex", "echo")  # it knows its version, and talks to no model
    status, trials = tried(tmp_path, "codex", PATH=str(tmp_path))
    assert (status, trials["codex"]["outcome"]) == (1, "failed")
    assert [column for column, holds in trials["codex"]["columns"].items() if not holds] == ["program"]


def test_the_table_names_what_is_not_there_with_the_way_to_install_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns, way_out = {"text": True}, "install: npm install -g @google/gemini-cli"
    print_trials(
        [Trial(name="gemini", protocol="ACP", outcome="not installed", columns=columns, way_out=way_out)]
    )
    shown = capsys.readouterr().out
    assert "✓" in shown
    assert f"gemini: → {way_out}" in shown
    assert shown.splitlines()[-1] == "0 ok, 0 failed, 1 not installed"


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = trunkline("providers", "test", "opnai", "--fake", home=tmp_path)
    assert done.returncode == 2
    assert "'opnai'" in done.stderr
    assert "openai, anthropic" in done.stderr


def test_checks_that_are_switched_off_are_not_taken_for_held(tmp_path: Path) -> None:
    done = trunkline("providers", "test", "openai", "--fake", home=tmp_path, PYTHONOPTIMIZE="1")
    assert (done.returncode, "PYTHONOPTIMIZE" in done.stderr) == (2, True)


async def test_an_adapter_that_does_wrong_is_reported_by_column_and_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = candidate(ProviderSetup("strange", openai.create, DIALECTS["google"]), "Chat Completions")
    assert not isinstance(await wrong.warm_up(), float)
    mixed = candidate(ProviderSetup("mixed", openai.create, DIALECTS["xai"]), "Chat Completions")
    trial = await mixed.run(1.0, lambda check: None)
    assert (trial.outcome, trial.columns["stream"]) == ("failed", True)
    assert len(trial.problems) == sum(not holds for holds in trial.columns.values())
    print_trials([trial])
    shown = capsys.readouterr().out
    assert "✗" in shown
    assert trial.problems[0][:40] in shown


async def asked(home: Path, *args: str, **environ: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status of real calls, and what came of each; nothing of it may show the key."""
    done = await asyncio.to_thread(trunkline, "providers", "test", *args, "--json", home=home, **environ)
    assert SECRET not in done.stdout + done.stderr
    return done.returncode, json.loads(done.stdout) if done.stdout else []


async def test_one_tiny_call_says_how_soon_who_answers(tmp_path: Path) -> None:
    async with FakeModels(key=SECRET) as fake:
        keys = {"OPENAI_API_KEY": SECRET, "TRUNKLINE_PROVIDERS__OPENAI__BASE_URL": fake.openai_url}
        status, [found] = await asked(tmp_path, **keys)
        assert (status, found["ok"], found["model"]) == (0, True, "gpt-5.4-mini")
        assert 0 < found["first_token_ms"] <= found["whole_ms"]
        status, [found] = await asked(tmp_path, "openai/mine", **keys)
        assert (status, found["model"]) == (0, "mine")
        assert [request.body["model"] for request in fake.requests] == ["gpt-5.4-mini", "mine"]
        done = await asyncio.to_thread(trunkline, "providers", "test", home=tmp_path, **keys)
    assert "✓ answers" in done.stdout


def store_of(home: Path) -> Path:
    return home / "data" / "trunkline.db"


async def test_test_calls_are_in_the_usage_of_the_store(tmp_path: Path) -> None:
    async with FakeModels(key=SECRET) as fake:
        keys = {"OPENAI_API_KEY": SECRET, "TRUNKLINE_PROVIDERS__OPENAI__BASE_URL": fake.openai_url}
        # Without a store none is created.
        assert (await asked(tmp_path, **keys))[0] == 0
        assert not store_of(tmp_path).exists()
        upgraded = await asyncio.to_thread(trunkline, "db", "upgrade", home=tmp_path)
        assert upgraded.returncode == 0, upgraded.stderr
        assert (await asked(tmp_path, **keys))[0] == 0
    used = await asyncio.to_thread(trunkline, "usage", "--by", "plugin", "--json", home=tmp_path)
    [row] = json.loads(used.stdout)["rows"]
    assert (row["key"], row["calls"]) == ("models.test", 1)


def add_provider(config: Path, url: str) -> None:
    config.write_text(f'{config.read_text()}[providers.mine]\nbase_url = "{url}"\n')


async def test_a_running_gateway_makes_and_books_test_calls(tmp_path: Path) -> None:
    async with FakeModels() as fake, line(tmp_path, fake) as case:
        command = ["providers", "test", "openai/fake-small", "--json", "--config", str(case.config)]
        done = await asyncio.to_thread(CliRunner().invoke, app, command)
        [found] = json.loads(done.stdout)
        assert (done.exit_code, found["ok"], found["name"]) == (0, True, "OpenAI"), done.output
        ledger = case.served.gateway.parts.spending.ledger
        await case.served.gateway.parts.store.write()
        (row,) = await ledger.usage_by("plugin", 0, now_ms() + 1)
        assert (row.key, row.calls) == ("models.test", 1)
        # A provider that only this configuration has is asked all the same, and the command says so.
        add_provider(case.config, fake.openai_url)
        command[2] = "mine/fake-small"
        done = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert done.exit_code == 0, done.output
        assert "not booked in the usage" in done.stderr
        (row,) = await ledger.usage_by("plugin", 0, now_ms() + 1)
        assert row.calls == 1
        command[2] = "nope"
        done = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert (done.exit_code, done.output.count("no provider 'nope'"), done.stderr) == (1, 1, "")


async def test_what_goes_wrong_is_reported_with_the_way_out(tmp_path: Path) -> None:
    async with FakeModels(key="another") as fake:
        place = {"TRUNKLINE_PROVIDERS__GROQ__BASE_URL": fake.at("groq")}
        status, [refused] = await asked(tmp_path, GROQ_API_KEY=SECRET, **place)
        assert (status, refused["error"]) == (1, "AuthFailedError")
        assert "GROQ_API_KEY" in refused["way_out"]
        fake.then(Refusal(429, "slow down", {"retry-after": "30"}))
        place["TRUNKLINE_PROVIDERS__GROQ__TIMEOUT"] = "60000"
        status, [busy] = await asked(tmp_path, GROQ_API_KEY="another", **place)
        assert (status, busy["error"]) == (1, "RateLimitError")
    away = {"TRUNKLINE_PROVIDERS__GROQ__BASE_URL": "http://127.0.0.1:9/v1"}
    status, [gone, nobody] = await asked(tmp_path, "groq", "nobody", GROQ_API_KEY=SECRET, **away)
    assert (status, gone["error"], nobody["error"]) == (
        1,
        "ProviderUnavailableError",
        "ProviderResolutionError",
    )


def test_no_provider_to_ask_is_reported_with_the_fix(tmp_path: Path) -> None:
    done = trunkline("providers", "test", home=tmp_path)
    assert done.returncode == 1
    assert "ANTHROPIC_API_KEY" in done.stderr


def test_the_list_says_where_a_key_is_from_and_never_the_key(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        f'[providers.desk]\nbase_url = "http://u:{SECRET}@127.0.0.1:9/v1"\n'
        f'api_key = "{SECRET}"\nmodels = ["a", "b", "c", "d"]\n'
        '[plugins]\nenabled = ["cli_backends"]\n'
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data/keys.json").write_text(json.dumps({"copilot": SECRET}))
    (tmp_path / "data/keys.json").chmod(0o600)
    args = ("providers", "list", "--config", "own.toml")
    done = trunkline(*args, "--json", home=tmp_path, GROQ_API_KEY=SECRET)
    shown = trunkline(*args, home=tmp_path, GROQ_API_KEY=SECRET)
    assert SECRET not in done.stdout + done.stderr + shown.stdout + shown.stderr
    found = {provider["id"]: provider for provider in json.loads(done.stdout)}
    assert found["desk"]["key_from"].endswith("own.toml:3")
    assert found["desk"]["models"] == ["a", "b", "c"]
    assert found["groq"]["key_from"] == "GROQ_API_KEY"
    assert found["copilot"]["key_from"].endswith("keys.json")
    assert (found["anthropic"]["key_from"], found["anthropic"]["protocol"]) == ("", "Messages")
    assert found["claude-code"]["protocol"] == "own"
    assert "base_url" in found["azure"]["problem"]
    assert shown.stdout.count("GROQ_API_KEY") == 1
