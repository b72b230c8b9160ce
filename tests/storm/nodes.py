"""The nodes of a cluster and their faults: one is active, the others stand by, and all are restarted after
an exit, as by a service manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from failpoints import Aims, Failpoints
from forks import ForkServer
from killer import AT_START, free_port
from links import Links
from lives import BrokenStormError, Life, Parent
from plan import KEPT, PASSED_ON, UPGRADED, Plan
from servers import Postgres
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DatabaseError

from gateway.cluster import read_rotation, request_drain, resume, rotate_certificate
from gateway.contract.errors import InvalidStateError, NotFoundError
from tests.gateway.cluster.broker import Broker
from tests.gateway.cluster.newer import newer

T = TypeVar("T")

KILLED = "active node killed"
STANDBY_KILLED = "standby killed"
HANDED = "active node frozen and followed at once"
BROKER_KILLED = "RabbitMQ killed"
BROKER_CUT = "node cut from RabbitMQ"
PLATFORM_CUT = "active node cut from a platform"
LATE = "calls of a killed node arrived late"
WRONG_CLOCK = "node with a wrong clock took over"
AMID = "node frozen at a commit or a call"
"""The faults that more than their table in ``Nodes`` refers to."""

ONE_ADDRESS = ("line", "matrix", "telegram")
"""Platforms that get all calls at the address in the settings, so that a link can stand in between."""

PLANTED = {
    "early-ack": (KILLED, PASSED_ON),
    "hasty-reconcile": (LATE,),
    "hasty-takeover": (BROKER_KILLED, KEPT),
    "no-epoch-check": (BROKER_CUT,),
    "no-reload": (KILLED,),
    "no-row-lock": (HANDED,),
    "renewed-takeover": (STANDBY_KILLED,),
}
"""The planted bugs of nodes, and the faults that each needs to become visible."""

_TO_SHOW = {KILLED: PASSED_ON, BROKER_KILLED: KEPT}
"""Faults that are repeated until an expected effect was seen."""

_EXITS = (70, 75)
"""Exit statuses after which a service manager starts a node again: the store failed, or it was taken over."""
_EXPLAINED = 10.0
"""Seconds after a fault of a node, or of a server, in which the node may exit with one of them."""
_RESTART = (0.05, 0.5)
"""Seconds after which it has exited."""
_WORKS = 40.0
"""Seconds in which some node has to become active, whatever happened before."""
_ANSWERS, _TAKES_OVER = 3.0, 5.0
"""Minimum seconds to wait for a failpoint of the active node, and for one of its successor."""
_DRAINS = 2
"""Seconds in which running answers may end when a node is told to stop."""
_STOPS = 30.0
"""Seconds in which a stopped node ends."""
_HANDS_OVER = 8.0
"""Seconds in which a drained node hands over, unless it is cut from RabbitMQ. Otherwise it is resumed."""
_RESUMES = (0.0, 3.0)
"""Seconds after which it may take over again."""
_ROTATES = 20.0
"""Seconds in which the nodes replace their certificate, unless they are killed or cut off all the time."""
_UPGRADES = (0.1, 0.3)
"""Share of the storm after which the upgrade begins."""
_OUTDATED = (0.0, 2.0)
"""Seconds for which the last node of the older version forwards clients to those of the newer one."""
_STABLE = 5.0
"""Seconds after the last fault and the last exit of a node until no exit can be caused by earlier faults."""
_YOUNG = 1.5
"""Seconds after its join in which a node that gets the token checks whether the owner is alive."""
_RECKONED = 10.0
"""Seconds after which RabbitMQ drops a frozen node."""
_LONGEST_HANDED, _FOLLOWED = 3.5, 1.0
"""Maximum seconds until a frozen node is replaced, and seconds for which it stays frozen after that.
PostgreSQL ends a transaction that is idle for 5 s."""
_LONGEST_CUT = 8.0
_PLATFORM_AWAY = (0.2, 5.0)
"""Seconds for which a platform is unreachable: fewer than the 10 s that a node waits for a response."""
_LATER = 0.2
"""Seconds until kinds of faults that happened often enough check again whether all others did."""
_LONGER_PAUSES = 5
"""Factor of the pauses between faults once all of them happened often enough."""
_KEEPS = 1.0
"""Seconds in which a node notices that another one took over."""
_LONGER_AWAY = (1.0, 2.0)
"""Seconds for which the active node lacks RabbitMQ longer than the others, so that they get its token."""
_CALLS = 3.0
"""Seconds in which an active node makes a call."""
_LATE = (2.0, 5.0)
"""Delay of late calls in seconds. A node expects at most 10 s."""
_CLOCK = (0.5, 1.5)
"""Seconds by which the clock of one node is wrong, chosen for each process. Beyond 2 s no node starts."""
_LOOKS = 0.02
_OPERATOR = "storm"


Act = Callable[[], Coroutine[None, None, bool]]
"""Injects one fault. Returns whether it was possible."""


class Node:
    """A node of the storm, its present process, and the port of its server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.has_wrong_clock = False
        self.port = free_port()
        self.life: Life | None = None
        self.is_newer = False
        """Whether its present process has the newer version."""
        self.told_to_stop = False
        self.harms = 0
        """Number of faults under way that may make it exit."""
        self.healed_at = -_EXPLAINED
        """Time of the event loop at which the last of them ended."""
        self.occupied = False
        """Whether a fault of it is under way that no other fault may disturb."""
        self.frozen = False

    @contextlib.contextmanager
    def reserved(self) -> Generator[None]:
        """Keep other faults away from it until the block ends, except those of servers and links."""
        self.occupied = True
        try:
            yield
        finally:
            self.occupied = False

    @property
    def may_exit(self) -> bool:
        """Return whether a fault explains that it exits by itself."""
        return self.harms > 0 or asyncio.get_running_loop().time() < self.healed_at + _EXPLAINED

    @property
    def is_ready(self) -> bool:
        """Return whether it is active, or was until another one took over."""
        return self.life is not None and self.life.is_ready

    @property
    def stands(self) -> bool:
        """Return whether it has joined the cluster."""
        return self.life is not None and self.life.joined.is_set() and not self.life.gone.is_set()


