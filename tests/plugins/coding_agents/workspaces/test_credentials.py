"""Credentials: what the git of an agent gets over the socket of its keeper, and where they never are."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from plugins.coding_agents.errors import CredentialDeniedError, WorkspaceNotFoundError
from plugins.coding_agents.workspaces import HELPER, WorkspaceRecord, Workspaces, helper_environment
from plugins.coding_agents.workspaces.credentials import Question
from tests.plugins.coding_agents.workspaces.forge import ENV, READ_TOKEN, TOKEN, Desk

pytestmark = pytest.mark.slow


@asynccontextmanager
async def keeper(
    workspaces: Workspaces, record: WorkspaceRecord, folder: Path
) -> AsyncIterator[dict[str, str]]:
    """A socket as that of a keeper, which carries questions to the gateway; yields the agent's variables."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def write(data: bytes) -> None:
            writer.write(data)

        await workspaces.credentials.serve(record, workspaces.source(record), reader.read, write)
        writer.close()

    async with await asyncio.start_unix_server(carry, folder / "s"):
        yield {**ENV, **helper_environment(str(folder / "s"))}


async def git(tree: Path, env: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Run git as an agent does."""
    run = await asyncio.to_thread(
        subprocess.run, ["git", *arguments], cwd=tree, env=env, capture_output=True, text=True, timeout=60
    )
    return run.returncode, run.stderr


async def test_004_T24_an_agent_reads_with_a_grant_until_it_ends(desk: Desk, tmp_path: Path) -> None:
    desk.has_read_token = True
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, branch="work")
    tree, source = workspaces.places.tree(record.id), workspaces.source(record)
    async with keeper(workspaces, record, tmp_path) as env:
        code, told = await git(tree, env, "fetch", "origin")
        assert code != 0
        assert "trunkline: this workspace has no grant" in told
        grant = await workspaces.credentials.grant(record, source, "read", 999_999)
        assert (grant.host, grant.path, grant.rights) == (desk.hub.host, "acme/app", "read")
        assert grant.expires_at - desk.now == 3_600_000, "no longer than an hour"
        assert await git(tree, env, "fetch", "origin") == (0, "")
        code, told = await git(tree, env, "push", "origin", "HEAD:refs/heads/stolen")
        assert code != 0, "what it got may only read"
        desk.now += 3_600_000
        code, told = await git(tree, env, "fetch", "origin")
        assert code != 0
        await workspaces.credentials.grant(record, source, "read", 60)
        desk.now += 60_000
        code, told = await git(tree, env, "fetch", "origin")
        assert "trunkline: the grant has ended" in told
        desk.now -= 86_400_000
        code, told = await git(tree, env, "fetch", "origin")
        assert "trunkline: the grant has ended" in told, "the clock was set back"
    assert [entry[:3] for entry in desk.audited] == [
        ("ada", "credential.grant", record.id),
        ("ada", "credential.grant", record.id),
    ]
    assert desk.audited[0][3] == f"read {desk.hub.host}/acme/app for 3600 s"
    assert desk.names[-2:] == ["credential:granted", "credential:granted"]
    passwords = {password for _, password in desk.hub.asked}
    assert passwords == {"", TOKEN, READ_TOKEN}
    found = await asyncio.to_thread(
        subprocess.run, ["grep", "-ral", "token-", desk.base, tree], capture_output=True, text=True
    )
    assert found.stdout == "", "no credentials in any file"
    assert not any("token-" in value for value in env.values())


async def test_an_agent_gets_a_grant_by_asking_that_ends_with_its_workspace(desk: Desk) -> None:
    desk.has_read_token = True
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url)
    question = f"protocol=http\nhost={desk.hub.host}\npath=acme/app.git\n\n".encode()

    async def ask() -> str:
        told: list[bytes] = []

        async def read(most: int) -> bytes:
            return b"credential\n" + question

        async def write(data: bytes) -> None:
            told.append(data)

        await workspaces.serve_git(record.id, "ada", read, write)
        return b"".join(told).decode()

    expected = f"username=x-access-token\npassword={READ_TOKEN}\n"
    assert await ask() == await ask() == expected
    assert len(desk.audited) == 1
    desk.now += 3_600_000
    assert await ask() == expected
    assert len(desk.audited) == 2, "each grant is in the audit log"
    with pytest.raises(WorkspaceNotFoundError):
        await workspaces.serve_git(
            record.id, "eve", lambda _: asyncio.sleep(0, b""), lambda _: asyncio.sleep(0)
        )
    await workspaces.remove(record.id, "ada")
    assert desk.names.count("credential:revoked") == 1, "the first grant had ended"


async def test_only_agents_that_may_push_get_the_token_that_can(desk: Desk, tmp_path: Path) -> None:
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, branch="work")
    source = workspaces.source(record)
    with pytest.raises(CredentialDeniedError, match="agent_may_push"):
        await workspaces.credentials.grant(record, source, "write")
    await workspaces.credentials.grant(record, source, "read")
    question = Question("http", desk.hub.host, "acme/app.git")
    with pytest.raises(CredentialDeniedError, match="no read_token"):
        await workspaces.credentials.find(record, source, question)
    pushing = Desk(desk.base, desk.hub, desk.tables._store, workspaces={"agent_may_push": True})
    workspaces = await pushing.open()
    await workspaces.credentials.grant(record, source, "write")
    async with keeper(workspaces, record, tmp_path) as env:
        assert (await git(workspaces.places.tree(record.id), env, "push", "origin", "HEAD"))[0] == 0
    assert desk.hub.log("work") == ["First"]


@pytest.mark.parametrize(
    "question",
    [
        Question("http", "evil.example", "acme/app.git"),
        Question("http", "127.0.0.1", "acme/app.git"),
        Question("http", "HOST", "acme/other.git"),
        Question("http", "HOST", "acme/app/../other"),
        Question("https", "HOST", "acme/app.git"),
        Question("ssh", "HOST", "acme/app.git"),
        Question("", "", ""),
    ],
)
async def test_a_grant_is_for_one_repository(desk: Desk, question: Question) -> None:
    desk.has_read_token = True
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url)
    source = workspaces.source(record)
    await workspaces.credentials.grant(record, source, "read")
    asked = Question(question.protocol, question.host.replace("HOST", desk.hub.host), question.path)
    with pytest.raises(CredentialDeniedError):
        await workspaces.credentials.find(record, source, asked)
    other = await workspaces.provision("ada", desk.url)
    with pytest.raises(CredentialDeniedError, match="no grant"):
        await workspaces.credentials.find(other, source, Question("http", desk.hub.host, "acme/app.git"))


def test_the_helper_names_why_there_are_no_credentials(tmp_path: Path) -> None:
    def ask(action: str = "get") -> tuple[str, str]:
        argv = [sys.executable, "-I", "-S", "-B", str(HELPER), str(tmp_path / "s"), action]
        run = subprocess.run(argv, input="protocol=https\n", capture_output=True, text=True, timeout=60)
        return run.stdout, run.stderr

    assert ask() == ("quit=1\n", "trunkline: the gateway does not answer: No such file or directory\n")
    assert ask("store") == ("", ""), "nothing is kept"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        argv = [sys.executable, "-I", "-S", "-B", str(HELPER), str(tmp_path / "s"), "get"]
        with subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as run:
            assert run.stdin is not None
            run.stdin.write(b"protocol=https\nhost=x\n")
            run.stdin.close()
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(4_096) == b"credential\nprotocol=https\nhost=x\n\n"
                connection.sendall(b"unavailable gateway unavailable\n")
            assert run.stdout is not None
            assert run.stderr is not None
            assert run.stdout.read() == b"quit=1\n"
            assert run.stderr.read() == b"trunkline: gateway unavailable\n"
