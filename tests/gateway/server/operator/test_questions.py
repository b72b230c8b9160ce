"""Questions of all conversations and the audit log, over REST and on the command line."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway import Plugin, Tool, tool_from
from gateway.contract.errors import ForbiddenError
from gateway.server.now import Reader
from gateway.server.operator.audit import AuditQuery, AuditRoutes
from gateway.server.operator.context import MOST_BYTES, MOST_LINES, difference_of
from gateway.server.operator.questions import QuestionAnswer, QuestionPath, QuestionQuery, QuestionRoutes
from gateway.server.routes import Call, Nothing
from gateway.store import Store
from gateway.store.writes import AUDIT
from gateway.tables.audit import AuditLog
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving
from tests.e2e.gateway_process import GatewayProcess
from tests.gateway.cli.processes import trunkline

pytestmark = pytest.mark.slow
VIEWER = Reader("v", is_admin=False, sees_text=False, name="vera")


class Shell(Plugin):
    """A tool that runs nothing."""

    name = "shell"

    def __init__(self) -> None:
        async def shell(command: str) -> str:
            """Run a command.

            Not really.
            """
            return f"ran {command}"

        key = tool_from(shell, match_key=lambda arguments: arguments["command"], match_kind="command")
        self._tools = [key]

    def tools(self) -> Sequence[Tool]:
        return self._tools


def call(path: Any = None, query: Any = None, body: Any = None) -> Call[Any, Any, Any, Any]:
    """A request whose reader the routes of a test know without looking at it."""
    return Call(
        web.Request.__new__(web.Request), "owner", path or Nothing(), query or Nothing(), Nothing(), body
    )


async def test_an_admin_sees_what_a_question_permits_and_answers_it_with_a_name(tmp_path: Path) -> None:
    async with serving(tmp_path, Shell(), permissions={"shell": "ask"}) as served, served.socket() as client:
        served.models.then(
            Reply((Use("shell", json.dumps({"command": "/bin/rm \u202etmp"})),), "tools"),
            Reply((Say("Done"),)),
        )
        await client.say("Tidy up", session="s")
        asked = await client.until("approval_request")
        status, listed = await served.ask("GET", "/api/questions")
        [one] = listed["questions"]
        assert (status, one["id"], one["kind"], one["tool"]) == (
            200,
            asked["approval_id"],
            "approval",
            "shell",
        )
        assert one["tool_text"] == "Run a command."
        assert "\\u202e" in one["command"], "a character that turns the direction is shown"
        assert one["effect"] == {"kind": "command", "text": "/bin/rm \u202etmp"}
        assert one["rule"] == 'permissions.shell = "allow"'
        assert (one["channel"], one["may_answer"], one["decision"]) == ("websocket", ["owner"], None)
        assert one["expires_at"] > one["created_at"]

        # The same list as a viewer sees it, who also may not answer.
        parts, tools = served.gateway.parts, served.gateway.registry.get_tools
        routes = QuestionRoutes(
            parts.questions, tools, parts.sessions.get, parts.store, lambda _: VIEWER
        ).routes()
        seen = await routes[0].handler(call(query=QuestionQuery()))
        assert seen.questions[0].expires_at == one["expires_at"]  # type: ignore[attr-defined]
        assert not any(secret in repr(seen) for secret in ("rm", "Tidy", "permissions"))
        answer = call(QuestionPath(one["id"]), body=QuestionAnswer(["once"]))
        with pytest.raises(ForbiddenError):
            await routes[1].handler(answer)

        refused, error = await served.ask("POST", f"/api/questions/{one['id']}", json={"values": ["perhaps"]})
        assert (refused, error["error_name"]) == (400, "InvalidRequestError")
        admin = Reader("a", name="ada")
        own = QuestionRoutes(
            parts.questions, tools, parts.sessions.get, parts.store, lambda _: admin
        ).routes()
        decision = await own[1].handler(answer)
        assert (decision.by, decision.state) == ("ada", "answered")  # type: ignore[attr-defined]
        await client.until("complete")
        gone, error = await served.ask("POST", f"/api/questions/{one['id']}", json={"values": ["once"]})
        assert gone == 404
        assert (await served.ask("GET", "/api/questions"))[1]["questions"] == []
        [done] = (await served.ask("GET", "/api/questions?state=decided"))[1]["questions"]
        assert (done["id"], done["decision"]["by"]) == (one["id"], "ada")
        _, log = await served.ask("GET", "/api/audit?action=approval")
        [row] = log["rows"]
        assert (row["actor"], row["action"], row["subject"], log["next"]) == (
            "ada",
            "approval.once",
            "shell",
            None,
        )
        [route] = AuditRoutes(AuditLog(parts.store), lambda _: VIEWER).routes()
        with pytest.raises(ForbiddenError):
            await route.handler(call(query=AuditQuery()))


async def test_a_question_shows_what_led_to_it_and_what_it_changes(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/a.txt").write_text("one\n")
    settings = {
        "plugins": {"enabled": ["files"], "files": {"roots": [str(tmp_path / "root")]}},
        "permissions": {"edit": "ask", "*": "allow"},
    }
    async with serving(tmp_path / "data", **settings) as served, served.socket() as client:
        edit = {"path": "a.txt", "old": "one", "new": "<b>two</b>\u202e"}
        served.models.then(
            Reply((Use("read", json.dumps({"path": "a.txt"})),), "tools"),
            Reply((Use("edit", json.dumps(edit)),), "tools"),
            Reply((Say("Done"),)),
        )
        await client.say("Please change it", session="s")
        asked = (await client.until("approval_request"))["approval_id"]
        status, found = await served.ask("GET", f"/api/questions/{asked}/context")
        assert (status, found["asked"]) == (200, "Please change it")
        assert [(one["name"], one["state"]) for one in found["calls"]] == [("read", "ok")]
        assert found["difference"] == "@@ a.txt @@\n-one\n+<b>two</b>\\u202e"
        assert found["more_lines"] == 0
        assert (await served.ask("GET", "/api/questions/none/context"))[0] == 404
        assert (await served.ask("POST", f"/api/questions/{asked}", json={"values": ["deny"]}))[0] == 200
        await client.until("complete")


def test_a_difference_is_read_from_the_arguments_and_bounded() -> None:
    changes = [{"path": "a", "diff": "-x\n+y"}, {"path": "b\n+c", "oldText": None, "newText": "new\n"}]
    assert difference_of({"changes": changes}).text == "@@ a @@\n-x\n+y\n@@ b\\n+c @@\n+new"
    assert difference_of({"file_path": "a", "content": "1\n2\n"}).text == "@@ a @@\n+1\n+2"
    assert difference_of({"patch": "--- a\n+++ a\n-x"}).text == "--- a\n+++ a\n-x"
    assert difference_of({"command": "ls", "content": "no file"}) == ("", 0)
    whole = difference_of({"path": "a", "content": "x\n" * 1_000})
    assert (len(whole.text.split("\n")), whole.more_lines) == (MOST_LINES, 1_001 - MOST_LINES)
    wide = difference_of({"path": "a", "content": ("x" * 5_000 + "\n") * 100})
    assert len(wide.text) <= MOST_BYTES
    assert wide.more_lines > 0


async def test_the_log_is_read_in_pages_newest_first(store: Store) -> None:
    log = AuditLog(store)
    for number in range(25):
        who, action = "ada" if number % 5 else "bob", f"console.login{number % 2}"
        await store.write((AUDIT, (f"{number:08x}", number, who, action, str(number), None)))
    await log.record("bob", "console.login1.more", "last", "why")
    page, found = await log.page(most=10), list[str]()
    while page.next is not None:
        found += [row.subject for row in page.rows]
        page = await log.page(page.next, most=10)
    found += [row.subject for row in page.rows]
    assert found == ["last", *map(str, range(24, -1, -1))]
    mine = await log.page(actor="bob", action="console.login1")
    assert [(row.subject, row.detail) for row in mine.rows] == [("last", "why"), ("15", ""), ("5", "")]
    assert (await log.page(action="console")).rows[0].subject == "last"
    assert (await log.page(action="cons")).rows == []


def test_the_command_shows_the_log(tmp_path: Path) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    none = trunkline("audit", home=tmp_path)
    assert (none.returncode, none.stderr.strip()) == (0, "The audit log is empty.")


DOOR = '''
from gateway import Plugin, tool_from

async def door(which: str) -> str:
    """Open a door."""
    return f"{which} is open"

class Doors(Plugin):
    name = "doors"

    def tools(self):
        return (tool_from(door, match_key=lambda arguments: arguments["which"]),)

plugin = Doors()
'''


@pytest.mark.timeout(120)
async def test_what_was_decided_is_the_same_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "doors.py").write_text(DOOR)
    async with (
        FakeModels() as models,
        GatewayProcess(tmp_path, models.openai_url, 'plugins.enabled = ["doors"]') as gateway,
        aiohttp.ClientSession() as http,
    ):

        async def decided() -> list[dict[str, Any]]:
            async with http.get(f"{gateway.url}/api/questions?state=decided") as found:
                return (await found.json())["questions"]

        assert await gateway.start()
        async with gateway.client() as client:
            for session, answer in (("front", "once"), ("back", "deny"), ("attic", "")):
                use = Use("door", json.dumps({"which": session}))
                models.then(Reply((use,), "tools"), Reply((Say("Done"),)))
                await client.send(
                    type="message", client_msg_id=session, session=session, text=f"Open {session}"
                )
                asked = (await client.until("approval_request"))["approval_id"]
                if answer:
                    url, body = f"{gateway.url}/api/questions/{asked}", {"values": [answer]}
                    async with http.post(url, json=body) as done:
                        assert done.status == 200
                else:
                    await client.send(type="abort", session=session)
                await client.until("complete")
        before = await decided()
        assert [(one["effect"]["text"], one["decision"]["state"]) for one in before] == [
            ("attic", "withdrawn"),
            ("back", "answered"),
            ("front", "answered"),
        ]
        assert all(one["message"] and one["command"] and one["conversation"] for one in before)
        # A write after the last one ends the wait for the commit of all before it.
        async with http.delete(f"{gateway.url}/api/sessions/attic") as gone:
            assert gone.status == 204
        before = await decided()
        assert len(before) == 2
        await gateway.stop(signal.SIGKILL)
        assert await gateway.start()
        after = await decided()
        for one in after:
            # The time of the end is that of its row, which is made before the commit.
            at = next(each for each in before if each["id"] == one["id"])["decision"]["at"]
            assert abs(one["decision"].pop("at") - at) < 60_000
        assert after == [
            one | {"decision": {k: v for k, v in one["decision"].items() if k != "at"}} for one in before
        ]
