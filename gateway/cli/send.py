"""``trunkline send``: one message, one answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from gateway.cli.options import FAILED, INTERRUPTED, AsJson, File, Token, Url, fail, to_json

if TYPE_CHECKING:
    from gateway.cli.asking import Exchange


class Wish(Struct, frozen=True):
    """What is to be said where, under which name, and how long to wait for what comes of it."""

    session: str
    text: str
    message_id: str | None = None
    wait: bool = True
    seconds: float | None = None


def send(
    text: Annotated[str, typer.Argument(help="The message; - reads it from standard input.")],
    session: Annotated[
        str | None, typer.Option(help="Session to say it in; a new one when not given.", show_default=False)
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="A name for the message: sent again under it, it is not said twice.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the answer.")] = True,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait at most; 0 for no limit.")] = 600,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    config: File = None,
) -> None:
    """Send one message to a running gateway, and print the answer.

    When this returns the message is stored; with --no-wait the answer comes later. Exit status 1 when the
    answer holds an error.

    \b
    Examples:
      trunkline send "What is 12 * 34?"
      git log -5 | trunkline send - --session notes
      trunkline send "Nightly report" --id report-2026-11-21 --no-wait
    """
    from gateway.cli.chat import new_session, target

    words = sys.stdin.read() if text == "-" else text
    if not words.strip():
        fail("There is nothing to send: the message is empty.")
    where = target(config, url, token)
    wish = Wish(session or new_session(), words, message_id, wait=wait, seconds=timeout or None)
    exchange = ask(*where, wish)
    status = print_answer(exchange, as_json=as_json) if wait or as_json else 0
    if not wait and not as_json:
        typer.echo(f"accepted in session {exchange.ack.session}", err=True)
    raise typer.Exit(status)


def ask(url: str, token: str | None, wish: Wish) -> Exchange:
    """Send a message and wait until it is stored, or answered. Ends the command if that is impossible."""
    import asyncio

    from gateway.cli.asking import exchange
    from gateway.errors import TrunklineError

    try:
        return asyncio.run(exchange(url, token, wish))
    except TrunklineError as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def print_answer(exchange: Exchange, *, as_json: bool = False) -> int:
    """Print the answer: text to standard output, errors to standard error. Returns the exit status."""
    from gateway.cli.drawing import plain
    from gateway.messages import ErrorPart

    answer = exchange.answer
    parts = answer.parts if answer is not None else ()
    errors = [part for part in parts if isinstance(part, ErrorPart)]
    if as_json:
        typer.echo(to_json(_described(exchange)))
    elif answer is not None:
        terminal = sys.stdout.isatty()
        typer.echo(plain(answer.text) if terminal else answer.text)
        for error in errors:
            typer.secho(plain(f"{error.error_name}: {error.message}"), fg=typer.colors.RED, err=True)
    return FAILED if errors else 0


def _described(exchange: Exchange) -> dict[str, object]:
    import msgspec

    ack, answer = exchange.ack, exchange.answer
    described: dict[str, object] = {
        "session": ack.session,
        "message_id": ack.message_id,
        "answer_id": ack.answer_id,
        "duplicate": ack.duplicate,
    }
    if answer is not None:
        described |= {"text": answer.text, "answer": msgspec.to_builtins(answer)}
    return described
