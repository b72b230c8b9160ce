"""Gemini CLI, which speaks the Agent Client Protocol."""

from __future__ import annotations

from plugins.cli_backends.acp import AcpTalk
from plugins.cli_backends.cli import Cli
from plugins.cli_backends.talk import Order

KEY = "GEMINI_API_KEY"


class GeminiTalk(AcpTalk):
    """One dispatch. With a key it is used; without, whoever has logged in at this machine."""

    def __init__(self, order: Order) -> None:
        super().__init__(order, "gemini-api-key" if order.variables.get(KEY) else "")
        self._model = order.model

    def arguments(self) -> list[str]:
        """The protocol on its pipes, and the model."""
        return ["--acp", *(("-m", self._model) if self._model else ())]


CLI = Cli(
    name="gemini",
    title="Gemini CLI",
    binary="gemini",
    install="npm install -g @google/gemini-cli",
    key=KEY,
    variables=(
        KEY,
        "GEMINI_CLI_HOME",
        "GOOGLE_API_KEY",
        "GOOGLE_CLOUD_LOCATION",
        "GOOGLE_CLOUD_PROJECT",
        "GOOGLE_GEMINI_BASE_URL",
        "GOOGLE_GENAI_USE_VERTEXAI",
    ),
    url="GOOGLE_GEMINI_BASE_URL",
    talk=GeminiTalk,
)
