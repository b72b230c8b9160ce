"""``trunkline chat``: talk to the gateway from a terminal."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import FAILED, INTERRUPTED, File, Token, Url, fail, settings_from

if TYPE_CHECKING:
    from gateway.cli.prompt import Prompt
    from gateway.cli.screen import Screen
    from gateway.cli.talk import Talk
    from gateway.frames import ApprovalAsked

_DECISIONS = {"y": "once", "yes": "once", "a": "always", "always": "always", "n": "deny", "no": "deny"}
_LEAVE = ("/exit", "/quit")


def chat(
    name: Annotated[
        str | None, typer.Argument(metavar="[SESSION]", help="Session to go on with.", show_default=False)
    ] = None,
    session: Annotated[str | None, typer.Option(help="The same, as an option.", show_default=False)] = None,
    url: Url = None,
    token: Token = None,
    config: File = None,
) -> None:
    """Talk to a running gateway; without SESSION a new one begins.

    Ctrl-C stops the answer, a second one leaves, like Ctrl-D or /exit. A line that ends with a backslash
    goes on in the next one. When input is piped, each line is a message, and answers are printed whole.

    \b
    Examples:
      trunkline chat
      trunkline chat s-1f2e3d4c5b6a7988
      trunkline chat --url https://chat.example.org
    """
    where = target(config, url, token)
    chosen = name or session or new_session()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.Exit(_piped(*where, chosen))
    status = _at_terminal(*where, chosen)
    typer.secho(f"To go on: trunkline chat {chosen}", dim=True)
    raise typer.Exit(status)


def target(config: Path | None, url: str | None, token: str | None) -> tuple[str, str | None]:
    """The gateway's address and token: as given, else as the settings say.

    The token of the settings is for the address of the settings alone.
    """
    if url is not None:
        return url, token
    from gateway.cli.remote import address

    settings = settings_from(config)
    known = settings.server.token
    return address(settings), token or (known.get_secret_value() if known is not None else None)


def new_session() -> str:
    """The name of a session that is not there yet."""
    return f"s-{secrets.token_hex(8)}"


def _piped(url: str, token: str | None, session: str) -> int:
    """Each line is a message; stops at the first one that cannot be sent."""
    from gateway.cli.send import Wish, ask, print_answer

    status = 0
    for line in sys.stdin:
        if line.strip():
            exchange = ask(url, token, Wish(session, line.strip()))
            status = print_answer(exchange) or status
    return status


def _at_terminal(url: str, token: str | None, session: str) -> int:
    from rich.console import Console

    from gateway.cli.prompt import Prompt
    from gateway.cli.screen import Screen
    from gateway.cli.talk import Talk

    screen, prompt = Screen(Console(highlight=False)), Prompt()
    talk = Talk(url, token, session, screen, prompt)
    return _Terminal(talk, screen, prompt).run()


class _Terminal:
    """The person's side: reads what they type, and waits while the gateway answers."""

    def __init__(self, talk: Talk, screen: Screen, prompt: Prompt) -> None:
        self._talk = talk
        self._screen = screen
        self._prompt = prompt

    def run(self) -> int:
        """Talk until the person leaves. Returns the exit status."""
        self._talk.start()
        try:
            if not self._wait():
                return INTERRUPTED
            self._screen.note(f"{self._talk.model} · session {self._talk.session} · /help, Ctrl-D leaves")
            while (text := self._read()) is not None:
                self._talk.say(text)
                if not self._wait():
                    return INTERRUPTED
        finally:
            self._talk.stop()
        return 0

    def _read(self) -> str | None:
        """What the person says next; None when they leave."""
        interrupted = False
        while True:
            try:
                text = self._prompt.read()
            except EOFError:
                self._screen.note("")
                return None
            except KeyboardInterrupt:
                if interrupted:
                    return None
                interrupted = True
                self._screen.note("\nCtrl-C again, or Ctrl-D, leaves.")
                continue
            if text in _LEAVE:
                return None
            if text:
                return text

    def _wait(self) -> bool:
        """Until the person is to speak again. Returns whether they want to stay."""
        from gateway.cli.talk import Ended
        from gateway.frames import ApprovalAsked

        stopping = False
        while True:
            try:
                news = self._talk.news.get()
            except KeyboardInterrupt:
                if stopping or self._talk.question is None:
                    return False
                stopping = True
                self._talk.abort()
                continue
            if isinstance(news, Ended):
                fail(str(news.error), FAILED)
            if not isinstance(news, ApprovalAsked):
                return True
            self._decide(news)

    def _decide(self, asked: ApprovalAsked) -> None:
        import json

        arguments = json.dumps(dict(asked.arguments), ensure_ascii=False)
        self._screen.note(f"\nMay {asked.tool_name} run? {arguments}", "yellow")
        decision = None
        while decision is None:
            try:
                answer = self._prompt.ask("[y]es, [n]o or [a]lways: ")
            except (EOFError, KeyboardInterrupt):
                answer = "n"
            decision = _DECISIONS.get(answer.strip().lower())
        self._talk.approve(asked.approval_id, decision)
