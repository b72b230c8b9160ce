"""The sixteen providers that are promised: known at once, loaded when they are wanted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import plugins.providers
from gateway import Provider, ProviderConfig
from gateway.extensions.backends import ProviderRegistry
from gateway.models import Models, retirement
from gateway.settings import load_settings
from plugins.cli_backends.candidates.installed import MODELS
from plugins.providers import PROVIDERS, register_factories

pytestmark = pytest.mark.slow

SIXTEEN = (
    "openai",
    "anthropic",
    "google",
    "mistral",
    "groq",
    "xai",
    "deepinfra",
    "cerebras",
    "cohere",
    "azure",
    "vertex",
    "bedrock",
    "copilot",
    "openrouter",
    "together",
    "custom",
)
METHODS = {"vertex": "oauth", "bedrock": "custom", "copilot": "oauth"}


def configured(name: str) -> ProviderConfig:
    """What each needs at least."""
    base_url = "http://127.0.0.1:9/v1" if name in ("azure", "custom") else None
    return ProviderConfig(id=name, api_key="key", base_url=base_url, project_id="p", region="r")


def known() -> ProviderRegistry:
    registry = ProviderRegistry(configured)
    register_factories(registry)
    return registry


def test_004_33_sixteen_providers_are_registered_and_no_others_that_need_a_key() -> None:
    registry = known()
    assert set(registry.known()) == {*SIXTEEN, "demo", "local"} == set(PROVIDERS)


@pytest.mark.parametrize("name", SIXTEEN)
async def test_004_33_each_can_be_made(name: str) -> None:
    registry = known()
    provider = await registry.ready(name)
    assert isinstance(provider, Provider)
    assert (provider.id, provider.auth_method) == (name, METHODS.get(name, "api_key"))
    assert provider.name
    assert provider.name != name
    assert provider.api_endpoint.startswith(("https://", "http://127.0.0.1:9/"))
    await registry.close()


async def test_no_default_model_is_deprecated_or_has_a_retirement_date() -> None:
    models = Models(known())
    for name, provider in PROVIDERS.items():
        if provider.first_model and name != "demo":
            facts = await models.facts(name, provider.first_model)
            assert (facts.deprecated, facts.retires) == (None, None), name
    for cli, vendor in (("claude-code", "anthropic"), ("codex", "openai"), ("gemini", "google")):
        assert retirement(vendor, MODELS[cli]) is None


def test_the_page_tells_of_every_provider_and_every_variable() -> None:
    page = (Path(plugins.providers.__file__).parent / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \|(.*)\|$", page, re.MULTILINE))
    assert set(rows) == set(PROVIDERS)
    registry = known()
    for name in set(PROVIDERS) - {"demo"}:
        variables = [each for names in registry.variables(name).values() for each in names]
        if name == "vertex":
            variables.remove("VERTEX_API_KEY")
        assert [each for each in variables if f"`{each}`" not in rows[name]] == [], name


def test_the_settings_on_the_page_are_right(tmp_path: Path) -> None:
    page = (Path(plugins.providers.__file__).parent / "README.md").read_text()
    shown = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "trunkline.toml"
    file.write_text("\n".join(shown))
    providers = load_settings(file, environ={"SECRET": "s", "ANOTHER": "t"}).providers
    assert set(providers) == {"desk", "azure-eu", "company", "openai"}
    assert providers["azure-eu"].like == "azure"


def python(program: str, **environ: str) -> str:
    """What a separate program prints; it knows nothing of our environment but the way to Python."""
    clean = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environ}
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_knowing_the_providers_loads_none_of_them() -> None:
    loaded = python(
        "import sys\n"
        "from gateway import ProviderConfig\n"
        "from gateway.extensions.backends import ProviderRegistry\n"
        "from plugins.providers import register_factories\n"
        "register_factories(ProviderRegistry(lambda name: ProviderConfig(id=name)))\n"
        "print([m for m in sys.modules if m.startswith(('plugins.providers.', 'botocore', 'google'))])"
    )
    assert loaded == "[]"


def test_a_provider_loads_no_others_library() -> None:
    loaded = python(
        "import sys\n"
        "from gateway import ProviderConfig\n"
        "from plugins.providers.google import create\n"
        "create(ProviderConfig(id='google'))\n"
        "print([m for m in ('botocore', 'google.auth', 'requests', 'stamina') if m in sys.modules])"
    )
    assert loaded == "[]"


@pytest.mark.parametrize(("name", "library"), [("vertex", "google.auth"), ("bedrock", "botocore")])
def test_a_library_that_is_not_installed_is_named_with_its_extra(name: str, library: str) -> None:
    module = {"vertex": "google"}.get(name, name)
    said = python(
        "import sys\n"
        f"sys.modules[{library!r}] = None\n"
        "from gateway import ProviderConfig, SettingsError\n"
        f"from plugins.providers.{module} import create\n"
        "try:\n"
        f"    create(ProviderConfig(id={name!r}, region='r', project_id='p'))\n"
        "except SettingsError as error:\n"
        "    print(error)"
    )
    assert said == f"provider '{name}' needs the extra {name}: pip install 'trunkline[{name}]'"


def test_credentials_of_this_machine_are_found_and_their_lack_is_reported() -> None:
    program = (
        "import asyncio\n"
        "from gateway import ProviderConfig\n"
        "from gateway.http_client import open_client\n"
        "from gateway.provider_http import AuthFailedError, RequestSpec\n"
        "from plugins.providers.bedrock.signer import signer_for\n"
        "async def main():\n"
        "    signer = signer_for(ProviderConfig(id='bedrock', region='eu-west-1'))\n"
        "    request = RequestSpec('http://x/', 'GET', {'Content-Type': 'application/json'})\n"
        "    client = open_client()\n"
        "    try:\n"
        "        print((await signer.authorize(request, client)).headers['Authorization'])\n"
        "    except AuthFailedError as error:\n"
        "        print(error)\n"
        "    await client.close()\n"
        "asyncio.run(main())"
    )
    off = {"AWS_EC2_METADATA_DISABLED": "true"}
    there = python(program, AWS_ACCESS_KEY_ID="AKIAHERE", AWS_SECRET_ACCESS_KEY="s", **off)
    assert there.startswith("AWS4-HMAC-SHA256 Credential=AKIAHERE/")
    assert python(program, **off).startswith("no AWS credentials")
    assert python(program, AWS_PROFILE="nobody", **off).startswith("no AWS credentials")
