"""Pictures of the screens, light, dark and on a phone, of a gateway that has something to tell.

``TRUNKLINE_TEST_PICTURES=docs/console`` keeps them there; else only those of the light theme are made.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, expect

from gateway.contract.channel import Address, InboundMessage, Rejected, Sender, SessionKey
from gateway.contract.deltas import Tokens
from gateway.contract.messages import now_ms
from gateway.models import Caller, Ledger
from gateway.store.inbox import quarantine_op, read_entry
from gateway.testing.fake_models.script import Gate, Refusal, Reply, Say, Use
from gateway.testing.fake_models.script import Tokens as Used
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import until
from tests.e2e.page_browser import chat
from tests.gateway.why.cases import Case, line

FOLDER = os.environ.get("TRUNKLINE_TEST_PICTURES", "")
DAY_MS = 86_400_000
SIZES: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
PEOPLE = {"kitchen": "Priya Raman", "garden": "Jonas Weber", "porch": "Mei Tanaka"}
PRICES = {f"{one}/fake-small": {"input_price": 3, "output_price": 15} for one in ("openai", "groq")}
BUDGETS = {
    "all": {"per": "day", "warn": 48, "stop": 60},
    "each": {"scope": "agent", "per": "month", "stop": 900},
}

AGENTS = """\
[agents.desk]
description = "Answers customers about orders and deliveries"
model = "openai/fake-small"
tools = ["door"]
system_prompt = '''
You are the support desk of a garden shop.
Look up an order before you answer, and say when it arrives.
Ask a person before you promise a refund.'''

[agents.translator]
description = "Translates what people write"
temperature = 0.2
system_prompt = "Translate into the language that is asked for."

[channels.line.rooms.kitchen]
agent = "desk"
groups = "always"

