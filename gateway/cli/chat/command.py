"""``trunkline chat``: chat with the gateway at a terminal."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Annotated

import typer
from msgspec import UNSET
from rich.console import Console

from gateway.cli.chat.screen import Screen
from gateway.cli.chat.send import Search, SendRequest, ask, check_gateway, new_session, print_answer, target
from gateway.cli.chat.session import ChatSession, Ended, Interrupted
from gateway.cli.options import FAILED, INTERRUPTED, UNAVAILABLE, Discover, File, Interface, Token, Url, Yes
from gateway.cli.output import readable
from gateway.contract.channel import Address
from gateway.contract.questions import Choice, Question, visible_json
from gateway.session.frames import ApprovalAsked

_DECISIONS = {"y": "once", "yes": "once", "a": "always", "always": "always", "n": "deny", "no": "deny"}
_LEAVE = ("/exit", "/quit")


def chat(
    name: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Session to continue.", show_default=False)
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="The same as the argument SESSION.", show_default=False)
    ] = None,
    url: Url = None,
    token: Token = None,
    discover: Discover = False,
    interface: Interface = None,
    yes: Yes = False,
    config: File = None,
) -> None:
    """Chat with a running gateway; without SESSION in a new session.

    Ctrl-C stops the answer; a second one leaves, like Ctrl-D and /exit. A line that ends with a backslash
    continues in the next line. Tab completes commands and mentions. With piped input each line is a message.

    \b
    Examples:
      trunkline chat
      trunkline chat s-1f2e3d4c5b6a7988
      trunkline chat --url https://chat.example.org
    """
    where = target(config, url, token, Search(discover, interface, yes))
    chosen = name or session or new_session()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.Exit(_piped(*where, chosen))
    status = asyncio.run(_at_terminal(*where, chosen))
    if status not in (0, INTERRUPTED):
        raise typer.Exit(status)
    typer.secho(f"Continue with: trunkline chat {chosen}", dim=True)
    raise typer.Exit(status)


def _piped(url: str, token: str | None, session: str) -> int:
    """Send each line as a message. Stops at the first one that fails."""
    check_gateway(url, token)  # also if there is no line to send
    status = 0
    for line in sys.stdin:
        if line.strip():
            exchange = ask(url, token, SendRequest(session, readable(line.strip())))
            status = print_answer(exchange) or status
    return status


async def _at_terminal(url: str, token: str | None, session: str) -> int:
    screen = Screen(Console(highlight=False))
    chat_session = ChatSession(url, token, session, screen)
    # While the user types, Ctrl-C is a key of the prompt; otherwise it is this signal.
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGINT, lambda: chat_session.news.put_nowait(Interrupted())
    )
    async with asyncio.TaskGroup() as tasks:
        link = tasks.create_task(chat_session.run())
        status = await _Terminal(chat_session, screen).run()
        link.cancel()
    return status


class _Terminal:
    """The side of the user: reads messages, and waits while the gateway answers."""

    def __init__(self, session: ChatSession, screen: Screen) -> None:
        self._session = session
        self._screen = screen

    async def run(self) -> int:
        """Chat until the user leaves. Return the exit status."""
        status = await self._wait()
        if status is None:
            model, session = self._session.model, self._session.session
            self._screen.note(f"{model} · session {session} · /help, Ctrl-D leaves")
        while status is None:
            text = await self._read()
            if text is None:
                return 0
            await self._session.send(text)
            status = await self._wait()
        return status

    async def _read(self) -> str | None:
        """Read the next message; None when the user leaves."""
        interrupted = False
        while True:
            try:
                text = await self._session.prompt.read()
            except EOFError:
                return None
            except KeyboardInterrupt:
                if interrupted:
                    return None
                interrupted = True
                self._screen.note("Press Ctrl-C again, or Ctrl-D, to leave.")
                continue
            if text in _LEAVE:
                return None
            if text:
                return text

    async def _wait(self) -> int | None:
        """Wait until the user may type. Return the exit status if the chat ends instead."""
        stopping = False
        while True:
            match await self._session.news.get():
                case Interrupted():
                    if stopping or self._session.question is None:
                        return INTERRUPTED
                    stopping = True
                    await self._session.abort()
                case Ended(error):
                    typer.secho(str(error), fg=typer.colors.RED, err=True)
                    return UNAVAILABLE if error.retryable else FAILED
                case ApprovalAsked() as asked:
                    await self._decide(asked)
                case _:
                    return None

    async def _decide(self, asked: ApprovalAsked) -> None:
        if asked.choices is not UNSET:
            await self._answer(asked, asked.choices)
            return
        arguments = visible_json(dict(asked.arguments))
        why = f"{asked.reason} " if asked.reason else ""
        self._screen.note(f"\n{why}May {asked.tool_name} run? {arguments}", "yellow")
        always = "" if asked.always is None else f" or [a]lways ({asked.always})"
        decision = None
        while decision is None or (decision == "always" and not always):
            try:
                answer = await self._session.prompt.ask(f"[y]es, [n]o{always}: ")
            except (EOFError, KeyboardInterrupt):
                answer = "n"
            decision = _DECISIONS.get(answer.strip().lower())
        await self._session.approve(asked.approval_id, decision)

    async def _answer(self, asked: ApprovalAsked, choices: tuple[Choice, ...]) -> None:
        """Ask a general question, until the answer is one of its choices or a text that it takes."""
        question = Question(
            key=asked.approval_id,
            address=Address(""),
            answerers=(),
            expires_at=0,
            title=str(asked.title),
            detail=str(asked.detail),
            choices=choices,
            multiple=asked.multiple is True,
            free_text=asked.free_text is True,
        )
        self._screen.note("\n" + "\n".join(filter(None, (question.title, question.in_words()))), "yellow")
        labels = " / ".join(choice.text for choice in choices)
        values = None
        while values is None:
            try:
                values = question.read(await self._session.prompt.ask(f"{labels}> " if labels else "> "))
            except (EOFError, KeyboardInterrupt):
                return
        await self._session.approve(asked.approval_id, values)
