"""The confined plugin ``feed-digest``: feeds of a real server, in a real confined process."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway import new_id
from gateway.channel import Address, InboundMessage, Sender
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.testing.served import Served, serving

FEEDS: Mapping[str, Any] = run_path("plugins/feed-digest/feeds.py")
confined = pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux")

pytestmark = pytest.mark.slow

RSS = """<?xml version="1.0"?>
<!DOCTYPE rss PUBLIC "-//Netscape Communications//DTD RSS 0.91//EN" "http://127.0.0.1:1/rss.dtd">
<rss version="2.0"><channel><title>News &amp; more</title>{items}</channel></rss>
"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>Blog</title>
<entry><id>tag:1</id><title type="html">A &lt;b&gt;bold&lt;/b&gt; [step]</title>
<link rel="self" href="http://example.org/self"/><link href="https://example.org/1"/></entry>
<entry><title>No id,  no
link</title></entry></feed>
"""
BOMB = (
    '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><rss><channel><title>&b;</title></channel></rss>'
)


def item(number: int) -> str:
    return f"<item><guid>{number}</guid><title>Entry {number}</title><link>https://news.example.org/{number}</link></item>"


def test_rss_and_atom_are_read_and_their_titles_are_plain() -> None:
    news = FEEDS["parse_feed"](RSS.format(items=item(2) + item(1)).encode())
    assert news.title == "News & more"
    assert [entry.as_markdown() for entry in news.entries] == [
        "- [Entry 2](<https://news.example.org/2>)",
        "- [Entry 1](<https://news.example.org/1>)",
    ]
    blog = FEEDS["parse_feed"](ATOM.encode())
    assert [entry.as_markdown() for entry in blog.entries] == [
        r"- [A bold \[step\]](<https://example.org/1>)",
        "- No id, no link",
    ]
    wrong = item(1).replace("https://news.example.org/1", "javascript:alert(1)")
    assert FEEDS["parse_feed"](RSS.format(items=wrong).encode()).entries[0].link == ""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (BOMB, "declares entities"),
        ('<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><rss>&a;</rss>', "declares entities"),
        ('<!DOCTYPE x [<!ENTITY % a SYSTEM "http://127.0.0.1:1/">%a;]><rss/>', "declares entities"),
        ("<html><body>Not found</body></html>", "not a feed: its first element is 'html'"),
        ("Not found", "not XML"),
        ("<rss><channel>", "not XML"),
        ("", "not XML"),
        ("<rss>&undefined;</rss>", "not XML"),
    ],
)
def test_other_documents_and_bombs_are_refused(data: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FEEDS["parse_feed"](data.encode())


class Site:
    """A web site with feeds that a test changes."""

    def __init__(self) -> None:
        self.items = [1]
        self.app = web.Application()
        self.app.add_routes(
            [
                web.get("/rss", self._rss),
                web.get("/atom", self._atom),
                web.get("/bomb", self._bomb),
                web.get("/gone", self._gone),
            ]
        )

    async def _rss(self, _request: web.Request) -> web.Response:
        return web.Response(text=RSS.format(items="".join(map(item, self.items))))

    async def _atom(self, _request: web.Request) -> web.Response:
        return web.Response(text=ATOM)

    async def _bomb(self, _request: web.Request) -> web.Response:
        return web.Response(text=BOMB)

    async def _gone(self, _request: web.Request) -> web.Response:
        return web.Response(status=410)


@pytest.fixture
async def site() -> AsyncIterator[tuple[Site, str]]:
    """A site and its address."""
    made = Site()
    async with TestServer(made.app) as server:
        yield made, str(server.make_url("")).rstrip("/")


def settings(address: str) -> dict[str, Any]:
    feeds = [f"{address}/{name}" for name in ("rss", "gone", "bomb", "atom")]
    return {
        "plugins": {"enabled": ["feed-digest"], "feed-digest": {"feeds": feeds, "most": 2}},
        "fetch": {"allow": ["127.0.0.0/8"]},
        "channels": {"websocket": {}},
    }


async def say(served: Served, text: str) -> str:
    message = InboundMessage(
        session="s",
        dedup_key=new_id(),
        address=Address("websocket", "", "s"),
        sender=Sender("ada"),
        role="user",
        text=text,
    )
    answer = await served.gateway.parts.host.submit(message)
    assert answer is not None
    return answer.text


async def digests(served: Served) -> list[str]:
    log = [message.text for _, message in await served.gateway.parts.sessions.read("s")]
    return [text for text in log if text.startswith("**")]


async def run(served: Served, due: int) -> None:
    plugin = served.gateway.registry.get("feed-digest")
    assert isinstance(plugin, ConfinedPlugin)
    assert await plugin.run_job("digest", due)


BLOG = "**Blog**\n\n- [A bold \\[step\\]](<https://example.org/1>)\n- No id, no link"


def news(*lines: str) -> str:
    return "\n".join(("**News & more**", "", *lines))


def line(number: int) -> str:
    return f"- [Entry {number}](<https://news.example.org/{number}>)"


@confined
async def test_new_entries_come_once_and_broken_feeds_do_not_stop_the_others(
    tmp_path: Path, site: tuple[Site, str]
) -> None:
    pages, address = site
    async with serving(tmp_path, **settings(address)) as served:
        assert (await say(served, "/digest on")).startswith("The news of 4 feeds come here each day")
        await run(served, 1)
        first = f"{news(line(1))}\n\n{BLOG}"
        assert await digests(served) == [first]
        await run(served, 2)
        assert await digests(served) == [first]
        pages.items = [5, 4, 3, 2, 1]
    async with serving(tmp_path, **settings(address)) as served:
        await run(served, 3)
        second = news(line(5), line(4), "- and 2 more")
        # The same run again, as after a crash, sends nothing twice.
        await run(served, 3)
        assert await digests(served) == [first, second]
        async with served.http.get(f"{served.url}/plugins/feed-digest/latest") as page:
            assert (page.status, await page.text()) == (200, second)
        assert await say(served, "/digest off") == "The digest is off."
        assert await say(served, "/digest off") == "It was not on in this chat."
        pages.items = [6, 5, 4, 3, 2, 1]
        await run(served, 4)
        assert await digests(served) == [first, second]
        assert await say(served, "/digest") == "Use `/digest on` or `/digest off`."


@confined
async def test_a_digest_that_a_crash_interrupted_is_sent_as_it_was(
    tmp_path: Path, site: tuple[Site, str]
) -> None:
    _, address = site
    async with serving(tmp_path, **settings(address)) as served:
        await say(served, "/digest on")
        pending = {"key": "digest 1", "text": "**Old** news", "seen": {}}
        await served.gateway._tables.open("feed-digest", "kv").put("pending", pending)  # type: ignore[union-attr]
        await run(served, 1)
        assert await digests(served) == ["**Old** news"]
        await run(served, 2)
        assert (await digests(served))[1:] == [f"{news(line(1))}\n\n{BLOG}"]


@confined
async def test_a_redirect_to_another_host_is_denied(tmp_path: Path, site: tuple[Site, str]) -> None:
    _, address = site

    async def away(_request: web.Request) -> web.Response:
        raise web.HTTPFound(f"{address}/rss")

    app = web.Application()
    app.add_routes([web.get("/moved", away)])
    async with TestServer(app) as moved:
        own = settings(address)
        own["plugins"]["feed-digest"]["feeds"] = [str(moved.make_url("/moved"))]
        async with serving(tmp_path, **own) as served:
            await say(served, "/digest on")
            await run(served, 1)
            assert await digests(served) == []
            actions = served.gateway.parts.actions
            await actions.flush()
            assert "network" in {one.action for one in await actions.latest("feed-digest")}
