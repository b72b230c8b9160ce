"""Websocket clients in one process, which do what a plan says.

The plan is JSON on the command line. Each line that comes in on standard input starts one measurement; its
result goes out as one line of JSON. What a message asks of the model is the mode of ``model.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass, field

import procfs
import uvloop
from wire import Client

ENDS = (b'{"type":"complete"', b"[DONE]")
"""How the last frame of an answer begins: ours, and the relays'."""
REFUSALS = (b'{"type":"error"', b'{"type":"part"')
"""How a frame begins that says that something failed: nothing that fails may count as fast."""
_STAMP = re.compile(rb"@([0-9]+\.[0-9]{6});")
_DRAIN_SECONDS = 10.0
_PING_SECONDS = 0.001
_US = os.getpid()
"""Names of sessions and messages begin with it: another load of the same server must not repeat them."""


@dataclass
class Plan:
    """What to do. ``mode`` is what is asked of the model, or ``ack`` for messages that are only taken."""

    kind: str
    port: int
    pid: int
    mode: str = "s32"
    clients: int = 1
    sessions: int = 1
    """Sessions of each client, in rotation."""
    seconds: float = 2.0
    warm: float = 0.5
    spread: float = 0.0
    """Seconds in which the clients begin, one after the other."""
    fill: int = 0
    """Turns of each client before its first measurement."""
    messages: int = 0
    """Messages of each client, where they are counted."""
    fresh: bool = True
    """Whether every measurement uses new sessions."""
    also: int = 0
    """Another process of the server, whose processor time counts as well."""

    def cpu_seconds(self) -> float:
        """Seconds of processor that the server has used."""
        return sum(procfs.cpu_seconds(pid) for pid in (self.pid, self.also) if pid)


@dataclass
class Result:
    """What one measurement saw. Seconds throughout; ``cpu`` is the server's."""

    seconds: float = 0.0
    cpu: float = 0.0
    turns: int = 0
    frames: int = 0
    tokens: int = 0
    """Tokens that said when they were sent."""
    rss: int = 0
    from_send: list[float] = field(default_factory=list)
    """From sending a message to the first token of its answer."""
    from_model: list[float] = field(default_factory=list)
    """From the model's sending the first token to its arrival."""
    final: list[float] = field(default_factory=list)
    """From sending a message to the end of its answer."""
    late: list[float] = field(default_factory=list)
    """From the model's sending a token to its arrival, where each token says when it was sent."""
    ended: list[float] = field(default_factory=list)
    """From the model's sending the last token to the end of the answer, where the token says it."""
    stalls: list[float] = field(default_factory=list)
    """The longest time that a ping took before the first message, and since."""


class Person(Client):
    """A user who sends messages in sessions, in rotation, and sees the answers."""

    def __init__(self, plan: Plan, number: int) -> None:
        super().__init__(plan.port)
        self.turns = 0
        self.tokens = 0
        self.going = False
        self.samples = Result()
        self._number = number
        self._plan = plan
        self._sent = 0
        self._round = 0
        self._sent_at = 0.0
        self._waits_for_token = False
        self._last_token = 0.0
        self._done = asyncio.Event()

    def begin(self) -> None:
        """Use other sessions from now on."""
        self._round += self._plan.fresh
        self.samples = Result()

    async def ask(self) -> None:
        """Send a message and wait for the end of its answer."""
        self._done.clear()
        self.say()
        await self._done.wait()

    def say(self) -> None:
        """Send the next message."""
        self._sent += 1
        self._waits_for_token = self._plan.mode.startswith(("p", "q"))
        self._last_token = 0.0
        self._sent_at = time.monotonic()
        name = f"{_US}-{self._number}-{self._sent % self._plan.sessions}-{self._round}"
        asks = self._plan.mode if self._plan.kind == "accept" else f"#!{self._plan.mode} hello"
        self.send(
            b'{"type":"message","client_msg_id":"%d-%d-%d","session":"%b","text":"%b %d"}'
            % (_US, self._number, self._sent, name.encode(), asks.encode(), self._sent)
        )

    def text(self, payload: bytes) -> None:
        """Look for tokens that say when they were sent, and for the end."""
        if self._waits_for_token and (stamps := _STAMP.findall(payload)):
            self._tokens_came([float(stamp) for stamp in stamps])
        elif payload.startswith(ENDS):
            now = time.monotonic()
            self.turns += 1
            self.samples.final.append(now - self._sent_at)
            if self._waits_for_token:
                self.samples.ended.append(now - self._last_token)
            if self.going:
                self.say()
            else:
                self._done.set()
        elif payload.startswith(REFUSALS):
            raise ValueError(payload.decode())

    def _tokens_came(self, sent: list[float]) -> None:
        now = time.monotonic()
        if not self._last_token:
            self.samples.from_send.append(now - self._sent_at)
            self.samples.from_model.append(now - sent[0])
        self._last_token = sent[-1]
        self._waits_for_token = self._plan.mode.startswith("q")
        if self._waits_for_token:
            self.tokens += len(sent)
            self.samples.late += [now - each for each in sent]

    async def rest(self) -> None:
        """Let the running answer end."""
        self._done.clear()
        self.going = False
        await self._done.wait()


