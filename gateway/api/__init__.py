"""Names for plugins with HTTP routes, websockets or metrics, or that use files, programs or labels.

In: the contract. Out: these names; ``extensions`` checks what plugins return, and ``server`` uses it. Plugins
import this module.
"""

from gateway.api.beneath import FOLDER, open_below
from gateway.api.owned_files import replace_file
from gateway.api.pages import AnswersHttp, RawRequest, RawResponse
from gateway.confinement.programs import (
    NodeService,
    PermissionService,
    ProcessService,
    ProgramAccess,
    ProgramAction,
    ProgramPrefix,
    RunningProgram,
)
from gateway.contract.messages import Display, ResultMetadata
from gateway.contract.plugin import ApiCall, ApiConnection, ApiRoute, ApiSocket, Figure
from gateway.contract.tool import FileChange

__all__ = [
    "FOLDER",
    "AnswersHttp",
    "ApiCall",
    "ApiConnection",
    "ApiRoute",
    "ApiSocket",
    "Display",
    "Figure",
    "FileChange",
    "NodeService",
    "PermissionService",
    "ProcessService",
    "ProgramAccess",
    "ProgramAction",
    "ProgramPrefix",
    "RawRequest",
    "RawResponse",
    "ResultMetadata",
    "RunningProgram",
    "open_below",
    "replace_file",
]
