"""The figures of the providers.

What a token costs through each adapter and through others' libraries, what the gateway adds between a client
and a model, what many providers cost, and how soon the next one is asked when one fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles

import procfs
from completions import Seen
from figures import MIB, Bench, Row
from processes import HERE, TREE, Process
from readers import PATHS

from gateway.testing.fake_models.vendors import DIALECTS

LITELLM = TREE / ".venv-bench-litellm"
_MB = 1e6 / MIB
_RUNS_SECONDS = 1.0
_KEYLESS = ("vertex", "copilot", "bedrock")


def adapters(bench: Bench) -> Iterator[Row]:
    """Processor for a token: each adapter against that of OpenAI, and that against others' libraries."""
    vendors = bench.lab.start("vendors.py")
    readers = {name: bench.lab.start("readers.py", name, vendors.address) for name in PATHS}
    readers["sdk:openai"] = bench.lab.start("readers.py", "sdk:openai", vendors.address)
    python = _litellm()
    if python is not None:
        readers["litellm"] = bench.lab.start("readers.py", "litellm", vendors.address, python=python)
    seen: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(bench.rounds):
        for name, reader in readers.items():
            seen[name].append(float(reader.ask()))
    cost = {name: median(each) for name, each in seen.items()}
    for name in PATHS:
        if name != "openai":
            yield Row(f"a token through {name} (floor: openai)", "µs", cost[name], cost["openai"], 1.3)
    ours = cost["openai"]
    yield Row("a token through openai (floor: its own library)", "µs", ours, cost["sdk:openai"], 0.25)
    label = "a token through openai (floor: litellm)"
    if python is None:
        yield Row(label, "µs", ours, note="not measured: litellm could not be installed")
    else:
        yield Row(label, "µs", ours, cost["litellm"], 1 / 6)
    bench.lab.stop(*readers.values(), vendors)


