"""Contract trials of the coding programs: each backend with a fake program, and with the installed one.

In: the environment, which says where programs are. Out: candidates for ``trunkline providers test --fake``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.testing.contracts.trial import Candidate, Done, Trial, judged, reason_of
from plugins.cli_backends import CLIS
from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.backend import SpawnedBackend
from plugins.cli_backends.candidates.installed import the_program_itself_works
from plugins.cli_backends.candidates.scenes import CHECKS, played
from plugins.cli_backends.state import SessionFile

PROTOCOLS = {
    "claude-code": "stream-json",
    "codex": "app server",
    "gemini": "ACP",
    "opencode": "ACP",
}
"""What each speaks on its pipes."""

PROGRAM = "program"
"""The column that says whether the program itself works; it is only there where that is installed."""


def candidates(environ: Mapping[str, str]) -> Sequence[Candidate]:
    """All of them, to be tried; the environment says where the programs are."""
    return [_candidate(cli, environ) for cli in CLIS]


def _candidate(cli: Cli, environ: Mapping[str, str]) -> Candidate:
    protocol = PROTOCOLS[cli.name]

    async def warm_up() -> float | Trial:
        found = await played(cli, "echo")
        if found.first_token_ms is None:
            problem = "it said nothing" if found.failure is None else reason_of(found.failure)
            return Trial(name=cli.name, protocol=protocol, outcome="failed", problems=(problem,))
        return found.first_token_ms

    async def itself(cli: Cli) -> None:
        await the_program_itself_works(cli, environ)

    async def run(first_token: float, done: Done) -> Trial:
        there = await SpawnedBackend(cli, environ, SessionFile()).is_available()
        checks = {**CHECKS, **({PROGRAM: (itself,)} if there else {})}
        columns, problems = await judged(cli, checks, done)
        return Trial(
            name=cli.name,
            protocol=protocol,
            outcome="failed" if problems else "ok" if there else "not installed",
            columns=columns,
            first_token_ms=first_token,
            problems=problems,
            way_out="" if there else f"only a stand-in was tried; the program itself: {cli.install}",
        )

    checks = sum(map(len, CHECKS.values()))
    return Candidate(name=cli.name, protocol=protocol, checks=checks, warm_up=warm_up, run=run)
