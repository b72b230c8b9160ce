"""The figures of the channels: how fast chats on platforms are answered, and what channels cost.

Platforms are the fakes beside the channels, each in its own process. The fakes and the model share the
load's core, so what is measured with a hundred chats at once has their work in it, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles

import procfs
from figures import MIB, Bench, Row, bursts, middle, row
from life_figures import SETTLED_SECONDS, WITH_SQLALCHEMY
from processes import HERE, TREE, Answered, Platform, Process

PLATFORMS = ("telegram", "discord", "slack")
UNLIMITED = 1000
"""Times the platform's published limits: none of ours are felt."""

_MB = 1e6 / MIB
_BATCH, _CHATS = 400, 20


def channels_parallel(bench: Bench) -> Iterator[Row]:
    """100 chats at once on each platform, a model that takes 0.5 s for 40 tokens, and no limits."""
    relay = bench.lab.relay()
    floor = bursts(bench, {"relay": relay}, clients=100, mode="p40", messages=1)["relay"]
    bench.lab.stop(relay)
    floors = middle(floor, lambda r: median(r.final)), middle(floor, lambda r: max(r.final))
    for kind in PLATFORMS:
        platform = bench.lab.platform(kind)
        gateway = bench.lab.gateway(platforms=[platform], pace=UNLIMITED)
        platform.ask(town="warm")
        seen = [platform.ask(town=f"round{number}-") for number in range(bench.rounds)]
        bench.lab.stop(gateway, platform.process)
        label, note = f"100 chats at once, {kind}", _began(seen)
        half, longest = median(median(one.took) for one in seen), median(max(one.took) for one in seen)
        yield Row(f"{label}: p50", "s", half, floors[0], 0.7, absolute=True, note=note)
        yield Row(f"{label}: longest", "s", longest, floors[1], 1.5, absolute=True)


def _began(seen: list[Answered]) -> str:
    return f"the model began after {median(median(one.asked) for one in seen):.3f} s"


def telegram(bench: Bench) -> Iterator[Row]:
    """Turns of 32 tokens on Telegram, and how late tokens of answers of 2 s are shown there."""
    names = ("relay", *bench.trees)
    platforms = {name: bench.lab.platform("telegram") for name in names}
    bots = {
        name: bench.lab.telegram_relay(platform)
        if name == "relay"
        else bench.lab.gateway(tree=bench.trees[name], platforms=[platform], pace=UNLIMITED)
        for name, platform in platforms.items()
    }
    costs: dict[str, list[float]] = {name: [] for name in names}
    calls: dict[str, list[float]] = {name: [] for name in names}
    late: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, bench.rounds):
        for name, platform in platforms.items():
            before = procfs.cpu_seconds(bots[name].pid)
            seen = platform.ask(mode="s32", chats=100, messages=5)
            spent = procfs.cpu_seconds(bots[name].pid) - before
            if number >= 0:
                costs[name].append(spent / len(seen.took) * 1e6)
                calls[name].append(seen.calls / len(seen.took))
                slow = platform.ask(mode="q99", chats=_CHATS, town=f"slow{number}-")
                late[name].append(quantiles(slow.late, n=100)[98] * 1e3)
    bench.lab.stop(*bots.values(), *(platform.process for platform in platforms.values()))
    note = f"{median(calls['ours']):.2f} calls for a turn, floor's {median(calls['relay']):.2f}"
    yield row("telegram, 32 tokens: processor for a turn", "µs", costs, 1.6, note=note)
    yield row("telegram: a token's latency, p99", "ms", late, note="shown once a second")


def channels_limits(bench: Bench) -> Iterator[Row]:
    """Answers a second where the platform limits them; the floor is what it allows."""
    crowd = 150 if bench.quick else 300
    yield _flow(bench, "telegram", "30 a second in all chats", 30, chats=crowd)
    yield _flow(bench, "discord", "50 a second in all chats", 50, chats=crowd)
    yield _turns(bench, "discord", "5 in 5 s in each chat", chats=8, messages=12, seconds=10.0)
    yield _turns(bench, "slack", "1 a second in each chat", chats=5, messages=12, seconds=9.0)
    if not bench.quick:
        yield _turns(bench, "slack", "300 a minute in all chats", chats=330, messages=1, seconds=60.0)


def _flow(bench: Bench, kind: str, limit: str, allowed: float, *, chats: int) -> Row:
    """Many chats at once: the rate at which they are answered after the first burst."""
    seen = _limited(bench, kind, chats=chats)
    begun = chats // 3
    rate = (chats - 1 - begun) / (seen.there[-1] - seen.there[begun])
    return _limit_row(kind, limit, rate, allowed, seen)


def _turns(bench: Bench, kind: str, limit: str, *, chats: int, messages: int, seconds: float) -> Row:
    """Chats that go on when they are answered, for so many ``seconds`` if nothing but limits is felt."""
    seen = _limited(bench, kind, chats=chats, messages=messages)
    answers = chats * messages
    return _limit_row(kind, limit, answers / seen.there[-1], answers / seconds, seen)


def _limited(bench: Bench, kind: str, **asked: int) -> Answered:
    platform = bench.lab.platform(kind, limits=True)
    gateway = bench.lab.gateway(platforms=[platform])
    platform.ask(town="warm", chats=3, mode="s02")
    seen = platform.ask(mode="s02", **asked)
    bench.lab.stop(gateway, platform.process)
    return seen


