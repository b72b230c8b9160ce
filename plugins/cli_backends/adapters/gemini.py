"""Gemini CLI, which speaks the Agent Client Protocol."""

from __future__ import annotations

from plugins.cli_backends.adapters.acp import AcpTalk
from plugins.cli_backends.adapters.cli import Cli, Login
from plugins.cli_backends.adapters.protocol import Order

KEY = "GEMINI_API_KEY"
VERTEX = "GOOGLE_GENAI_USE_VERTEXAI"

LOGIN = Login(
    method="oauth-personal",
    account="a Google account",
    steps='choose "Sign in with Google", open the address that it shows in a browser on any machine, enter '
    "the code that you get there, and leave the program with /quit",
    # It runs in an empty folder, where its question about trust would only stand in the way.
    variables={
        "NO_BROWSER": "true",
        "GEMINI_DEFAULT_AUTH_TYPE": "oauth-personal",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    },
    # developers.google.com/gemini-code-assist/docs/deprecations/code-assist-individuals
    advice="Since 18 June 2026 Google refuses the accounts of individuals here (free, AI Pro and AI Ultra); "
    "accounts of organizations with Gemini Code Assist still work. A key works for everybody, for Gemini CLI "
    "and the API: create one at https://aistudio.google.com/apikey, repeat the command and enter the key",
)


class GeminiTalk(AcpTalk):
    """One dispatch. With a key it is used; without, whoever has logged in at this machine.

    Where Vertex AI is chosen, a key that was kept for the API must not override that.
    """

    def __init__(self, order: Order) -> None:
        with_key = order.variables.get(KEY) and order.variables.get(VERTEX) != "true"
        super().__init__(order, "gemini-api-key" if with_key else "")
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
        VERTEX,
    ),
    url="GOOGLE_GEMINI_BASE_URL",
    talk=GeminiTalk,
    stand_in="google",
    login=LOGIN,
)