[channels.line.rooms.porch]
agent = "translator"
"""


async def write(case: Case, room: str, text: str, number: int) -> str:
    """Send a message as a person; return its id."""
    message = InboundMessage(
        session=str(SessionKey("line", "bot", room)),
        dedup_key=f"{room}:{number}",
        address=Address("line", "bot", room, reply_to=str(number)),
        sender=Sender("ada", name=PEOPLE[room]),
        text=text,
        order=number,
    )
    receipts = await case.served.gateway.parts.intake.receiver("line")(message)
    return receipts[0].message_id


async def spend(case: Case) -> None:
    """Record the calls of a month."""
    ledger = Ledger(case.served.gateway.parts.store)
    shares = (
        ("anthropic", "opus", 0.58),
        ("openai", "gpt", 0.27),
        ("groq", "oss", 0.12),
        ("local", "qwen", 0.0),
    )
    for day in range(31):
        for provider, model, share in shares:
            for part in range(4):
                caller = Caller(
                    f"line:bot:{tuple(PEOPLE)[part % 3]}", "line", "line:ada", "main", provider, model
                )
                usd = share * (8 + (day * 7 + part * 3) % 9 - 4 * (day % 7 > 4)) / 2
                nano = round(usd * 1e9) if share else None
                at = now_ms() - day * DAY_MS
                ledger.record(None, caller, at, "counted", Tokens(400_000, 9_000, 150_000), nano)
    await case.served.gateway.parts.store.write()


async def live(case: Case, first: FakeModels, second: FakeModels, opened: asyncio.Event) -> str:
    """Let messages be answered, fail and wait; return one that failed."""
    used = Used(1_800, 60)
    first.then(
        Reply((Say("Let me look. "), Use("door", '{"which": "order 4471"}')), "tools", tokens=used),
        Reply((Say("Yes, until it is handed to the carrier, today at 15:00."),), tokens=used),
    )
    await write(case, "kitchen", "Can I change the address of my order 4471?", 1)
    await case.settled()
    failed = ""
    for number in (2, 3):
        first.then(Refusal(529, "overloaded"))
        second.then(Refusal(401, "invalid_api_key: Incorrect API key provided"))
        failed = await write(case, "kitchen", "Where is my order 4471?", number)
        await case.settled()
    await write(case, "porch", "Translate this into French, please.", 4)
    await case.settled()
    first.then(Reply((Say("A refund"), Gate(opened), Say(" goes to the card."))))
    await write(case, "garden", "Can I still get a refund for order 4402?", 5)
    await until(lambda: any(one.turn is not None for one in case.served.gateway.parts.sessions.live()))
    return failed


async def ask(case: Case, fake: FakeModels) -> str:
    """Let a stranger ask to be let in, and a message lead to a question; return the question."""
    await case.write("Hello, may I use this bot?", "mei.t", "hall")
    fake.then(
        Reply((Say("I open it for the carrier. "), Use("door", '{"which": "gate of the yard"}')), "tools")
    )
    waiting = await write(case, "porch", "The carrier stands at the gate. Can you open it?", 6)
    questions = case.served.gateway.parts.questions
    await until(lambda: bool(questions.of_message(waiting)))
    return questions.of_message(waiting)[0].question.id


async def bury(case: Case, fake: FakeModels) -> None:
    """Let messages and events be dead letters, of three causes."""
    texts = ("Can I pay by invoice?", "Where is the pump of order 4468?", "Do you deliver on Saturdays?")
    reasons = ("KeyError: 'invoice'", "KeyError: 'pump'", "PlacementRefused: the bot was blocked by the user")
    store = case.served.gateway.parts.store
    for number, (text, reason) in enumerate(zip(texts, reasons, strict=True)):
        fake.then(Refusal(529, "overloaded"))
        receipt = await write(case, "porch", text, number - 10)
        await case.settled()
        entry = await store.read(lambda c, one=receipt: read_entry(c, one))
        await store.write(*entry.give_up(reason, None))
    rejected = Rejected("bot", "812", '{"poll": {}}', "an event of the type poll has no text")
    await store.write(quarantine_op("line", rejected))


_RENAME = """([from, to]) => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const renamed = (text) => text.replaceAll(from, to).replace(/http:..127\\.0\\.0\\.1:\\d+/, "https://llm.example");
    while (texts.nextNode()) texts.currentNode.data = renamed(texts.currentNode.data);
}"""


async def take(page: Page, address: str, name: str, shown: str, folder: Path) -> None:
    """Open a screen, and take a picture of it when it is drawn; it does not show where the test ran."""
    await page.goto(address)
    await expect(page.locator(shown).first).to_be_visible()
    await page.evaluate(_RENAME, [str(folder), "/srv/trunkline"])
    assert len(await page.screenshot(path=f"{FOLDER}/{name}" if FOLDER else None)) > 10_000


async def test_each_screen_has_its_picture(browser: Browser, tmp_path: Path) -> None:
    opened = asyncio.Event()
    async with FakeModels() as first, FakeModels() as second:
        urls = {"openai": first.openai_url, "groq": second.openai_url}
        providers = {name: {"base_url": url, "api_key": "k", "max_retries": 0} for name, url in urls.items()}
        settings: dict[str, Any] = {
            "providers": providers,
            "fallback": ("groq/fake-small",),
            "models": PRICES,
            "budgets": BUDGETS,
            "permissions": {"door": {"order *": "allow", "*": "ask"}, "*": "allow"},
            "file": tmp_path / "data" / "config" / "trunkline.toml",
        }
        settings["file"].parent.mkdir(parents=True)
        settings["file"].write_text(AGENTS)
        async with line(tmp_path, first, **settings) as case:
            await spend(case)
            await bury(case, first)
            failed = await live(case, first, second, opened)
            question = await ask(case, first)
            screens = {
                "now": ("now", ".running a.row-open"),
                "conversations": ("conversations/line:bot:kitchen", ".turn"),
                "why": (f"why/{failed}", ".line"),
                "money": ("money", ".plot"),
                "dead-letters": ("dead", ".letters tr"),
                "agents": ("agents/desk", ".setting-list"),
                "rooms": ("rooms/line/kitchen", ".setting-list"),
                "models": ("models/groq", ".key-list"),
                "plugins": ("plugins/pier", ".facts"),
                "waiting": (f"waiting/{question}", ".ask-body"),
                "settings": ("settings", ".setting-key"),
            }
            for size, how in SIZES.items() if FOLDER else [*SIZES.items()][:1]:
                async with chat(browser, f"{case.served.url}/console", connected=False, **how) as page:
                    for name, (path, shown) in screens.items():
                        await take(
                            page, f"{case.served.url}/console/{path}", f"{name}-{size}.png", shown, tmp_path
                        )
            opened.set()
            denied = {"values": ["deny"]}
            assert (await case.served.ask("POST", f"/api/questions/{question}", json=denied))[0] == 200
            await case.settled()
