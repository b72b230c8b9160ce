"""Gemini CLI, which speaks the Agent Client Protocol."""

from __future__ import annotations

from plugins.cli_backends.adapters.acp import AcpAdapter
from plugins.cli_backends.adapters.cli import Cli, Login
from plugins.cli_backends.adapters.protocol import ProgramRequest
from plugins.programs.catalog import GEMINI

KEY = "GEMINI_API_KEY"
VERTEX = "GOOGLE_GENAI_USE_VERTEXAI"

LOGIN = Login(
    method="oauth-personal",
    account="a Google account",
    steps='choose "Sign in with Google", open the address that it shows in a browser on any machine, enter '
    "the code that you get there, and leave the program with /quit",
    # The login runs in an empty folder, so the question whether to trust it is unnecessary.
    variables={
        "NO_BROWSER": "true",
        "GEMINI_DEFAULT_AUTH_TYPE": "oauth-personal",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    },
    # developers.google.com/gemini-code-assist/docs/deprecations/code-assist-individuals
    advice="Since 18 June 2026 Google refuses individual accounts here (free, AI Pro and AI Ultra); "
    "accounts of organizations with Gemini Code Assist still work. A key works for everybody, for Gemini CLI "
    "and the API: create one at https://aistudio.google.com/apikey, repeat the command and enter the key",
)


class GeminiAdapter(AcpAdapter):
    """One dispatch, with the API key if there is one, else with the program's own login.

    If the user chose Vertex AI, a key that is stored for the API must not override that.
    """

    def __init__(self, request: ProgramRequest) -> None:
        with_key = request.variables.get(KEY) and request.variables.get(VERTEX) != "true"
        super().__init__(request, "gemini-api-key" if with_key else "")
        self._model = request.model

    def arguments(self) -> list[str]:
        """Return the arguments for the Agent Client Protocol, and the model."""
        return ["--acp", *(("-m", self._model) if self._model else ())]


CLI = Cli(
    name="gemini",
    program=GEMINI,
    adapter=GeminiAdapter,
    stand_in="google",
    login=LOGIN,
)
