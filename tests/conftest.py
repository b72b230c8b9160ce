"""What tests need from outside Python (a server, a browser, a program); without one, its tests are skipped.

``TRUNKLINE_TEST_POSTGRES_URL`` names a server, with a user who may create databases,
``TRUNKLINE_TEST_CHROMIUM`` a browser, and ``TRUNKLINE_TEST_SYNAPSE`` the Python of an environment that has
Synapse. With ``TRUNKLINE_REQUIRE_SERVICES=1`` a test that lacks one fails.
"""

from __future__ import annotations

import gc
import os
import shutil
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import hypothesis
import pytest
import pytest_asyncio
import structlog

if TYPE_CHECKING:
    from playwright.async_api import Browser
    from sqlalchemy import URL

# The same examples every time, as long as the same modules are imported: constants of theirs are mixed in. So
# few are enough. What is new is looked for with --hypothesis-profile=default, not by chance.
hypothesis.settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("steady")

# No test may write into the keyring of whoever runs it.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"

# Reading all authorities takes 30 ms for each client of httpx, and no test may reach a server that has one.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "no_authority.pem")

# Rich draws a traceback with all its variables in 2 s; where structlog is not set up, tests may log hundreds.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.fixture(autouse=True)
def _log_configuration() -> Iterator[None]:
    """Keep a command that runs within a test from choosing where the lines of later tests go."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


_MARKED = {
    "postgres_url": pytest.mark.postgres,
    "migrated_postgres_url": pytest.mark.postgres,
    "chromium_path": pytest.mark.browser,
    "foreign": pytest.mark.node,
}
_SHELL = "chromium-headless-shell"
_BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)


_LONG = ("test_storm", "test_coding_agents", "test_foreign", "test_coding_kills")
"""Files with tests of a minute and more."""
_SLOW = ("e2e", "gateway/cli", "plugins/cli_backends")
"""Folders whose tests run processes."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run two workers for each core: half of their time tests wait, for timers and other processes.

    With ``--numprocesses logical`` it is one for each core.
    """
    cores = len(os.sched_getaffinity(0))
    return cores if config.option.numprocesses == "logical" else min(8, 2 * cores)


def pytest_configure() -> None:
    """Collect no garbage until all tests are collected: nearly everything that is created then stays, and
    looking at it again and again takes a sixth of the time.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep what was collected out of the garbage collector, which looks at all of it again and again."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Leave the exit status for `.ci/run`: that of make is one for failed and interrupted tests."""
    if hasattr(session.config, "cache") and not hasattr(session.config, "workerinput"):
        session.config.cache.set("trunkline/exit_status", int(exitstatus))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the services they ask for, so that ``-m 'not browser'`` leaves those out.

    The longest ones come first.
    """
    slow = tuple(f"{Path(__file__).parent / folder}{os.sep}" for folder in _SLOW)
    for item in items:
        if str(item.path).startswith(slow):
            item.add_marker(pytest.mark.slow)
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in _MARKED:
                item.add_marker(_MARKED[fixture])
            if fixture in ("shared_chromium", "whole_chromium"):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
    # The longest tests mostly wait: first, they overlap with all others; last, every worker would wait.
    items.sort(key=lambda item: item.path.stem not in _LONG)


@contextmanager
def _postgres_database(template: str = "template1") -> Iterator[URL]:
    """A new database of the server, a copy of another one. It is dropped afterwards."""
    server = os.environ.get("TRUNKLINE_TEST_POSTGRES_URL")
    if not server:
        _lacking("no PostgreSQL: TRUNKLINE_TEST_POSTGRES_URL names no server")
    from sqlalchemy import create_engine, make_url, text

    name = f"trunkline_{uuid.uuid4().hex}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
        yield make_url(server).set(database=name)
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    finally:
        engine.dispose()


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """The SQLAlchemy URL of a new, empty database."""
    with _postgres_database() as url:
        yield url.render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def _postgres_template() -> Iterator[str]:
    """The name of a database with the newest schema: to copy it takes a tenth of the time of creating it."""
    with _postgres_database() as url:
        from sqlalchemy import create_engine

        from gateway.store import migrate

        engine = create_engine(url)
        migrate.upgrade(engine)
        engine.dispose()  # one that is in use cannot be copied
        assert url.database is not None
        yield url.database


@pytest.fixture
def migrated_postgres_url(_postgres_template: str) -> Iterator[str]:
    """The SQLAlchemy URL of a new database with the newest schema and no rows."""
    with _postgres_database(_postgres_template) as url:
        yield url.render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def chromium_path() -> Path:
    """The Chromium (or Chrome) to drive; its headless shell takes 60 % of the processor time."""
    return _found_browser(_SHELL, *_BROWSERS)


def _found_browser(*names: str) -> Path:
    named = os.environ.get("TRUNKLINE_TEST_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, names)), None)
    if not found:
        _lacking("no Chromium: none is on the path, and TRUNKLINE_TEST_CHROMIUM names none")
    # Only tests that have a Chromium need Playwright.
    from playwright.async_api import expect

    # Its own limit, five seconds, is too short for a browser that shares two cores with other tests.
    expect.set_options(timeout=60_000)
    return Path(found)


@asynccontextmanager
async def _launched(path: Path) -> AsyncIterator[Browser]:
    """A headless browser, its microphone beeps. As root its own sandbox is not to be had."""
    # Only tests that have a Chromium need Playwright.
    from playwright.async_api import async_playwright

    flags = ("--no-sandbox", "--use-fake-device-for-media-stream")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_chromium(chromium_path: Path) -> AsyncIterator[Browser]:
    """One browser for all tests, which saves a third of their time. They run in its loop."""
    async with _launched(chromium_path) as browser:
        yield browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def whole_chromium() -> AsyncIterator[Browser]:
    """The browser that people use. It has a microphone, and the shell has none."""
    async with _launched(_found_browser(*_BROWSERS)) as browser:
        yield browser


@pytest.fixture
async def own_browser(chromium_path: Path) -> AsyncIterator[Browser]:
    """A browser for a test that has other asynchronous fixtures, which run in the loop of that test."""
    async with _launched(chromium_path) as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def browser(shared_chromium: Browser) -> AsyncIterator[Browser]:
    """The browser, in which nothing is open; what a test leaves open is closed."""
    yield shared_chromium
    for context in shared_chromium.contexts:
        await context.close()


@pytest.fixture
def foreign(request: pytest.FixtureRequest) -> Path:
    """The folder ``foreign`` beside the test, or the one that ``FOREIGN`` of its module names: a client that
    others wrote, its packages installed.
    """
    folder = getattr(request.module, "FOREIGN", request.path.parent / "foreign")
    if not shutil.which("node"):
        _lacking("no Node.js on the path")
    if not (folder / "node_modules").is_dir():
        _lacking(f"no packages: run `npm install --no-save --no-package-lock` in {folder}")
    return folder


@pytest.fixture(scope="session")
def dovecot_path() -> str:
    """Path of Dovecot."""
    found = shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return found or _lacking("no IMAP server: install dovecot-imapd")


@pytest.fixture(scope="session")
def rabbitmq_path() -> str:
    """Path of the program of RabbitMQ, which runs under any user."""
    found = shutil.which("rabbitmq-server", path=f"/usr/lib/rabbitmq/bin:{os.environ.get('PATH', '')}")
    return found or _lacking("no RabbitMQ: install rabbitmq-server")


@pytest.fixture(scope="session")
def ip_path() -> str:
    """Path of the program that makes network namespaces."""
    found = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    return found or _lacking("no `ip`: install iproute2")


@pytest.fixture(scope="session")
def postgres_programs() -> Path:
    """Path of the folder with the programs of PostgreSQL, for a server of one's own."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else _lacking("no programs of PostgreSQL: install postgresql")


@pytest.fixture(scope="session")
def synapse_python() -> Path:
    """Path of a Python that has Synapse."""
    named = os.environ.get("TRUNKLINE_TEST_SYNAPSE")
    return (
        Path(named) if named else _lacking("no Synapse: TRUNKLINE_TEST_SYNAPSE names no Python that has it")
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests were skipped, and why."""
    skipped = Counter(
        (report.nodeid.partition("::")[0], report.longrepr[2].removeprefix("Skipped: "))
        for report in terminalreporter.stats.get("skipped", ())
    )
    if skipped:
        terminalreporter.section("skipped")
    for (file, reason), count in sorted(skipped.items()):
        terminalreporter.line(f"{count} of {file}: {reason}")


def _lacking(reason: str) -> NoReturn:
    if os.environ.get("TRUNKLINE_REQUIRE_SERVICES") == "1":
        pytest.fail(f"{reason} (and TRUNKLINE_REQUIRE_SERVICES=1 allows no skip)")
    pytest.skip(reason)
