"""Snippets: ``!name`` sends a stored text to the model, or gives a stored answer without a model.

In: ``[plugins.snippets]``. Out: changed or answered user messages, the command ``/snippets``, and completions
of names. The plugin loader imports it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from gateway import (
    CommandContext,
    Intercept,
    MentionCompletion,
    Plugin,
    PluginContext,
    SlashCommand,
    Transform,
    TurnContext,
    UserInput,
)

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


class Snippets(Plugin):
    """The stored texts, and what becomes of a message that begins with the name of one."""

    name = "snippets"

    def __init__(self) -> None:
        self._settings = SnippetsSettings()

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings and complete names."""
        self._settings = ctx.options(SnippetsSettings)
        ctx.register_mention_provider(TRIGGER, self._complete)

    def commands(self) -> Sequence[SlashCommand]:
        """Return /snippets."""
        return [SlashCommand("snippets", f"List the texts behind {TRIGGER}name", self._list)]

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput | None:
        """Expand or answer a snippet. Other text stays, also after an unknown name."""
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

    def _complete(self, partial: str) -> list[MentionCompletion]:
        found = sorted({**self._settings.texts, **self._settings.answers}.items())
        return [
            MentionCompletion(TRIGGER + name, description=_first_line(text))
            for name, text in found
            if name.startswith(partial)
        ]

    async def _list(self, rest: str, ctx: CommandContext) -> str:
        lines = [f"- `{offer.value}` {offer.description}" for offer in self._complete("")]
        return "\n".join(lines) or "There are no snippets. Add texts to [plugins.snippets.texts]."


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0]
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


plugin = Snippets()
