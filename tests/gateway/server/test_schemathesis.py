"""The API against its own description: every route, valid and invalid requests, the same ones each time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import hypothesis.strategies
import pytest
import schemathesis
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from gateway.testing.served import serving

pytestmark = pytest.mark.slow

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
ENDLESS = r"/events$"
EXAMPLES = 12


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a gateway in its own thread, for a blocking client, and yield its URL."""
    started, found, done = threading.Event(), [""], threading.Event()

    async def serve(data_dir: Path) -> None:
        async with serving(data_dir) as served:
            found[0] = served.url
            started.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve(tmp_path_factory.mktemp("api"))))
    thread.start()
    assert started.wait(20)
    yield found[0]
    done.set()
    thread.join()


def test_004_T01_the_api_is_as_it_is_described(url: str) -> None:
    description = schemathesis.openapi.from_url(f"{url}/openapi.json").exclude(path_regex=ENDLESS)
    tried = 0
    for found in description.get_all_operations():
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            if mode is GenerationMode.NEGATIVE and not _takes_anything(operation):
                continue
            _try(operation.as_strategy(generation_mode=mode))
            tried += 1
    assert tried > 20


def _takes_anything(operation: APIOperation) -> bool:
    return bool(operation.body or operation.query or operation.headers or operation.path_parameters)


def _try(cases: hypothesis.strategies.SearchStrategy[Case]) -> None:
    @hypothesis.given(cases)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def as_described(case: Case) -> None:
        case.call_and_validate(checks=CHECKS)

    as_described()