class Talk:
    """Everybody sends the next message as soon as the last is answered."""

    def __init__(self, plan: Plan, people: list[Person]) -> None:
        self._plan = plan
        self._people = people
        self._filled = plan.fill == 0

    async def measure(self) -> Result:
        """So many seconds of it, after a warm-up."""
        for person in self._people:
            person.begin()
        if not self._filled:
            self._filled = True
            await asyncio.gather(*map(self._fill, self._people))
        for person in self._people:
            person.going = True
            person.say()
            if self._plan.spread:
                await asyncio.sleep(self._plan.spread / len(self._people))
        await asyncio.sleep(self._plan.warm)
        before = self._state()
        await asyncio.sleep(self._plan.seconds)
        after = self._state()
        async with asyncio.timeout(_DRAIN_SECONDS):
            await asyncio.gather(*(person.rest() for person in self._people))
        result = Result(*(b - a for a, b in zip(before, after, strict=True)))
        result.late = [late for person in self._people for late in person.samples.late]
        return result

    async def _fill(self, person: Person) -> None:
        for _ in range(self._plan.fill):
            await person.ask()

    def _state(self) -> tuple[float, float, int, int, int]:
        turns = sum(person.turns for person in self._people)
        frames = sum(person.frames for person in self._people)
        tokens = sum(person.tokens for person in self._people)
        return time.monotonic(), self._plan.cpu_seconds(), turns, frames, tokens


class Burst:
    """Everybody sends a message at the same instant, and the next as soon as it is answered."""

    def __init__(self, plan: Plan, people: list[Person]) -> None:
        self._plan = plan
        self._people = people

    async def measure(self) -> Result:
        """So many messages of each."""
        for person in self._people:
            person.begin()
        start, cpu = time.monotonic(), self._plan.cpu_seconds()
        await asyncio.gather(*map(self._talk, self._people))
        result = Result(time.monotonic() - start, self._plan.cpu_seconds() - cpu)
        result.rss = procfs.rss_bytes(self._plan.pid)
        for person in self._people:
            result.from_send += person.samples.from_send
            result.from_model += person.samples.from_model
            result.final += person.samples.final
            result.ended += person.samples.ended
        result.turns = len(result.final)
        return result

    async def _talk(self, person: Person) -> None:
        for _ in range(self._plan.messages):
            await person.ask()


class Sender(Person):
    """A user who sends the next message as soon as the last is taken."""

    def text(self, payload: bytes) -> None:
        """Count acknowledgements."""
        if payload.startswith(b'{"type":"ack"'):
            self.turns += 1
            if self.turns < self._plan.messages:
                self.say()
            else:
                self._done.set()
        elif payload.startswith(REFUSALS):
            raise ValueError(payload.decode())


class Accept:
    """All users send messages and wait for no answer. It can be measured once."""

    def __init__(self, plan: Plan, people: list[Person]) -> None:
        self._pid = plan.pid
        self._people = people

    async def measure(self) -> Result:
        """From the first message to the last acknowledgement."""
        start, cpu = time.monotonic(), procfs.cpu_seconds(self._pid)
        await asyncio.gather(*(person.ask() for person in self._people))
        turns = sum(person.turns for person in self._people)
        return Result(time.monotonic() - start, procfs.cpu_seconds(self._pid) - cpu, turns)


class Idle:
    """Everybody is connected and silent."""

    def __init__(self, plan: Plan, people: list[Person]) -> None:
        self._pid = plan.pid
        self._people = people

    async def measure(self) -> Result:
        """What the server holds for them."""
        await asyncio.sleep(1.0)
        return Result(rss=procfs.rss_bytes(self._pid), turns=len(self._people))


class Pinger(Client):
    """A connection that sends a ping every millisecond, whether the last is answered or not."""

    longest = 0.0
    missing = 0
    """Pings that are not answered."""

    async def run(self) -> None:
        """Send pings until cancelled."""
        while True:
            self.ping(b"%.6f" % time.monotonic())
            self.missing += 1
            await asyncio.sleep(_PING_SECONDS)

    def pong(self, payload: bytes) -> None:
        """Note how long a ping took."""
        self.missing -= 1
        self.longest = max(self.longest, time.monotonic() - float(payload))


class Stall:
    """Pings before the first message of a server, during its turn and afterwards. It can be measured once."""

    def __init__(self, plan: Plan, people: list[Person]) -> None:
        self._plan = plan
        self._people = people

    async def measure(self) -> Result:
        """What the first message does to others, and to the server's memory."""
        pinger = Pinger(self._plan.port)
        await pinger.connect()
        pings = asyncio.create_task(pinger.run())
        await asyncio.sleep(self._plan.seconds)
        before, rss = pinger.longest, procfs.rss_bytes(self._plan.pid)
        pinger.longest = 0.0
        for person in self._people:
            await person.ask()
        await asyncio.sleep(self._plan.seconds)
        pings.cancel()
        await asyncio.sleep(self._plan.warm)
        if pinger.missing:
            raise ConnectionError(f"{pinger.missing} pings were not answered")
        grown = procfs.rss_bytes(self._plan.pid) - rss
        return Result(rss=grown, turns=len(self._people), stalls=[before, pinger.longest])


KINDS = {"talk": Talk, "burst": Burst, "accept": Accept, "idle": Idle, "stall": Stall}


async def main(plan: Plan) -> None:
    """Connect everybody, then measure once for every line of standard input."""
    person = Sender if plan.kind == "accept" else Person
    people = [person(plan, number) for number in range(plan.clients)]
    for start in range(0, len(people), 100):
        await asyncio.gather(*(p.connect() for p in people[start : start + 100]))
    measured = KINDS[plan.kind](plan, people)
    print("ready: connected", flush=True)
    while await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        print(json.dumps(asdict(await measured.measure())), flush=True)


if __name__ == "__main__":
    uvloop.run(main(Plan(**json.loads(sys.argv[1]))))