def _litellm() -> Path | None:
    """The Python of an environment with litellm, made at the first run; None if that cannot be."""
    python, mark = LITELLM / "bin" / "python", LITELLM / ".installed"
    if not mark.exists():
        wanted = str(HERE / "litellm.txt")
        made = subprocess.run([sys.executable, "-m", "venv", str(LITELLM)], capture_output=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-r", wanted]
        if made.returncode or subprocess.run(command, capture_output=True).returncode:
            return None
        (LITELLM / ".gitignore").write_text("*\n")
        mark.touch()
    return python


def completions(bench: Bench) -> Iterator[Row]:
    """What lies between a client of OpenAI and the model: a bare relay, or the gateway with all it does."""
    vendors = bench.lab.start("vendors.py")
    servers = {
        "relay": bench.lab.start("completions_relay.py", vendors.address, served=True),
        "ours": bench.lab.gateway(tables=_vendor(vendors)),
    }
    rivals = _rival(bench, vendors)
    alone = _asked(bench, servers, "vendor/bench-40-12", clients=1, requests=2)
    short = _asked(bench, servers, "vendor/bench-2-0", clients=1, requests=20)
    crowd = _asked(bench, servers, "vendor/bench-32-0", clients=50, requests=8)
    crowd |= _asked(bench, rivals, "vendor/bench-32-0", clients=10, requests=2)
    asked = 2 if bench.quick else 3
    many = _asked(bench, servers, "vendor/bench-100-20", clients=200, requests=asked, spread=2.0)
    whole = {name: median(median(s.took) for s in seen) for name, seen in alone.items()}
    first = {name: median(median(s.first) for s in seen) * 1e3 for name, seen in short.items()}
    cost = {name: median(s.cpu / s.requests for s in seen) * 1e6 for name, seen in crowd.items()}
    took = {name: median(median(s.took) for s in crowd[name]) * 1e3 for name in servers}
    late = {name: median(quantiles(s.late, n=100)[98] for s in seen) * 1e3 for name, seen in many.items()}
    token = {name: median(s.cpu / len(s.late) for s in seen) * 1e6 for name, seen in many.items()}
    busy = {name: median(s.cpu / s.seconds for s in seen) for name, seen in many.items()}
    yield Row("a completion, model of 0.5 s", "s", whole["ours"], whole["relay"], 1.5)
    yield Row(
        "a completion alone, its first token", "ms", first["ours"], first["relay"], note="a commit in it"
    )
    yield Row("a completion of 32 tokens, 50 at once", "ms", took["ours"], took["relay"])
    yield Row("a completion of 32 tokens, 50 at once", "µs", cost["ours"], cost["relay"], note="processor")
    label = "a completion of 32 tokens (floor: litellm's proxy)"
    note = "processor" if rivals else "not measured: litellm could not be installed"
    yield Row(label, "µs", cost["ours"], cost.get("litellm"), 0.2, note=note)
    yield Row("a token of 200 streams of 50 tokens/s", "µs", token["ours"], token["relay"], 1.5)
    note = f"{late['ours']:.1f} and {late['relay']:.1f}; core busy {busy['ours']:.0%} and {busy['relay']:.0%}"
    added = late["ours"] - late["relay"]
    yield Row("200 streams of 50 tokens/s: added, p99", "ms", added, goal=20, absolute=True, note=note)
    bench.lab.stop(*servers.values(), *rivals.values(), vendors)


def _rival(bench: Bench, vendors: Process) -> dict[str, Process]:
    """litellm's proxy, where it can be had."""
    python = _litellm()
    if python is None:
        return {}
    return {"litellm": bench.lab.start("litellm_proxy.py", vendors.address, python=python, served=True)}


def _asked(
    bench: Bench, servers: dict[str, Process], model: str, *, clients: int, requests: int, spread: float = 0.0
) -> dict[str, list[Seen]]:
    """Let clients ask the servers in turns, so many rounds after one that does not count."""
    plan = {"model": model, "clients": clients, "requests": requests, "spread": spread}
    loads = {
        name: bench.lab.start("completions.py", json.dumps({"port": server.port, "pid": server.pid, **plan}))
        for name, server in servers.items()
    }
    seen: dict[str, list[Seen]] = {name: [] for name in servers}
    for number in range(bench.rounds + 1):
        for name, load in loads.items():
            result = Seen(**json.loads(load.ask()))
            if number:
                seen[name].append(result)
    bench.lab.stop(*loads.values())
    return seen


def providers(bench: Bench) -> Iterator[Row]:
    """An idle gateway with one provider and with sixteen."""
    vendors = bench.lab.start("vendors.py")
    tables = {"relay": _vendor(vendors), "ours": _all(vendors)}
    seconds: dict[str, list[float]] = {name: [] for name in tables}
    memory: dict[str, list[float]] = {name: [] for name in tables}
    for _ in range(max(bench.rounds, 5)):
        for name, table in tables.items():
            gateway = bench.lab.gateway(tables=table)
            seconds[name].append(gateway.start_seconds)
            memory[name].append(procfs.rss_bytes(gateway.pid) / MIB)
            bench.lab.stop(gateway)
    bench.lab.stop(vendors)
    starts = {name: min(each) for name, each in seconds.items()}
    kept = {name: min(each) for name, each in memory.items()}
    more = (starts["ours"] - starts["relay"]) * 1e3
    yield Row(
        "start, 16 providers more than 1",
        "ms",
        more,
        goal=50,
        absolute=True,
        note=f"of {starts['ours']:.2f} s",
    )
    grown = kept["ours"] - kept["relay"]
    yield Row(
        "idle, 16 providers more than 1",
        "MiB",
        grown,
        goal=5 * _MB,
        absolute=True,
        note=f"of {kept['ours']:.0f}",
    )


def failover(bench: Bench) -> Iterator[Row]:
    """From the death of the first provider to the request that the second one gets.

    The gateway has run for a moment by then: it loads what its chain needs when it has started.
    """
    vendors = bench.lab.start("vendors.py")
    spare = f'[providers.spare]\nlike = "anthropic"\nbase_url = "{vendors.address}/anthropic"\n'
    table = f'{_vendor(vendors)}\n{spare}api_key = "k"\nmax_retries = 0\n'
    gateway = bench.lab.gateway(tables=table, top='fallback = ["spare/bench-2-0"]')
    time.sleep(_RUNS_SECONDS)
    took: list[float] = []
    for _ in range(10 if bench.quick else 30):
        took.append(float(_said(gateway, "vendor/bench-die-0").split("#")[1]) * 1e3)
        _said(gateway, "vendor/bench-2-0")  # or it would be left alone for a while
    bench.lab.stop(gateway, vendors)
    label = "from a failure to the next provider"
    yield Row(label, "ms", median(took), goal=50, absolute=True)
    yield Row(f"{label}: longest", "ms", max(took[1:]), goal=50, absolute=True)
    yield Row(f"{label}: first time", "ms", took[0], goal=50, absolute=True, note="of a process")


def _said(gateway: Process, model: str) -> str:
    """What a model answers through the gateway."""
    asked = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    request = urllib.request.Request(
        f"{gateway.address}/v1/chat/completions",
        json.dumps(asked).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def _vendor(vendors: Process) -> str:
    return f'[providers.vendor]\nbase_url = "{vendors.address}/v1"\nmax_retries = 0\n'


def _all(vendors: Process) -> str:
    """A table for each."""
    tables = [_vendor(vendors)]
    for name, dialect in DIALECTS.items():
        more = "" if name in _KEYLESS else 'api_key = "k"\n'
        place = f'base_url = "{vendors.address}{dialect.path}"'
        tables.append(f"[providers.{name}]\n{place}\n{more}")
    return "\n".join(tables)


PROVIDER_FIGURES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "adapters": adapters,
    "completions": completions,
    "providers": providers,
    "failover": failover,
}
"""By the names that ``--only`` takes."""
