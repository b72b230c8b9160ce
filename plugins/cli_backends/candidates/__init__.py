"""Contract trials of the coding programs: each backend with a fake program, and with the installed one.

In: the environment, which says where programs are. Out: candidates for ``trunkline providers test --fake``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.testing.contracts.trial import Candidate, OnCheck, Trial, reason_of, run_checks
from plugins.cli_backends import CLIS
from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.backend import SpawnedBackend
from plugins.cli_backends.candidates.installed import check_installed_program
from plugins.cli_backends.candidates.scenes import CHECKS, play
from plugins.cli_backends.state import SessionFile

PROTOCOLS = {
    "claude-code": "stream-json",
    "codex": "app server",
    "gemini": "ACP",
    "opencode": "ACP",
}
"""The protocol of each program."""

PROGRAM = "program"
"""The column for the installed program; it exists only if the program is installed."""


def candidates(environ: Mapping[str, str]) -> Sequence[Candidate]:
    """Return all backends as candidates; ``environ`` says where programs are installed."""
    return [_candidate(cli, environ) for cli in CLIS]


def _candidate(cli: Cli, environ: Mapping[str, str]) -> Candidate:
    protocol = PROTOCOLS[cli.name]

    async def warm_up() -> float | Trial:
        found = await play(cli, "echo")
        if found.first_token_ms is None:
            problem = "no output" if found.failure is None else reason_of(found.failure)
            return Trial(name=cli.name, protocol=protocol, outcome="failed", problems=(problem,))
        return found.first_token_ms

    async def installed(cli: Cli) -> None:
        await check_installed_program(cli, environ)

    async def run(first_token: float, on_check: OnCheck) -> Trial:
        is_installed = await SpawnedBackend(cli, environ, SessionFile()).is_available()
        checks = {**CHECKS, **({PROGRAM: (installed,)} if is_installed else {})}
        columns, problems = await run_checks(cli, checks, on_check)
        return Trial(
            name=cli.name,
            protocol=protocol,
            outcome="failed" if problems else "ok" if is_installed else "not installed",
            columns=columns,
            first_token_ms=first_token,
            problems=problems,
            way_out=""
            if is_installed
            else f"tested with a fake program only; install: {cli.program.install}",
        )

    checks = sum(map(len, CHECKS.values()))
    return Candidate(name=cli.name, protocol=protocol, checks=checks, warm_up=warm_up, run=run)
