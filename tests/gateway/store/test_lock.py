"""One gateway at a time on a database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.contract.errors import StoreLockedError
from gateway.store import Store, open_locked
from gateway.store.engine import lock, open_engine

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys
from gateway.store.engine import lock, open_engine
held = lock(open_engine(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def unexpected(error: BaseException) -> None:
    raise AssertionError from error


async def test_a_second_store_on_the_same_database_is_refused(database_url: str, store: Store):
    with pytest.raises(StoreLockedError, match="another gateway already uses"):
        Store.open(database_url, "full", unexpected)
    await store.write()


async def test_a_refused_process_does_not_release_the_lock(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/t.db"
    store = Store.open(url, "full", unexpected)
    for _ in range(3):
        with pytest.raises(StoreLockedError), open_locked(url):
            pass
    await store.close()


async def test_a_closed_store_lets_the_next_one_in(database_url: str):
    for _ in range(2):
        store = Store.open(database_url, "full", unexpected)
        await store.close()


def test_a_killed_process_does_not_keep_the_lock(database_url: str):
    engine = open_engine(database_url)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, database_url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreLockedError):
            lock(engine)
        holder.kill()
    lock(engine).release()
    engine.dispose()


async def test_two_files_are_two_databases(tmp_path: Path):
    first = Store.open(f"sqlite:///{tmp_path}/a.db", "full", unexpected)
    second = Store.open(f"sqlite:///{tmp_path}/b.db", "full", unexpected)
    await first.close()
    await second.close()