class Nodes:
    """Starts the nodes and injects faults. Its counts are for the report."""

    def __init__(
        self,
        plan: Plan,
        servers: tuple[Postgres, Broker],
        fork_server: ForkServer,
        directory: Path,
        failpoints: Failpoints,
        points: Sequence[str],
        dice: random.Random,
        answers: Callable[[], int],
    ) -> None:
        self._ends: Mapping[str, tuple[int, Act]] = {
            KILLED: (6, self._kill_active),
            STANDBY_KILLED: (2, self._kill_standby),
            "node stopped": (2, self._stop_node),
            "active node drained": (1, self._drain_active),
            LATE: (2, self._kill_amid_calls),
        }
        """Faults that end the active role of nodes, each with its relative frequency."""
        self._freezes: Mapping[str, tuple[int, Act]] = {
            "active node frozen": (1, self._freeze),
            HANDED: (2, lambda: self._freeze(handed=True)),
        }
        self._of_servers: Mapping[str, tuple[int, Act]] = {
            BROKER_KILLED: (1, self._restart_broker),
            "PostgreSQL killed": (1, lambda: self._restart(self._database, 1.5)),
            "node cut from PostgreSQL": (3, lambda: self._cut("database")),
            BROKER_CUT: (3, lambda: self._cut("broker")),
        }
        """Faults of servers and of the connections to them."""
        self._of_links: Mapping[str, tuple[int, Act]] = {"certificate replaced": (1, self._rotate)}
        """Faults of the connections between nodes."""
        self._of_platforms: Mapping[str, tuple[int, Act]] = {PLATFORM_CUT: (1, self._cut_platform)}
        self._groups = self._ends, self._freezes, self._of_servers, self._of_links, self._of_platforms
        self.kills = 0
        self.lives = 0
        harms = [kind for group in self._groups for kind in group]
        every = (*harms, WRONG_CLOCK, AMID, UPGRADED, PASSED_ON, KEPT)
        self.faults = Counter(dict.fromkeys(PLANTED.get(plan.planted or "", every), 0))
        self.answers_in_outages = 0
        """Number of answers that ended while RabbitMQ was down."""
        self.exits: Counter[int] = Counter()
        """Number of expected exits of nodes, by exit status."""
        self.unexpected: list[str] = []
        self._nodes = [Node(f"node-{number + 1}") for number in range(plan.nodes)]
        dice.choice(self._nodes).has_wrong_clock = True
        self._database, self._broker = servers
        self._log = directory / "faults"
        """The file with the beginning and the end of each fault."""
        self._tree = tempfile.TemporaryDirectory(prefix="trunkline-newer-")
        """The code of the newer version; not in the data directory, which is hidden from confined plugins."""
        self._parents = [Parent(directory, fork_server) for _ in range(1 + (UPGRADED in self.faults))]
        """The processes that nodes are forked from: of this version, and of the newer one for an upgrade."""
        self._parent = self._parents[0]
        self._links = Links()
        self._on_platforms = asyncio.Lock()
        """Held while one fault pauses or cuts links to platforms."""
        self._failpoints = failpoints
        self._plan = plan
        self._points = points
        self._aims = Aims(failpoints, points, dice)
        self._dice = dice
        self._answers = answers
        self._is_draining = True
        self._over: Callable[[], bool] = lambda: False
        self._ended_at = 0.0
        self._wanted = asyncio.Event()
        self._active: Node | None = None
        self._away = 0
        """Number of servers that are down."""
        self._away_since = self._were_away = 0.0
        """When the outage began, and the seconds of earlier outages."""
        self._token: tuple[int, object] | None = None
        """The epoch of the last takeover, and when a node had published a token before."""
        self._platforms: list[str] = []

    @property
    def outage_seconds(self) -> float:
        """Seconds for which a server was down so far: a slow machine takes long to start one."""
        return self._were_away + (time.monotonic() - self._away_since if self._away else 0.0)

    async def open(self, environment: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Open the links. Returns the port of the load balancer, and the settings of the nodes."""
        await self._links.start(environment)
        given: dict[str, Any] = {}
        for node in self._nodes:
            store = await self._links.open(f"{node.name}-database", self._database.port)
            broker = await self._links.open(f"{node.name}-broker", self._broker.port)
            url = self._broker.url.replace(str(self._broker.port), str(broker))
            given[node.name] = {
                "port": node.port,
                "store": self._database.url(store),
                "cluster": {"url": url, "name": node.name},
                "limits": {"drain_seconds": _DRAINS},
            }
        return await self._links.open("front", *(node.port for node in self._nodes)), {"nodes": given}

    async def reach(self, channels: Mapping[str, Any], urls: Mapping[str, str]) -> dict[str, Any]:
        """Return the channels' settings by node, each with its own links to the platforms at ``urls``."""
        found: dict[str, Any] = {}
        self._platforms = [*urls]
        if not urls:
            for fault in (LATE, PLATFORM_CUT):
                self.faults.pop(fault, None)
        for node in self._nodes:
            settings = json.dumps(channels)
            for name, url in urls.items():
                address = urlsplit(url).netloc
                port = await self._links.open(f"{node.name}-{name}", int(address.rpartition(":")[2]))
                settings = settings.replace(f"//{address}", f"//127.0.0.1:{port}")
            found[node.name] = json.loads(settings)
        return found

    async def warm_up(self, config: Path, environment: dict[str, str]) -> None:
        """Start the processes that nodes are forked from."""
        for parent in self._parents:
            version = None
            if parent is not self._parent:
                version = await asyncio.to_thread(newer, Path(self._tree.name))
            await parent.warm_up(config, environment, version)

    async def listen(self) -> None:
        """Read the reports of the parents, and restart nodes when they exit."""
        async with asyncio.TaskGroup() as tasks:
            for parent in self._parents:
                tasks.create_task(parent.listen())
            for node in self._nodes:
                tasks.create_task(self._keep(node))

    async def start(self) -> None:
        """Start all nodes, and return once one of them is active and the others stand by."""
        self._wanted.set()
        if not await self._until(lambda: all(node.stands for node in self._nodes), _WORKS):
            raise BrokenStormError(f"the nodes do not start: {self._parent.log_end}")
        await self._undisturbed()

    async def run_faults(self, over: Callable[[], bool], insist: Callable[[], bool]) -> None:
        """Inject faults into nodes, servers and connections until ``over``."""
        self._is_draining, self._over = False, over
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._inject(self._ends, (0.0, 0.1)))
            tasks.create_task(self._inject(self._freezes, (0.5, 3.0)))
            tasks.create_task(self._inject(self._of_servers, (0.2, 1.5)))
            tasks.create_task(self._inject(self._of_links, (1.0, 5.0)))
            tasks.create_task(self._inject(self._of_platforms, (0.5, 3.0)))
            if UPGRADED in self.faults:
                tasks.create_task(self._upgrade())

    async def _inject(self, acts: Mapping[str, tuple[int, Act]], pauses: tuple[float, float]) -> None:
        """Inject one fault after the other; the choice is random once each kind happened often enough."""
        kinds = {kind: often for kind, (often, _) in acts.items() if kind in self.faults}
        to_come: list[str] = []
        planned_end = time.monotonic() + self._plan.seconds
        for _ in range(max(1, self._plan.fewest_of_each)):
            to_come += self._dice.sample([*kinds], len(kinds))
        while kinds and not self._over():
            is_late = time.monotonic() > planned_end
            if is_late and not self._is_behind(kinds) and any(map(self._is_behind, self._groups)):
                # In a prolonged storm, the missing kinds of faults get time and an active node.
                await self._pause(_LATER)
                continue
            if to_come or (is_late and KILLED in kinds and self.kills < self._plan.fewest_kills):
                kind = to_come.pop() if to_come else KILLED
            else:
                [kind] = self._dice.choices([*kinds], [*kinds.values()])
            _, act = acts[kind]
            begun = time.monotonic()
            done = await act()
            self._note(kind, begun, done=done)
            if (not done and self._lacks(kind)) or self._lacks(_TO_SHOW.get(kind, "")):
                to_come.insert(0, kind)
            is_done = time.monotonic() > planned_end and not any(map(self._lacks, kinds))
            await self._pause(self._dice.uniform(*pauses) * (_LONGER_PAUSES if is_done else 1))

    def _count(self, kind: str, times: int) -> None:
        if kind in self.faults:
            self.faults[kind] += times

    def _note(self, kind: str, begun: float, *, done: bool) -> None:
        self._count(kind, done)
        with self._log.open("a") as log:
            log.write(f"{begun:.2f} {time.monotonic():.2f} {kind}{'' if done else ' (not possible)'}\n")

    def _lacks(self, kind: str) -> bool:
        """Return whether a counted kind of fault has to happen again."""
        return kind in self.faults and self.faults[kind] < self._plan.fewest(kind)

    def _is_behind(self, kinds: Collection[str]) -> bool:
        """Return whether a fault of some kinds, or its expected effect, has to happen again."""
        lacks_kills = KILLED in kinds and self.kills < self._plan.fewest_kills
        return lacks_kills or any(self._lacks(kind) or self._lacks(_TO_SHOW.get(kind, "")) for kind in kinds)

    async def stop_faults(self) -> None:
        """End the faults: start all nodes, and let them run."""
        self._failpoints.disarm()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await self.start()
        while loop.time() < max(begun, self._ended_at) + _STABLE or not all(
            node.stands for node in self._nodes
        ):
            await asyncio.sleep(_LOOKS)
        self._is_draining = True

    async def stop(self) -> int | None:
        """Stop all nodes with SIGTERM. Returns an exit status that is not 0, if there is one."""
        self._wanted.clear()
        lives = [node.life for node in self._nodes if node.life is not None]
        for node in self._nodes:
            node.told_to_stop = True
        for life in lives:
            life.send(signal.SIGTERM)
        for life in lives:
            await life.ends_within(30)
        for parent in self._parents:
            await parent.stop()
        await self._links.stop()
        self._tree.cleanup()
        return next((life.status for life in lives if life.status != 0), 0)

    async def _keep(self, node: Node) -> None:
        while True:
            await self._wanted.wait()
            node.told_to_stop = False
            ahead = self._dice.choice((-1, 1)) * self._dice.uniform(*_CLOCK) if node.has_wrong_clock else 0
            parent, node.life = self._parent, None
            life = node.life = await parent.fork(node.name, ahead)
            node.is_newer = parent is not self._parents[0]
            self.lives += 1
            while not life.gone.is_set():
                await self._follow(node, life)
            self._judge(node, life)
            await asyncio.sleep(self._dice.uniform(*_RESTART))

    async def _follow(self, node: Node, life: Life) -> None:
        """Wait until a node becomes active, and until its active role ends."""
        await life.begun.wait()
        if not life.gone.is_set():
            self._active = node
            self._count(WRONG_CLOCK, node.has_wrong_clock and not self._is_draining)
            await self._note_takeover()
        await life.over.wait()
        if self._active is node:  # a node that was replaced before it was ready reports late
            self._active = next((other for other in self._nodes if other.is_ready), node)

    def _balance(self) -> None:
        """Send new connections to any running node, as a load balancer does."""
        self._links.tell("aim", "front", *(node.port for node in self._nodes if not node.frozen))

    def _judge(self, node: Node, life: Life) -> None:
        self._ended_at = asyncio.get_running_loop().time()
        if life.status == -signal.SIGKILL:
            self.kills += 1
        elif life.status in _EXITS and not self._is_draining and (node.told_to_stop or node.may_exit):
            self.exits[life.status] += 1
        elif life.status != 0 or not node.told_to_stop:
            self.unexpected.append(f"{node.name}: exit {life.status}")

    @contextlib.contextmanager
    def _expecting_exits(self, *nodes: Node) -> Generator[None]:
        """Expect exits of these nodes (all if none is given) until some time after the block."""
        harmed = nodes or self._nodes
        for node in harmed:
            node.harms += 1
        try:
            yield
        finally:
            for node in harmed:
                node.harms -= 1
                node.healed_at = asyncio.get_running_loop().time()

    async def _undisturbed(self) -> tuple[Node, Life] | None:
        """Wait for an active node without a fault; None if the storm ends first."""

        def found() -> tuple[Node, Life] | None:
            node = self._active
            if node is None or node.life is None or node.occupied or not node.is_ready:
                return None
            return node, node.life

        loop = asyncio.get_running_loop()
        deadline = loop.time() + _WORKS
        while (free := found()) is None and not self._over():
            # The active node has another fault, or no node can be active before a server is back.
            if self._away or (self._active is not None and self._active.is_ready):
                deadline = loop.time() + _WORKS
            if loop.time() > deadline:
                raise BrokenStormError(f"no node works: {self._parent.log_end}")
            await asyncio.sleep(_LOOKS)
        return free

    async def _kill_active(self) -> bool:
        """Kill the active node at a failpoint, or some time after it became active; or the next one early."""
        if (found := await self._undisturbed()) is None:
            return False
        node, life = found
        with node.reserved():
            if self._dice.random() < 0.6:
                await self._kill_at_failpoint(life)
            else:
                seconds = self._dice.choice(((0.02, 0.3), (0.5, 1.4), (1.4, 3.0)))
                await life.ends_within(self._dice.uniform(*seconds))
                await life.kill()
        return True

    async def _kill_at_failpoint(self, life: Life) -> None:
        point = self._aims.next()
        self._failpoints.arm(point)
        if point in AT_START:
            await life.kill()  # kill the next one when it takes over
        patience = self._aims.patience(point, _TAKES_OVER if point in AT_START else _ANSWERS)
        if not await self._until(lambda: self._failpoints.armed() is None, patience):
            self._aims.miss(point)
            self._failpoints.disarm()
            await life.kill()

    async def _kill_amid_calls(self) -> bool:
        """Kill the active node while its calls are in transit to the platforms: they arrive later."""
        async with self._on_platforms:
            if (found := await self._undisturbed()) is None:
                return False
            node, life = found
            names = [f"{node.name}-{platform}" for platform in self._platforms]
            before = await self._held(names)
            deadline = time.monotonic() + _CALLS * (1 if self.faults[LATE] else 2)
            with node.reserved():
                for name in names:
                    self._links.tell("hold", name)
                while await self._held(names) == before and time.monotonic() < deadline and not self._over():
                    await asyncio.sleep(_LOOKS)
                # After a takeover, answers may wait for 13 s; another one would not shorten that.
                if is_held := await self._held(names) > before:
                    await self._pause(self._dice.uniform(0, 0.5))
                    await life.kill()
            await self._pause(self._dice.uniform(*_LATE) if is_held else 0)
            for name in names:
                self._links.tell("mend", name)
        return is_held

    async def _held(self, names: Sequence[str]) -> int:
        """Return the number of calls that these links have held back so far."""
        return sum([await self._links.held(name) for name in names])

    async def _kill_standby(self) -> bool:
        standbys = [
            node for node in self._nodes if node.stands and node is not self._active and not node.occupied
        ]
        if not standbys:
            await self._pause(0.2)
            return False
        life = self._dice.choice(standbys).life
        assert life is not None
        await self._pause(self._dice.uniform(0.02, 0.5))
        await life.kill()
        return True

    async def _freeze(self, *, handed: bool = False) -> bool:
        """Freeze the active node, at the instants around its commits and calls or at any other, and wake it.

        Another node takes over as soon as RabbitMQ drops it. That is at once if it is ``handed`` over,
        or when it has finished its commit; it wakes soon after.
        """
        if handed:
            await self._until(lambda: self._can_follow() or self._over(), _WORKS)
            if self._over():
                return False
        if (found := await self._undisturbed()) is None:
            return False
        node, life = found
        points = [p for p in self._points if p.startswith(("before", "placed")) and p not in AT_START]
        frozen_amid, followed = self._failpoints.stops(), False
        with node.reserved(), self._expecting_exits():  # the next owner may reach the failpoint
            if points and (handed or self._dice.random() < 0.8):
                self._failpoints.arm(self._dice.choice(points), signal.SIGSTOP)
                await self._until(lambda: self._failpoints.armed() is None, 1.5)
                self._failpoints.disarm()
            life.send(signal.SIGSTOP)
            frozen = node.frozen = not life.gone.is_set()
            self._balance()
            if handed:
                self._links.tell("cut", f"{node.name}-broker")
                # Also after the end: the last node to take over must not meet a late commit of this one.
                followed = await self._until(lambda: self._active is not node, _LONGEST_HANDED)
                await self._pause(self._dice.uniform(0, _FOLLOWED))
                self._links.tell("mend", f"{node.name}-broker")
            else:
                longest = min(20.0, max(12.0, self._plan.seconds / 3))
                lasts = self._dice.choice(((1.0, 4.0), (_RECKONED, longest)))
                await self._pause(self._dice.uniform(*lasts))
            for each in self._nodes:
                if each.life is not None:
                    each.life.send(signal.SIGCONT)
            node.frozen = False
            self._balance()
        self._count(AMID, self._failpoints.stops() - frozen_amid)
        return frozen and (followed or not handed)

    def _can_follow(self) -> bool:
        """Return whether some node has stood by long enough to take over without a check."""
        now = asyncio.get_running_loop().time()
        lives = [node.life for node in self._nodes if node.stands and node is not self._active]
        return any(life is not None and now - life.joined_at > _YOUNG for life in lives)

    async def _stop_node(self) -> bool:
        """Stop a node with SIGTERM."""
        nodes = [node for node in self._nodes if node.stands and not node.occupied]
        if not nodes:
            await self._pause(0.2)
            return False
        await self._stop(self._dice.choice(nodes))
        return True

    async def _stop(self, node: Node) -> None:
        """Stop a node, and wait for its end."""
        life = node.life
        assert life is not None
        node.told_to_stop = True
        with node.reserved():
            life.send(signal.SIGTERM)
            if not await life.ends_within(_STOPS):
                self.unexpected.append(f"{node.name}: does not stop")
                await life.kill()

    async def _drain_active(self) -> bool:
        """Drain the active node as an operator does, and resume it later."""
        if (found := await self._undisturbed()) is None:
            return False
        node, life = found
        with node.reserved():
            handed_over = await self._hand_over(node, life)
        await self._pause(self._dice.uniform(*_RESUMES) if handed_over else 0.2)
        while not life.gone.is_set():
            if await self._operate(lambda database: resume(database, node.name, _OPERATOR)):
                break
            await asyncio.sleep(_LOOKS)
        return handed_over

    async def _hand_over(self, node: Node, life: Life) -> bool:
        """Drain the active node. Return whether it stands by afterwards."""
        if await self._operate(lambda database: request_drain(database, node.name, _OPERATOR)):
            await self._until(lambda: not life.is_ready, _HANDS_OVER)
        return not life.is_ready and not life.gone.is_set()

    async def _upgrade(self) -> None:
        """Replace all nodes by those of a newer version, as an operator does: the active one last."""
        await self._pause(self._dice.uniform(*_UPGRADES) * self._plan.seconds)
        begun = time.monotonic()
        # New processes have the newer version from now on. An older node that joins at that moment would be
        # refused once a newer one is active.
        while any(node.life is None or not node.life.joined.is_set() for node in self._nodes):
            await asyncio.sleep(_LOOKS)
        self._parent = self._parents[-1]
        while (older := [node for node in self._nodes if not node.is_newer]) and not self._over():
            await asyncio.sleep(_LOOKS)
            standbys = [node for node in older if node is not self._active]
            node = self._dice.choice(standbys or older)
            if node.occupied or not node.stands or (life := node.life) is None:
                continue
            if standbys:
                await self._stop(node)
                await self._until(lambda node=node: node.is_newer and node.stands, _WORKS)
            elif await self._hand_over(node, life):
                await self._pause(self._dice.uniform(*_OUTDATED))
        self._note(UPGRADED, begun, done=not older)

    async def _note_takeover(self) -> None:
        """Count a takeover for which no node had to publish the token again."""

        def read(database: Connection) -> tuple[int, object]:
            epoch, published = database.execute(text("SELECT epoch, republished_at FROM ownership")).one()
            return epoch, published

        before, self._token = self._token, await self._operate(read)
        if before is not None and self._token is not None:
            self._count(PASSED_ON, before[0] < self._token[0] and before[1] == self._token[1])

    async def _operate(self, work: Callable[[Connection], T]) -> T | None:
        """Read or change rows of the cluster as the command line does. Return None if that was impossible."""

        def run() -> T:
            engine = create_engine(self._database.url(self._database.port))
            try:
                with engine.begin() as connection:
                    return work(connection)
            finally:
                engine.dispose()

        try:
            return await asyncio.to_thread(run)
        except (DatabaseError, InvalidStateError, NotFoundError):
            return None

    async def _rotate(self) -> bool:
        """Let the nodes replace their certificate. Return whether they completed it by themselves."""
        await self._operate(lambda database: rotate_certificate(database, _OPERATOR))
        deadline = asyncio.get_running_loop().time() + _ROTATES
        while not (done := await self._operate(lambda database: read_rotation(database).is_done)):
            if self._over() or asyncio.get_running_loop().time() > deadline:
                break
            await self._pause(1.0)
        return bool(done)

    async def _restart(self, server: Postgres | Broker, longest: float, last: Node | None = None) -> bool:
        """Kill a server, and start it again. The given node reaches it last."""
        link = "" if last is None else f"{last.name}-broker"
        with self._expecting_exits():
            if not self._away:
                self._away_since = time.monotonic()
            self._away += 1
            await asyncio.to_thread(server.kill)
            if link:
                self._links.tell("cut", link)
            await self._pause(self._dice.uniform(0, longest))
            await asyncio.to_thread(server.start)
            self._were_away, self._away = self.outage_seconds, self._away - 1
            self._away_since = time.monotonic()
            if link:
                await asyncio.sleep(self._dice.uniform(*_LONGER_AWAY))
                self._links.tell("mend", link)
        return True

    async def _restart_broker(self) -> bool:
        """Restart RabbitMQ. Every other time, nothing else happens to the active node.

        The others then get its token, and it stays active nevertheless.
        """
        quiet = await self._undisturbed() if 2 * self.faults[KEPT] <= self.faults[BROKER_KILLED] else None
        before = self._answers()
        if quiet is None:
            await self._restart(self._broker, 2.0)
        else:
            node, life = quiet
            with node.reserved():
                await self._restart(self._broker, 2.0, node)
                await asyncio.sleep(_KEEPS)
            self._count(KEPT, life.is_ready)
        self.answers_in_outages += self._answers() - before
        return True

    async def _cut(self, server: str) -> bool:
        """Cut a node off from a server for some time: packets are lost, or connections are refused."""
        node = self._active if self._active is not None and self._dice.random() < 0.7 else None
        node = node or self._dice.choice(self._nodes)
        name = f"{node.name}-{server}"
        with self._expecting_exits(node):
            self._links.tell(self._dice.choice(("hold", "cut")), name)
            await self._pause(
                self._dice.choice((self._dice.uniform(0.2, 2), self._dice.uniform(2, _LONGEST_CUT)))
            )
            self._links.tell("mend", name)
        return True

    async def _cut_platform(self) -> bool:
        """Cut the active node off from a platform for a while, at a call or between two. It stays active."""
        async with self._on_platforms:
            node = self._active
            if node is None or node.frozen or not node.is_ready:
                await self._pause(0.2)
                return False
            name = f"{node.name}-{self._dice.choice(self._platforms)}"
            before, how = await self._links.held(name), self._dice.choice(("hold", "cut"))
            self._links.tell(how, name)
            await self._pause(self._dice.uniform(*_PLATFORM_AWAY))
            held = await self._links.held(name) > before
            self._links.tell("mend", name)
        return how == "cut" or held

    async def _pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the faults end."""
        await self._until(self._over, seconds)

    async def _until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds. Returns whether it did in time."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not true():
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_LOOKS)
        return True
