"""``trunkline send``: send one message and print its answer."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import typer
from msgspec import Struct

from gateway.cli.chat.conversation import Conversation, Question
from gateway.cli.chat.link import Ack, Disconnected, Link, Ready, Refusal, ServerFrame
from gateway.cli.discovery import discover as discover_url
from gateway.cli.gateway_client import GatewayUnreachableError, address
from gateway.cli.options import (
    FAILED,
    INTERRUPTED,
    REFUSED,
    AsJson,
    Discover,
    File,
    Interface,
    Token,
    Url,
    Yes,
    fail,
    give_up,
    settings_from,
    to_json,
)
from gateway.cli.output import plain, readable
from gateway.contract.errors import (
    DeltaParseError,
    InvalidRequestError,
    OverloadedError,
    TrunklineError,
)
from gateway.contract.messages import ErrorPart, Message
from gateway.session.frames import ApprovalAsked

T = TypeVar("T")
_GREETING_SECONDS = 20.0


class SendRequest(Struct, frozen=True):
    """A message to send, its session and id, and how long to wait for the answer."""

    session: str
    text: str
    message_id: str | None = None
    wait: bool = True
    seconds: float | None = None


def send(
    text: Annotated[str, typer.Argument(help="The message; - reads it from standard input.")],
    session: Annotated[
        str | None, typer.Option(help="Session of the message; default: a new one.", show_default=False)
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            help="Id of the message; a repeated id is not processed twice.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the answer.")] = True,
    timeout: Annotated[float, typer.Option(min=0, help="Maximum wait in seconds; 0 for no limit.")] = 600,
    as_json: AsJson = False,
    url: Url = None,
    token: Token = None,
    discover: Discover = False,
    interface: Interface = None,
    yes: Yes = False,
    config: File = None,
) -> None:
    """Send one message to a running gateway and print the answer.

    The message is stored when this returns; with --no-wait it does not wait for the answer. Exit status 1
    when the answer contains an error, 75 when no gateway responds or the message may be sent again later.

    \b
    Examples:
      trunkline send "What is 12 * 34?"
      git log -5 | trunkline send - --session notes
      trunkline send "Nightly report" --id report-2026-11-21 --no-wait
      trunkline send "What is new?" --discover
    """

    words = readable(sys.stdin.read() if text == "-" else text)
    if not words.strip():
        fail("the message is empty")
    where = target(config, url, token, Search(discover, interface, yes))
    request = SendRequest(session or new_session(), words, message_id, wait=wait, seconds=timeout or None)
    exchange = ask(*where, request)
    status = print_answer(exchange, as_json=as_json) if wait or as_json else 0
    if not wait and not as_json:
        typer.echo(f"accepted in session {exchange.ack.session}", err=True)
    raise typer.Exit(status)


class Search(Struct, frozen=True):
    """The options for a gateway on the local network."""

    discover: bool = False
    interface: str | None = None
    yes: bool = False


def target(config: Path | None, url: str | None, token: str | None, search: Search) -> tuple[str, str | None]:
    """Return the URL and the token of the gateway, as given or found, else from the settings.

    The token of the settings is sent only to the address of the settings.
    """
    if search.discover:
        if url is not None:
            fail("--url and --discover exclude each other", REFUSED)
        return discover_url(token=token is not None, yes=search.yes, interface=search.interface), token
    if search.yes or search.interface is not None:
        fail("--yes and --interface need --discover", REFUSED)
    if url is not None:
        if not _is_url(url):
            fail(f"--url: {url!r} is not the URL of a gateway; example: http://127.0.0.1:8080", REFUSED)
        return url, token

    settings = settings_from(config)
    known = settings.server.token
    return address(settings), token or (known.get_secret_value() if known is not None else None)


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        # Reading an invalid port raises ValueError, too.
        return parts.scheme in ("http", "https", "ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def new_session() -> str:
    """Return the id of a new session."""
    return f"s-{secrets.token_hex(8)}"


def ask(url: str, token: str | None, request: SendRequest) -> Exchange:
    """Send a message and wait until it is stored, or answered. An error ends the command."""
    return _run(exchange(url, token, request))


def check_gateway(url: str, token: str | None) -> None:
    """End the command with an error if no gateway at this address takes the token."""
    _run(_greeting(url, token))


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except TrunklineError as error:
        give_up(error)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def print_answer(exchange: Exchange, *, as_json: bool = False) -> int:
    """Print the answer: text to standard output, errors to standard error. Return the exit status."""

    answer = exchange.answer
    parts = answer.parts if answer is not None else ()
    errors = [part for part in parts if isinstance(part, ErrorPart)]
    if as_json:
        typer.echo(to_json(_described(exchange)))
    elif answer is not None:
        terminal = sys.stdout.isatty()
        typer.echo(plain(answer.text) if terminal else answer.text)
        for error in errors:
            typer.secho(plain(error.message), fg=typer.colors.RED, err=True)
    return FAILED if errors else 0


def _described(exchange: Exchange) -> dict[str, object]:
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


class Exchange(Struct, frozen=True):
    """A stored message, and its answer if there is one."""

    ack: Ack
    answer: Message | None


async def exchange(url: str, token: str | None, request: SendRequest) -> Exchange:
    """Send a message. Return when it is stored, or answered if the request waits.

    Raises TrunklineError when the gateway rejects it or is unreachable, or after the time limit.
    """
    delivery = _Delivery(request)
    link = Link(url, token, delivery.receive)
    await link.send(request.session, request.text, delivery.question.client_msg_id)
    try:
        await _connected_until(delivery.done, link, request.seconds)
    except TimeoutError:
        raise delivery.timeout_error() from None
    return delivery.outcome()


async def _greeting(url: str, token: str | None) -> None:
    greeted: asyncio.Future[ServerFrame] = asyncio.get_running_loop().create_future()

    def receive(_session: str, frame: ServerFrame) -> None:
        if isinstance(frame, Ready | Disconnected) and not greeted.done():
            greeted.set_result(frame)

    try:
        await _connected_until(greeted, Link(url, token, receive), _GREETING_SECONDS)
    except TimeoutError:
        raise GatewayUnreachableError(f"the gateway at {url} does not answer; is it busy?") from None
    if isinstance(closed := greeted.result(), Disconnected):
        raise GatewayUnreachableError(f"the gateway at {url} does not answer: {closed.reason}")


async def _connected_until(done: asyncio.Future[Any], link: Link, seconds: float | None) -> None:
    """Keep a link connected until ``done``. Raises TrunklineError, and TimeoutError after the time limit."""
    failure: TrunklineError | None = None
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(link.run())
            await done
            running.cancel()
    except* TrunklineError as group:
        failure = next(error for error in group.exceptions if isinstance(error, TrunklineError))
    if failure is not None:
        raise failure


class _Delivery:
    """Delivery of one message; ``done`` is set when it is stored, or answered if the request waits."""

    def __init__(self, request: SendRequest) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.question = Question(request.message_id or f"cli-{secrets.token_hex(12)}", request.text)
        self._conversation = Conversation(request.session)
        self._request = request

    def receive(self, session: str, frame: ServerFrame) -> None:
        """Process one frame."""
        question = self.question
        question.take(frame)
        if question.ack is not None and session == question.ack.session:
            self._event(frame)
        match frame:
            case Disconnected():
                typer.secho(f"{frame.reason}; reconnecting …", err=True, dim=True)
            case Refusal(retryable=True):
                typer.secho(f"{frame.message}; retrying …", err=True, dim=True)
            case _:
                pass
        stored = question.ack is not None and (question.ack.refused or not self._request.wait)
        if (stored or self._conversation.settled(question, frame)) and not self.done.done():
            self.done.set_result(None)

    def outcome(self) -> Exchange:
        """Return the result. Raises InvalidRequestError when the gateway rejected the message."""
        question = self.question
        if question.ack is None:
            reason = question.refusal.message if question.refusal is not None else "it was not acknowledged"
            raise InvalidRequestError(f"the gateway rejected the message: {reason}")
        if question.ack.refused:
            raise OverloadedError("the queue of this session is full; send the message again later")
        return Exchange(question.ack, self._conversation.answer(question))

    def timeout_error(self) -> TrunklineError:
        """Return the error after the time limit."""
        ack = self.question.ack
        if ack is None:
            return OverloadedError("the message was not stored in time; send it again")
        return TrunklineError(
            f"the message is stored but not answered yet; see: trunkline sessions show {ack.session}"
        )

    def _event(self, frame: ServerFrame) -> None:
        if isinstance(frame, ApprovalAsked):
            what = f"The tool {frame.tool_name} waits for approval" if frame.tool_name else str(frame.title)
            typer.secho(
                f"{what}; answer in the web chat or with: trunkline chat {self._conversation.session}",
                err=True,
                fg=typer.colors.YELLOW,
            )
            return
        try:
            self._conversation.take(frame)
        except DeltaParseError:
            return  # a replay sends the complete message
