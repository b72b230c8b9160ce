"""Snippets: ``!name`` sends a stored text to the model, or gives a stored answer without a model.

In: ``[plugins.snippets]``. Out: changed or answered user messages, the command ``/snippets``, completions of
names, and HTTP routes that show and try the texts. The plugin loader imports it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from gateway import (
    CommandContext,
    Intercept,
    MentionCompletion,
    NotFoundError,
    Plugin,
    PluginContext,
    SlashCommand,
    Transform,
    TurnContext,
    UserInput,
)
from gateway.api import ApiCall, ApiRoute

TRIGGER = "!"
PLACEHOLDER = "{text}"
"""The place in a stored text of what the user writes after the name."""
_CALL = re.compile(rf"{TRIGGER}([\w-]+)(?:\s+(.*))?", re.DOTALL)
_SHOWN = 60


class SnippetsSettings(BaseModel):
    """The settings of the plugin: texts by name."""

    texts: Mapping[str, str] = Field(
        default={}, description="Texts for the model; {text} is replaced by what follows the name"
    )
    answers: Mapping[str, str] = Field(default={}, description="Answers that need no model")

    @field_validator("texts", "answers")
    @classmethod
    def _named(cls, snippets: Mapping[str, str], info: ValidationInfo) -> Mapping[str, str]:
        for name, text in snippets.items():
            if not re.fullmatch(r"[\w-]+", name):
                raise ValueError(f"has the name {name!r}; use letters, digits, _ and -")
            if not text.strip():
                raise ValueError(f"has no text for {name!r}; write one or remove the name")
            if name in info.data.get("texts", {}):
                raise ValueError(f"has the name {name!r}, as texts has; rename one of them")
        return snippets


class SnippetPath(Struct, frozen=True):
    """The name of a snippet."""

    name: str


class Snippet(Struct, frozen=True):
    """A stored text. ``answered``: it is an answer, and no model gets it."""

    name: str
    text: str
    answered: bool


class SnippetList(Struct, frozen=True):
    """All snippets, by name."""

    snippets: list[Snippet]


class SnippetTrial(Struct, frozen=True, forbid_unknown_fields=True):
    """A message as a user would write it."""

    text: str


class SnippetOutcome(Struct, frozen=True):
    """The effect of a message: the text for the model, or the answer."""

    text: str
    answered: bool


class Snippets(Plugin):
    """The stored texts, and what becomes of a message that begins with the name of one."""

    name = "snippets"
    settings_model = SnippetsSettings

    def __init__(self) -> None:
        self._settings = SnippetsSettings()

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings and complete names."""
        self._settings = ctx.options(SnippetsSettings)
        ctx.register_mention_provider(TRIGGER, self._complete)

    def commands(self) -> Sequence[SlashCommand]:
        """Return /snippets."""
        return [SlashCommand("snippets", f"List the texts of {TRIGGER}name", self._list)]

    def routes(self) -> Sequence[ApiRoute]:
        """Return the routes that list, show and try the snippets."""
        return [
            ApiRoute("GET", "/texts", "List the snippets.", self._list_texts),
            ApiRoute("GET", "/texts/{name}", "Show a snippet.", self._show_text, (NotFoundError,)),
            ApiRoute("POST", "/trial", "Show what becomes of a message; nothing is sent.", self._try),
        ]

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput | None:
        """Expand or answer a snippet. Other text stays, also after an unknown name."""
        return self._outcome(text)

    def _outcome(self, text: str) -> Transform | Intercept | None:
        call = _CALL.fullmatch(text.strip())
        if call is None:
            return None
        name, rest = call[1], (call[2] or "").strip()
        if name in self._settings.answers:
            return Intercept(self._settings.answers[name])
        stored = self._settings.texts.get(name)
        if stored is None:
            return None
        if PLACEHOLDER in stored:
            return Transform(stored.replace(PLACEHOLDER, rest))
        return Transform(f"{stored}\n\n{rest}" if rest else stored)

    def _all(self) -> list[Snippet]:
        texts = [Snippet(name, text, answered=False) for name, text in self._settings.texts.items()]
        answers = [Snippet(name, text, answered=True) for name, text in self._settings.answers.items()]
        return sorted(texts + answers, key=lambda snippet: snippet.name)

    async def _list_texts(self, _call: ApiCall[None, None, None]) -> SnippetList:
        return SnippetList(self._all())

    async def _show_text(self, call: ApiCall[SnippetPath, None, None]) -> Snippet:
        for snippet in self._all():
            if snippet.name == call.path.name:
                return snippet
        raise NotFoundError(f"no snippet {call.path.name!r}; GET /api/plugins/snippets/texts lists them")

    async def _try(self, call: ApiCall[None, None, SnippetTrial]) -> SnippetOutcome:
        match self._outcome(call.body.text):
            case Intercept(reply=reply):
                return SnippetOutcome(reply, answered=True)
            case Transform(text=text):
                return SnippetOutcome(text, answered=False)
            case None:
                return SnippetOutcome(call.body.text, answered=False)

    def _complete(self, partial: str) -> list[MentionCompletion]:
        return [
            MentionCompletion(TRIGGER + snippet.name, description=_first_line(snippet.text))
            for snippet in self._all()
            if snippet.name.startswith(partial)
        ]

    async def _list(self, rest: str, ctx: CommandContext) -> str:
        lines = [f"- `{offer.value}` {offer.description}" for offer in self._complete("")]
        return "\n".join(lines) or "There are no snippets. Add texts to [plugins.snippets.texts]."


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0]
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


plugin = Snippets()
