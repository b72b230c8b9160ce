"""Personal data: masks e-mail addresses, IBANs, phone numbers and patterns of the operator.

In: ``[plugins.personal_data]``. Out: tool results and answers with ``[email]`` in place of an address. A
result is masked before the model gets it, an answer when the model call ends: readers of a stream may see it
earlier. The plugin loader imports it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, cast

from msgspec.structs import replace
from pydantic import BaseModel, Field, field_validator

from gateway import Plugin, PluginContext, ToolCall, TurnContext, TurnResult

Kind = Literal["email", "iban", "phone"]

# The look-behinds let a match begin only at the start of a word: without them a long text without spaces,
# such as base64, would take quadratic time.
_KNOWN: Mapping[Kind, re.Pattern[str]] = {
    "email": re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    "iban": re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)"),
    "phone": re.compile(r"(?<![\w+])\+\d(?:[ ()./-]{0,2}\d){7,14}(?!\w)"),
}
_SHORTEST_IBAN = 15


class PersonalDataSettings(BaseModel):
    """The settings of the plugin."""

    kinds: tuple[Kind, ...] = Field(
        default=("email", "iban", "phone"),
        description="What to mask; phone numbers are those that begin with +; default all",
    )
    patterns: dict[str, re.Pattern[str]] = Field(
        default={}, description="Further regular expressions, by the name that replaces what they find"
    )
    answers: bool = Field(default=True, description="Also mask the model's answers; default true")

    @field_validator("patterns", mode="before")
    @classmethod
    def _compiled(cls, patterns: object) -> object:
        if not isinstance(patterns, Mapping):
            return patterns
        written = cast("Mapping[str, object]", patterns)
        return {name: _compile(name, pattern) for name, pattern in written.items()}


class PersonalData(Plugin):
    """A mask over personal data in tool results and answers."""

    name = "personal_data"
    settings_model = PersonalDataSettings

    def __init__(self) -> None:
        self._patterns: Mapping[str, re.Pattern[str]] = {}
        self._masks_answers = True

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings."""
        settings = ctx.options(PersonalDataSettings)
        self._patterns = {kind: _KNOWN[kind] for kind in settings.kinds} | settings.patterns
        self._masks_answers = settings.answers

    async def after_tool_exec(self, call: ToolCall, result: str, ctx: TurnContext) -> str:
        """Mask a tool's result."""
        return self._masked(result)

    async def after_llm_call(self, result: TurnResult, ctx: TurnContext) -> TurnResult | None:
        """Mask an answer and its reasoning."""
        if not self._masks_answers:
            return None
        return replace(result, content=self._masked(result.content), reasoning=self._masked(result.reasoning))

    def _masked(self, text: str) -> str:
        for name, pattern in self._patterns.items():
            mask = f"[{name}]"
            text = pattern.sub(lambda found, mask=mask: _replacement(found, mask), text)
        return text


def _replacement(found: re.Match[str], mask: str) -> str:
    """Return the mask; for an IBAN only in place of its longest beginning with a valid checksum."""
    text = found[0]
    if found.re is not _KNOWN["iban"]:
        return mask
    # A word in capitals after the number looks like a part of it.
    for end in range(len(text), _SHORTEST_IBAN - 1, -1):
        digits = text[:end].replace(" ", "")
        if (
            len(digits) >= _SHORTEST_IBAN
            and int("".join(str(int(c, 36)) for c in digits[4:] + digits[:4])) % 97 == 1
        ):
            return mask + text[end:]
    return text


def _compile(name: str, pattern: object) -> re.Pattern[str]:
    try:
        compiled = re.compile(str(pattern))
    except re.error as error:
        raise ValueError(
            f"has {pattern!r} for {name!r}, which is not a regular expression ({error})"
        ) from None
    if compiled.search("") is not None:
        raise ValueError(f"has {pattern!r} for {name!r}, which matches an empty text; make it longer")
    return compiled


plugin = PersonalData()