def _limit_row(kind: str, limit: str, rate: float, allowed: float, seen: Answered) -> Row:
    note = f"{seen.refused} calls refused"
    return Row(f"answers on {kind}, {limit}", "1/s", rate, allowed, 0.95, at_least=True, note=note)


def channels_parse_render(bench: Bench) -> Iterator[Row]:
    """Reading the slowest of the recorded payloads, and rendering 4,000 characters."""
    run = subprocess.run(
        [sys.executable, str(HERE / "craft.py")],
        cwd=TREE,
        env=bench.lab.environment(),
        check=True,
        capture_output=True,
    )
    for kind, cost in json.loads(run.stdout).items():
        label = f"{kind}: the payload {cost['payload']} read (floor: JSON)"
        yield Row(label, "µs", cost["parse"], cost["decode"], 50, absolute=True)
        for text in ("prose", "markup"):
            label = f"{kind}: 4,000 characters of {text} rendered (floor: parsed)"
            yield Row(label, "µs", cost[text], cost[f"{text}_parsed"], 1000, absolute=True)


def channels_holds(bench: Bench) -> Iterator[Row]:
    """How long rendering big and hostile answers holds up the event loop: the longest step."""
    run = subprocess.run(
        [sys.executable, str(HERE / "holds.py")],
        cwd=TREE,
        env=bench.lab.environment(),
        check=True,
        capture_output=True,
    )
    holds = json.loads(run.stdout)
    floor = holds.pop("floor")
    for name, one in holds.items():
        label = f"{name}: the event loop held by rendering (floor: 4,000 characters parsed)"
        yield Row(label, "ms", one["longest"], floor, 50, absolute=True, note=one["input"])


def rooms(bench: Bench) -> Iterator[Row]:
    """The cost of a message in a room with its context, and the memory of an idle room."""
    run = subprocess.run(
        [sys.executable, str(HERE / "rooms.py")],
        cwd=TREE,
        env=bench.lab.environment(),
        check=True,
        capture_output=True,
    )
    seen = json.loads(run.stdout.splitlines()[-1])
    private = seen["private"]
    for name, label in (("group", "without context"), ("context", "with 20 messages of context")):
        figure = f"CPU of a turn in a room {label}, beyond that in a private chat (floor)"
        yield Row(figure, "µs", seen[name] - private, private, 300, absolute=True)
    yield Row(
        "memory of an idle room with 20 messages", "KiB", seen["room_bytes"] / 1024, None, 8, absolute=True
    )


def channels_idle(bench: Bench) -> Iterator[Row]:
    """All four channels connected: how soon, with how much memory, and what many messages leave behind.

    Measured in an environment without what tests need: libraries use what they find there.
    """
    count = 1_200 if bench.quick else 10_000
    starts: dict[str, list[float]] = {name: [] for name in bench.trees}
    memory: dict[str, list[float]] = {name: [] for name in bench.trees}
    for tree in bench.trees.values():
        bench.lab.compile(bench.plain, tree)
    for _ in range(bench.rounds):
        for name, tree in bench.trees.items():
            platforms, gateway = _all_four(bench, tree)
            starts[name].append(gateway.start_seconds)
            time.sleep(SETTLED_SECONDS)
            memory[name].append(_resident(gateway))
            bench.lab.stop(gateway, *(platform.process for platform in platforms))
    yield row("all four channels: start to connected", "s", starts, 2.0, absolute=True)
    note = WITH_SQLALCHEMY.format(88)
    yield row("all four channels: idle memory", "MiB", memory, 95, absolute=True, note=note)
    platforms, gateway = _all_four(bench, TREE)
    _talk(platforms, 3 * _BATCH)
    before = _resident(gateway)
    _talk(platforms, count)
    grown = _resident(gateway) - before
    bench.lab.stop(gateway, *(platform.process for platform in platforms))
    label = f"all four channels: memory after {count:,} messages, more than before"
    yield Row(label, "MiB", grown, None, 10 * _MB, absolute=True, note=f"before: {before:.0f} MiB")


def _all_four(bench: Bench, tree: Path) -> tuple[list[Platform], Process]:
    platforms = [bench.lab.platform(kind) for kind in PLATFORMS]
    # What conversations hold is not growth: short histories are full when it begins to count.
    gateway = bench.lab.gateway(
        platforms=platforms, python=bench.plain, tree=tree, history=1_000, pace=UNLIMITED
    )
    return platforms, gateway


def _talk(platforms: list[Platform], count: int) -> None:
    """So many messages, spread over the platforms, in the same chats all the time."""
    for _ in range(count // _BATCH // len(platforms)):
        for platform in platforms:
            platform.ask(town="idle", mode="s02", chats=_CHATS, messages=_BATCH // _CHATS, every=0.02)


def _resident(process: Process) -> float:
    return procfs.rss_bytes(process.pid) / MIB


CHANNEL_FIGURES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "telegram": telegram,
    "channels_parallel": channels_parallel,
    "channels_limits": channels_limits,
    "channels_parse_render": channels_parse_render,
    "channels_holds": channels_holds,
    "channels_idle": channels_idle,
    "rooms": rooms,
}
