"""``trunkline auth``: keys that a person signs in for or gives: kept for the gateway, listed, forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_models.tokens import RIGHT, FakeTokens
from tests.gateway.cli.processes import Terminal, trunkline

KEY = "sk-0123456789-very-secret"


async def run(home: Path, *args: str, stdin: str = "", **environ: str) -> CompletedProcess[str]:
    """Run a command while the event loop serves."""
    return await asyncio.to_thread(
        trunkline, *args, "--config", "own.toml", home=home, stdin=stdin, **environ
    )


async def auth(home: Path, *args: str, stdin: str = "", **environ: str) -> CompletedProcess[str]:
    return await run(home, "auth", *args, stdin=stdin, **environ)


def write(home: Path, text: str) -> None:
    (home / "own.toml").write_text(text)


def kept(home: Path) -> dict[str, object]:
    file = home / "data" / "keys.json"
    return json.loads(file.read_text()) if file.exists() else {}


def copilot(tokens: FakeTokens) -> str:
    return f'[providers.copilot]\ncredentials = {{ api_url = "{tokens.url}", login_url = "{tokens.url}" }}\n'


def openai(url: str, more: str = "") -> str:
    return f'[providers.openai]\nbase_url = "{url}"\n{more}'


async def test_004_T11_who_signs_in_has_it_kept_for_this_user_alone(tmp_path: Path) -> None:
    async with FakeTokens(waits=1) as tokens, FakeModels(key="token-1") as fake:
        write(tmp_path, copilot(tokens).replace("]\n", f']\nbase_url = "{fake.at("copilot")}"\n'))
        done = await auth(tmp_path, "login", "copilot")
    assert done.returncode == 0, done.stderr
    file = tmp_path / "data" / "keys.json"
    told, checked, where, when = done.stdout.splitlines()
    assert when == "A running gateway uses it within two seconds"
    assert told.endswith("and enter the code ABCD-1234")
    assert checked == "copilot accepted it and lists 2 models"
    assert where == f"Signed in to copilot; stored in {file}"
    assert kept(tmp_path) == {"copilot": {"type": "oauth", "access": RIGHT, "expires": 0.0}}
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_login_that_is_refused_keeps_nothing(tmp_path: Path) -> None:
    async with FakeTokens(denied="access_denied") as tokens:
        write(tmp_path, copilot(tokens))
        done = await auth(tmp_path, "login", "copilot")
    assert done.returncode == 1
    assert done.stderr.startswith("GitHub refused the login: access_denied")
    assert kept(tmp_path) == {}


async def test_a_key_from_the_input_is_tried_kept_and_used(tmp_path: Path) -> None:
    async with FakeModels(key=KEY) as fake:
        write(tmp_path, openai(fake.openai_url))
        done = await auth(tmp_path, "login", "openai", "--key-stdin", stdin=f"{KEY}\n")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[0] == "openai accepted it and lists 2 models"
        assert kept(tmp_path) == {"openai": {"type": "api", "key": KEY}}
        found = await asyncio.to_thread(
            trunkline,
            "doctor",
            "--json",
            "--config",
            "own.toml",
            home=tmp_path,
            TRUNKLINE_MODEL="openai/fake-small",
        )
    assert KEY not in done.stdout + found.stdout + found.stderr
    (model,) = [finding for finding in json.loads(found.stdout) if finding["name"] == "model"]
    assert model["status"] == "ok"


async def test_a_refused_key_is_stored_only_with_no_check(tmp_path: Path) -> None:
    async with FakeModels(key="another") as fake:
        write(tmp_path, openai(fake.openai_url))
        done = await auth(tmp_path, "login", "openai", "--key-stdin", stdin=KEY)
        assert (done.returncode, kept(tmp_path)) == (1, {})
        assert "openai rejected it, so it was not stored (--no-check stores it)" in done.stderr
        assert KEY not in done.stderr
        done = await auth(tmp_path, "login", "openai", "--key-stdin", "--no-check", stdin=KEY)
    assert (done.returncode, list(kept(tmp_path))) == (0, ["openai"])


@pytest.mark.parametrize("name", ["openrouter", "deepinfra"])
async def test_a_list_that_is_for_everybody_proves_no_key(tmp_path: Path, name: str) -> None:
    async with FakeModels(key=KEY) as fake:
        write(tmp_path, f'model = "{name}/fake-small"\n[providers.{name}]\nbase_url = "{fake.at(name)}"\n')
        wrong = await auth(tmp_path, "login", name, "--key-stdin", stdin="another-key-altogether")
        assert (wrong.returncode, kept(tmp_path)) == (1, {})
        assert f"{name} rejected it, so it was not stored" in wrong.stderr
        variable = {f"{name.upper()}_API_KEY": "another-key-altogether"}
        done = await run(tmp_path, "doctor", "--json", **variable)
        [model] = [finding for finding in json.loads(done.stdout) if finding["name"] == "model"]
        assert (model["status"], "refused (401)" in model["detail"]) == ("fail", True)
        right = await auth(tmp_path, "login", name, "--key-stdin", stdin=KEY)
        assert right.stdout.startswith(f"{name} accepted it and lists 2 models")
        assert list(kept(tmp_path)) == [name]


async def test_a_provider_that_cannot_be_asked_is_believed_later(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        gone = fake.openai_url
    write(tmp_path, openai(gone))
    done = await auth(tmp_path, "login", "openai", "--key-stdin", stdin=KEY)
    assert done.returncode == 0
    assert done.stdout.startswith("Cannot test it at openai (ProviderUnavailableError: cannot reach")
    assert list(kept(tmp_path)) == ["openai"]


async def test_providers_are_reached_through_the_proxy_of_the_environment(tmp_path: Path) -> None:
    write(tmp_path, openai("http://models.invalid/v1"))
    login = ("login", "openai", "--key-stdin")
    async with FakeModels(key=KEY) as proxy:
        done = await auth(tmp_path, *login, stdin=KEY, HTTP_PROXY=proxy.url)
        assert done.stdout.startswith("openai accepted it and lists 2 models")
        around = {"HTTP_PROXY": proxy.url, "NO_PROXY": "models.invalid"}
        done = await auth(tmp_path, *login, stdin=KEY, **around)
        assert done.stdout.startswith("Cannot test it at openai")


@pytest.mark.parametrize(
    ("args", "stdin", "status", "said"),
    [
        (("openai",), KEY, 2, "stdin is not a terminal; use --key-stdin"),
        (("openai", "--key-stdin"), " \n", 2, "the key of openai is empty"),
        (("openai", "--key-stdin"), "two\x07bells", 2, "a character that is not allowed in a header"),
        (("opnai",), "", 1, "no provider 'opnai'"),
        (("demo",), "", 2, "the built-in demo needs no key"),
        (("azure",), "", 2, "providers.azure.base_url is missing"),
    ],
)
async def test_what_cannot_be_kept_is_reported(
    tmp_path: Path, args: tuple[str, ...], stdin: str, status: int, said: str
) -> None:
    write(tmp_path, "")
    done = await auth(tmp_path, "login", *args, stdin=stdin)
    assert (done.returncode, kept(tmp_path)) == (status, {})
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    write(tmp_path, openai("http://127.0.0.1:9/v1"))
    at = Terminal(tmp_path, "auth", "login", "openai", "--config", "own.toml")
    yield at
    at.close()


def test_a_key_that_is_typed_is_not_shown(terminal: Terminal, tmp_path: Path) -> None:
    terminal.expect(r"Key of openai \(hidden\): ")
    terminal.expect_no_echo()
    terminal.type(f"{KEY}\n")
    terminal.expect("Signed in to openai; stored in")
    assert terminal.wait() == 0
    assert KEY not in terminal.screen
    assert kept(tmp_path) == {"openai": {"type": "api", "key": KEY}}


async def test_the_list_says_where_each_key_comes_from_and_which_counts(tmp_path: Path) -> None:
    write(tmp_path, f'[providers.groq]\napi_key = "{KEY}"\n')
    for provider in ("groq", "openai"):
        await auth(tmp_path, "login", provider, "--key-stdin", "--no-check", stdin="short")
    variables = {"GROQ_API_KEY": "groq-key-of-the-environment", "CO_API_KEY": "cohere-key-of-mine"}
    done = await auth(tmp_path, "list", "--json", **variables)
    file = str(tmp_path / "data" / "keys.json")
    rows = [
        tuple(row[key] for key in ("provider", "kind", "place", "hint", "used"))
        for row in json.loads(done.stdout)
    ]
    assert rows == [
        ("cohere", "variable", "CO_API_KEY", "…mine", True),
        ("groq", "settings", "own.toml:2", "…cret", True),
        ("groq", "login", file, "", False),
        ("groq", "variable", "GROQ_API_KEY", "…ment", False),
        ("openai", "login", file, "", True),
    ]
    shown = await auth(tmp_path, "list", **variables)
    assert "no, another is" in shown.stdout
    for secret in (KEY, "short", *variables.values()):
        assert secret not in shown.stdout + done.stdout


async def test_a_login_that_does_not_count_says_so(tmp_path: Path) -> None:
    write(tmp_path, f'[providers.groq]\napi_key = "{KEY}"\n')
    done = await auth(tmp_path, "login", "groq", "--key-stdin", "--no-check", stdin="short")
    assert "groq uses own.toml:2 (api_key), which takes precedence" in done.stderr


async def test_who_signs_out_leaves_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path, "")
    await auth(tmp_path, "login", "openai", "--key-stdin", "--no-check", stdin=KEY)
    done = await auth(tmp_path, "logout", "openai", OPENAI_API_KEY=KEY)
    assert (done.returncode, kept(tmp_path)) == (0, {})
    assert "openai uses OPENAI_API_KEY" in done.stderr
    again = await auth(tmp_path, "logout", "openai")
    assert (again.returncode, "no login of openai is stored" in again.stderr) == (1, True)
    empty = await auth(tmp_path, "list")
    assert "No provider has a key" in empty.stderr


async def test_a_broken_file_names_itself(tmp_path: Path) -> None:
    write(tmp_path, "")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "keys.json").write_text("{")
    for args in (("list",), ("logout", "openai"), ("login", "openai", "--key-stdin", "--no-check")):
        done = await auth(tmp_path, *args, stdin=KEY)
        assert done.returncode == 2
        assert "keys.json: unknown format" in done.stderr


async def test_where_the_system_has_a_keyring_the_key_is_kept_there(tmp_path: Path) -> None:
    write(tmp_path, "")
    ring = {
        "PYTHON_KEYRING_BACKEND": "tests.gateway.models.file_keyring.FileKeyring",
        "KEYRING_FILE": str(tmp_path / "ring"),
    }
    done = await auth(tmp_path, "login", "openai", "--key-stdin", "--no-check", stdin=KEY, **ring)
    assert "stored in the keyring (file)" in done.stdout
    assert '"type": "keyring"' in (tmp_path / "data" / "keys.json").read_text()
    assert KEY in (tmp_path / "ring").read_text()
    listed = await auth(tmp_path, "list", "--json", **ring)
    assert [(row["place"], row["hint"]) for row in json.loads(listed.stdout)] == [("the keyring", "")]
    async with FakeModels(key=KEY) as fake:
        write(tmp_path, openai(fake.openai_url))
        found = await asyncio.to_thread(
            trunkline,
            "doctor",
            "--config",
            "own.toml",
            home=tmp_path,
            TRUNKLINE_MODEL="openai/fake-small",
            **ring,
        )
        assert "openai/fake-small at" in found.stdout
    filed = await auth(tmp_path, "login", "openai", "--key-stdin", "--file", "--no-check", stdin=KEY, **ring)
    assert "stored in" in filed.stdout
    assert KEY not in (tmp_path / "ring").read_text()
    assert kept(tmp_path) == {"openai": {"type": "api", "key": KEY}}


async def test_no_key_can_be_given_where_other_users_of_the_machine_see_it(tmp_path: Path) -> None:
    write(tmp_path, "")
    for args in (("login", "openai", "--key", KEY), ("login", "openai", KEY)):
        assert (await auth(tmp_path, *args)).returncode == 2
    assert kept(tmp_path) == {}
