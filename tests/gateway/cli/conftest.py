"""One gateway for all tests of a file that only talk to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.cli.processes import RunningGateway, gateway


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that the gateway and its clients work in."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def running(home: Path) -> Iterator[RunningGateway]:
    """A gateway where the calculator has to ask."""
    (home / "config").mkdir()
    (home / "config/trunkline.toml").write_text('[permissions]\ncalculator = "ask"\n"*" = "allow"\n')
    with gateway(home) as process:
        yield process
