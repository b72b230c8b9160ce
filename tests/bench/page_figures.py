"""The figure of the pages: how long a browser that has nothing of them takes to show something.

``TRUNKLINE_TEST_CHROMIUM`` names the browser, as for the tests.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from agent_figures import CHROMIUM
from figures import Bench, Row, row

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_PAGES = {"relay": "/healthz", "console": "/console", "chat": "/"}
_PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_TIMES = 3


def first_paint(bench: Bench) -> Iterator[Row]:
    """From the start of a navigation to the first text or picture, by the browser's own clock.

    The floor is a line of text that the same gateway serves. Each page is opened without a cache.
    """
    label = "first paint of the {}, in Chromium (floor: a line of text)"
    if not (path := os.environ.get(CHROMIUM)):
        yield Row(label.format("pages"), "ms", None, note=f"not measured: {CHROMIUM} names no browser")
        return
    from playwright.sync_api import sync_playwright  # only here: other figures need no browser

    gateway = bench.lab.gateway()
    took: dict[str, list[float]] = defaultdict(list)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for number in range(_TIMES * bench.rounds + 1):
            for name, page in _PAGES.items():
                milliseconds = _painted(browser, gateway.address + page)
                if number:  # the first ones start the browser's processes
                    took[name].append(milliseconds)
        browser.close()
    bench.lab.stop(gateway)
    for name in ("console", "chat"):
        yield row(label.format(name), "ms", {"ours": took[name], "relay": took["relay"]}, 300, absolute=True)


def _painted(browser: Browser, address: str) -> float:
    """Return the milliseconds until a page has content, in a context that has no cache."""
    with browser.new_context(viewport={"width": 1280, "height": 720}) as context:
        page = context.new_page()
        page.goto(address)
        return float(page.wait_for_function(_PAINTED).json_value())


PAGE_FIGURES: dict[str, Callable[[Bench], Iterator[Row]]] = {"paint": first_paint}
"""By the names that ``--only`` takes."""
