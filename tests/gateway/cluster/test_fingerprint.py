"""Nodes show in which settings they differ, and store no value of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from gateway.cluster.link import ANY_PORT, Link
from gateway.cluster.membership import Membership, read_nodes
from gateway.settings import load_settings
from tests.gateway.cluster.nodes import settings_of

pytestmark = pytest.mark.postgres
TOKEN = "7" * 40


async def test_nodes_differ_in_settings_and_approved_plugins(tmp_path: Path, postgres_url: str) -> None:
    one, two, three = (settings_of(tmp_path, postgres_url, name) for name in ("one", "two", "three"))
    folder = tmp_path / "other"
    folder.mkdir()
    file = folder / "trunkline.toml"
    changed = (tmp_path / "two.toml").read_text().replace("port = 0", f'port = 1\ntoken = "{TOKEN}"')
    file.write_text(f'log.level = "debug"\nlimits.drain_seconds = 7\n{changed}')
    (folder / "plugins.lock.toml").write_text("version = 1\n")
    two = load_settings(file, environ={}, cwd=folder)
    engine, members, links = create_engine(postgres_url), [], []
    try:
        for settings in (one, two, three):
            members.append(Membership(settings))
            links.append(Link(ANY_PORT))
            await members[-1].join("rabbit", links[-1])
        await members[0].take()
        with engine.connect() as connection:
            found = {row.name: list(row.differs) for row in read_nodes(connection)}
            stored = "".join(connection.execute(text("SELECT settings FROM node")).scalars())
        other = ["limits.drain_seconds", "plugins.lock.toml", "server.token"]
        assert found == {"one": [], "two": other, "three": []}
        assert await members[1].find_differences() == other
        assert TOKEN not in stored
    finally:
        engine.dispose()
        for member, link in zip(members, links, strict=False):
            link.close()
            await member.close()
