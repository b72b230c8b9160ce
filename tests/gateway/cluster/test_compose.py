"""What `config/cluster` says to a container runtime, which these tests do not have."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.contract.errors import SettingsError
from gateway.settings import Settings, load_settings
from tests.gateway.cli.processes import ROOT, trunkline
from tests.gateway.cluster.containers import FOLDER, MOUNTED, make_secrets, read

pytestmark = pytest.mark.slow

_VARIABLE = re.compile(r"\$\{(\w+):\?[^}]+\}")
_HEALTHY = {"condition": "service_healthy"}
_DATA = "data:/data"
_SETTINGS = "./trunkline.toml:/opt/trunkline/config/trunkline.toml:ro"


def variables() -> dict[str, str]:
    """The variables of the example."""
    return dict(re.findall(r"^(\w+)=(.+)$", read("example.env"), re.MULTILINE))


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file with the variables of the example."""
    given = variables()
    return yaml.safe_load(_VARIABLE.sub(lambda found: given[found[1]], read("compose.yaml")))


@pytest.fixture(scope="module")
def nodes(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The services that are nodes."""
    return {name: service for name, service in compose["services"].items() if name.startswith("node-")}


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script made."""
    return make_secrets(tmp_path_factory.mktemp("secrets"))


def test_each_variable_is_required_and_in_the_example() -> None:
    text = read("compose.yaml")
    assert set(_VARIABLE.findall(text)) == set(variables())
    assert "$" not in _VARIABLE.sub("", text), "a variable that may be missing"


def test_all_nodes_share_a_volume_and_wait_for_the_servers(
    compose: dict[str, Any], nodes: dict[str, dict[str, Any]]
) -> None:
    assert len(nodes) == 3
    for name, node in nodes.items():
        assert {_DATA, _SETTINGS} <= {*node["volumes"]}
        assert node["hostname"] == name
        assert node["restart"] == "unless-stopped"
        assert node["pull_policy"] == "never"
        assert int(node["stop_grace_period"].removesuffix("s")) > Settings().limits.drain_seconds + 5
        assert node["depends_on"] == {"postgres": _HEALTHY, "rabbitmq": _HEALTHY}
    assert all("healthcheck" in compose["services"][server] for server in ("postgres", "rabbitmq"))
    published = [name for name, service in compose["services"].items() if "ports" in service]
    assert published == ["proxy"]


def test_all_that_is_mounted_is_shipped_or_made_by_the_script(
    compose: dict[str, Any], secrets: Path, tmp_path: Path
) -> None:
    files = {name: secrets.parent / entry["file"] for name, entry in compose["secrets"].items()}
    assert {name: file.name for name, file in files.items()} == {name: name for name in files}
    for name, service in compose["services"].items():
        assert {*service.get("secrets", ())} <= {*files}, name
        if "env_file" in service:
            assert (secrets / Path(service["env_file"]).name).is_file()
        for source, _, target in (volume.partition(":") for volume in service["volumes"]):
            assert (FOLDER / source).is_file() if source.startswith(".") else source in compose["volumes"]
            assert target.endswith(":ro") or not source.startswith(".")
    for name in files:
        assert (secrets / name).stat().st_mode & 0o777 == 0o644, "users of containers have other ids"
        assert (secrets / name).stat().st_size
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert (secrets / "ca.key").stat().st_mode & 0o777 == 0o600
    assert "ca.key" not in compose["secrets"]


def test_the_database_commits_durably_and_asks_for_passwords(compose: dict[str, Any]) -> None:
    postgres = compose["services"]["postgres"]
    assert "synchronous_commit=on" in postgres["command"]
    assert "password_encryption=scram-sha-256" in postgres["command"]
    assert postgres["environment"]["POSTGRES_HOST_AUTH_METHOD"] == "scram-sha-256"
    assert "POSTGRES_PASSWORD" not in postgres["environment"]


def test_the_script_makes_what_is_missing_and_keeps_the_rest(tmp_path: Path) -> None:
    folder = make_secrets(tmp_path / "made")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    (folder / "server_token").unlink()
    (folder / "rabbitmq.pem").unlink()
    make_secrets(folder)
    after = {file.name: file.read_bytes() for file in folder.iterdir()}
    changed = {name for name in before if before[name] != after[name]}
    # The hash of the same password has another salt.
    assert changed == {"server_token", "rabbitmq.pem", "rabbitmq.key", "definitions.json"}
    assert before.keys() == after.keys()


def test_the_certificate_is_accepted_by_strict_clients_for_its_host_alone(secrets: Path) -> None:
    """Python 3.13, which the image has, checks certificates strictly."""
    command = ["openssl", "verify", "-x509_strict", "-CAfile", secrets / "ca.pem", "-verify_hostname"]
    for host, accepted in (("rabbitmq", True), ("another", False)):
        done = subprocess.run([*command, host, secrets / "rabbitmq.pem"], capture_output=True, text=True)
        assert (done.returncode == 0) == accepted, done.stderr


@pytest.mark.parametrize("name", ["node-1", "node-2", "node-3"])
def test_the_settings_of_a_node_are_accepted(
    tmp_path: Path, nodes: dict[str, dict[str, Any]], secrets: Path, name: str
) -> None:
    file = settings_file(tmp_path, secrets)
    environ: dict[str, str] = nodes[name]["environment"]
    settings = load_settings(file, environ=environ, cwd=tmp_path)
    assert settings.cluster.node == name
    assert settings.cluster.address == f"{name}:8090"
    public, network = variables()["TRUNKLINE_PUBLIC_NAME"], variables()["TRUNKLINE_NETWORK"]
    assert settings.server.allowed_origins == (f"https://{public}",)
    assert settings.server.trusted_proxies == (f"{network}.10",)
    checked = trunkline(
        "config",
        "check",
        "--config",
        str(file),
        home=tmp_path,
        TRUNKLINE_SERVER__HOST="0.0.0.0",
        **environ,
    )
    assert checked.returncode == 0, checked.stderr


def settings_file(folder: Path, secrets: Path) -> Path:
    """The settings of nodes, with the secrets where they are here."""
    file = folder / "trunkline.toml"
    file.write_text(read("trunkline.toml").replace(MOUNTED, str(secrets)))
    return file


@pytest.mark.parametrize("name", ["server_token", "postgres_password", "rabbitmq_password"])
def test_a_node_without_a_secret_does_not_start(tmp_path: Path, name: str) -> None:
    secrets = make_secrets(tmp_path / "made")
    (secrets / name).unlink()
    with pytest.raises(SettingsError, match=f"needs the file .*{name}, which cannot be read"):
        load_settings(settings_file(tmp_path, secrets), environ={}, cwd=tmp_path)


def test_the_proxy_has_the_trusted_address_and_asks_all_nodes_whether_they_are_ready(
    compose: dict[str, Any], nodes: dict[str, dict[str, Any]]
) -> None:
    proxy, text = compose["services"]["proxy"], read("Caddyfile")
    (address,) = (each["ipv4_address"] for each in proxy["networks"].values())
    assert all(
        node["environment"]["TRUNKLINE_SERVER__TRUSTED_PROXIES"] == f'["{address}"]'
        for node in nodes.values()
    )
    (upstreams,) = re.findall(r"reverse_proxy (.+) \{", text)
    assert upstreams.split() == [f"{name}:8080" for name in nodes]
    assert re.search(r"health_uri\s+/readyz$", text, re.MULTILINE)
    assert set(re.findall(r"\{\$(\w+)\}", text)) == set(proxy["environment"])


def test_neither_git_nor_the_image_takes_a_secret() -> None:
    ignored = read("../../.containerignore").splitlines()
    assert ignored.index("!config") < min(
        ignored.index(name) for name in ("config/cluster/secrets", "config/cluster/.env")
    ), "later lines are stronger"
    if shutil.which("git") and (ROOT / ".git").exists():
        for name in ("secrets/ca.key", ".env"):
            command = ["git", "check-ignore", "--quiet", f"config/cluster/{name}"]
            assert subprocess.run(command, cwd=ROOT).returncode == 0, name


def test_the_image_of_a_node_has_the_client_of_rabbitmq() -> None:
    text = read("../../Containerfile")
    (default,) = re.findall(r"^ARG REQUIREMENTS=(\S+)$", text, re.MULTILINE)
    (argument,) = re.findall(r"--build-arg REQUIREMENTS=(\S+)", read("compose.yaml"))
    assert (default, argument) == ("requirements-postgres.txt", "requirements-cluster.txt")
    assert {default, argument} <= {*re.findall(r"^COPY (\S+) \./$", text, re.MULTILINE)}
    assert '--requirement "$REQUIREMENTS"' in text
    assert text.index("ARG REQUIREMENTS") > text.index("FROM "), "before FROM it has no value after it"
    # pip refuses two versions of a package.
    pins = [
        set(re.findall(r"^(cryptography==\S+)", read(f"../../{file}"), re.MULTILINE))
        for file in (argument, "requirements-documents.txt")
    ]
    assert pins[0] == pins[1] != set()
