"""Questions, such as approval requests: messages that users answer with a word, a number or a text."""

from __future__ import annotations

from html import escape

from channels.matrix.api import Json, RefusedError
from channels.matrix.delivery import Delivery
from gateway import Answer
from gateway.channel import (
    ApprovalRequest,
    Placed,
    PlacementDeferred,
    PlacementUncertain,
    Question,
)

_LONGEST = 6_000
"""Most characters of the arguments or the words of a question; it is sent as text and as HTML."""
_OUTCOMES = {
    "once": "✅ Allowed once",
    "always": "✅ Always allowed",
    "deny": "❌ Denied",
    "timeout": "⌛ No answer in time",
    "cancelled": "⏹ No longer needed",
}


class Questions:
    """Questions of one account. The gateway keeps them and their places; this shows them."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    async def ask(self, question: Question) -> Placed:
        """Send a question. Raises PlacementDeferred, and PlacementRefused if it is too long."""
        title, block, words = _texts(question)
        lines = [title, block, words]
        html = f"<p><strong>{escape(title)}</strong></p>"
        html += f"<pre><code>{escape(block)}</code></pre>" if block else ""
        html += f"<p>{_html(words)}</p>" if words else ""
        content = _content("\n\n".join(line for line in lines if line), html)
        try:
            # One transaction id in all attempts, also of a later process: the homeserver applies it once.
            event = await self._delivery.put(question.address, f"question-{question.id}", content)
        except PlacementUncertain as error:
            raise PlacementDeferred(str(error), 1.0) from error
        return Placed(event, await self._delivery.order_of(event))

    async def closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        """Replace a question by its outcome. Raises the errors of a channel's ``edit``."""
        if shown is None:
            return
        title, outcome = _texts(question)[0], _outcome(question, answer)
        html = f"<p><strong>{escape(title)}</strong></p><p>{_html(outcome)}</p>"
        try:
            await self._delivery.replace(question.address, shown, _content(f"{title}\n\n{outcome}", html))
        except RefusedError as refused:
            if refused.status != 404:
                raise


def _texts(question: Question) -> tuple[str, str, str]:
    """Return the title, the arguments of a tool, and how to answer."""
    words = question.in_words(_LONGEST, buttons=False)
    if not isinstance(question, ApprovalRequest):
        return question.title, "", words
    title = f"May I run {question.tool_name}? {question.reason}".rstrip()
    return title, question.whole(_LONGEST) if question.arguments else "", words


def _outcome(question: Question, answer: Answer) -> str:
    if answer.state == "answered" and not isinstance(question, ApprovalRequest):
        return f"✅ {question.labels(answer.values)}"
    return _OUTCOMES.get(answer.outcome, answer.outcome)


def _content(body: str, html: str) -> Json:
    rich = {"format": "org.matrix.custom.html", "formatted_body": html}
    return {"msgtype": "m.text", "body": body, **rich, "m.mentions": {}}


def _html(text: str) -> str:
    return escape(text).replace("\n", "<br>")
