"""The named errors of coding agents. ``name`` is the code that clients and tests match.

::

    CodingAgentError
    ├── ServiceUnavailableError   SERVICE_UNAVAILABLE        the plugin cannot do this at the moment
    ├── NoSessionError            NO_SESSION                 the user has no session
    ├── SessionNotFoundError      SESSION_NOT_FOUND          no such session of the user
    ├── NoInputError              NO_INPUT                   neither text nor keys
    ├── NoWorkspaceError          NO_WORKSPACE               the user has no workspace
    ├── WorkdirError              WORKDIR_OUTSIDE_ALLOWED    a folder outside of the allowed roots
    ├── FolderTrustError          FOLDER_NOT_TRUSTED         files of the folder configure the program
    ├── NotInstalledError         AGENT_NOT_INSTALLED        the program is missing; has the install line
    ├── UnknownAgentError         UNKNOWN_AGENT              no such program; lists the known ones
    ├── MissingRepoError          MISSING_REPO               no repository was named
    ├── InvalidRepoDomainError    INVALID_REPO_DOMAIN        a repository of a host that is not allowed
    ├── MissingParentError        MISSING_PARENT             a worktree needs a workspace to belong to
    ├── WorkspaceNotFoundError    WORKSPACE_NOT_FOUND        no such workspace of the user
    ├── FinalizeError             FINALIZE_FAILED            a step of finalize failed; ``step`` names it
    ├── SessionLimitError         SESSION_LIMIT              too many sessions, or too little memory
    ├── DiskQuotaError            DISK_QUOTA                 a workspace would be, or is, too large
    ├── SandboxUnavailableError   SANDBOX_UNAVAILABLE        the kernel cannot confine the program as asked
    ├── NotReadyError             NOT_READY                  the program does not take text now
    ├── StaleQuestionError        STALE_QUESTION             the question is no longer on the screen
    ├── InvalidRefError           INVALID_REF                not the name of a branch or commit
    ├── ForgeRefusedError         FORGE_REFUSED              GitHub, GitLab or Gitea refused
    ├── CredentialDeniedError     CREDENTIAL_DENIED          git got no credentials
    ├── KeeperLostError           KEEPER_LOST                the process that keeps a terminal is gone
    └── OutputGoneError           OUTPUT_GONE                output that is no longer kept
"""

from __future__ import annotations

from typing import ClassVar

from gateway import TrunklineError


class CodingAgentError(TrunklineError):
    """The root of the errors of this plugin."""

    code: ClassVar[str] = "CODING_AGENT"

    @property
    def name(self) -> str:
        """The stable code."""
        return self.code


class ServiceUnavailableError(CodingAgentError):
    """The plugin cannot do this at the moment."""

    code = "SERVICE_UNAVAILABLE"
    retryable = True
    status = 503


class NoSessionError(CodingAgentError):
    """The user has no session that could be meant."""

    code = "NO_SESSION"
    status = 404


class SessionNotFoundError(CodingAgentError):
    """No session has this id, or it is another user's."""

    code = "SESSION_NOT_FOUND"
    status = 404


class NoInputError(CodingAgentError):
    """Neither text nor keys were given."""

    code = "NO_INPUT"
    status = 400


class NoWorkspaceError(CodingAgentError):
    """The user has no workspace that could be meant."""

    code = "NO_WORKSPACE"
    status = 404


class WorkdirError(CodingAgentError):
    """The folder is outside of the allowed roots."""

    code = "WORKDIR_OUTSIDE_ALLOWED"
    status = 403


class FolderTrustError(CodingAgentError):
    """The working folder has files that configure the program; the text names the file and the setting."""

    code = "FOLDER_NOT_TRUSTED"
    status = 409


class NotInstalledError(CodingAgentError):
    """The program is not installed; the text has the line that installs it."""

    code = "AGENT_NOT_INSTALLED"
    status = 409


class UnknownAgentError(CodingAgentError):
    """No program has this name; the text lists the known ones."""

    code = "UNKNOWN_AGENT"
    status = 400


class MissingRepoError(CodingAgentError):
    """No repository was named."""

    code = "MISSING_REPO"
    status = 400


class InvalidRepoDomainError(CodingAgentError):
    """The host of the repository is not allowed, or the URL is none of a repository."""

    code = "INVALID_REPO_DOMAIN"
    status = 400


class MissingParentError(CodingAgentError):
    """A worktree was asked for without the workspace that it belongs to."""

    code = "MISSING_PARENT"
    status = 400


class WorkspaceNotFoundError(CodingAgentError):
    """No workspace has this id, or it is another user's."""

    code = "WORKSPACE_NOT_FOUND"
    status = 404


class FinalizeError(CodingAgentError):
    """A step of finalize failed; earlier steps are recorded and not repeated."""

    code = "FINALIZE_FAILED"
    retryable = True
    status = 502

    def __init__(self, message: str, *, step: str) -> None:
        super().__init__(message)
        self.step = step


class SessionLimitError(CodingAgentError):
    """Too many sessions run, or too little memory is free; the text names which."""

    code = "SESSION_LIMIT"
    retryable = True
    status = 429


class DiskQuotaError(CodingAgentError):
    """A workspace is larger than allowed, or there are too many."""

    code = "DISK_QUOTA"
    status = 507


class SandboxUnavailableError(CodingAgentError):
    """The kernel cannot confine the program as the settings ask."""

    code = "SANDBOX_UNAVAILABLE"
    status = 503


class NotReadyError(CodingAgentError):
    """The program does not take text now: it starts, works, or asks a question."""

    code = "NOT_READY"
    retryable = True
    status = 409


class StaleQuestionError(CodingAgentError):
    """The question is no longer the one on the screen; nothing was typed."""

    code = "STALE_QUESTION"
    status = 409


class InvalidRefError(CodingAgentError):
    """Not a name that git accepts for a branch or a commit."""

    code = "INVALID_REF"
    status = 400


class ForgeRefusedError(CodingAgentError):
    """The service that hosts the repository refused a request."""

    code = "FORGE_REFUSED"
    status = 502


class CredentialDeniedError(CodingAgentError):
    """Git got no credentials: there is no grant, or it has ended."""

    code = "CREDENTIAL_DENIED"
    status = 403


class KeeperLostError(CodingAgentError):
    """The process that keeps the terminal does not answer: it ended, or the machine was started again."""

    code = "KEEPER_LOST"
    status = 503


class OutputGoneError(CodingAgentError):
    """The requested output is no longer kept; ``oldest`` is the offset of the first byte that is."""

    code = "OUTPUT_GONE"
    status = 410

    def __init__(self, message: str, *, oldest: int) -> None:
        super().__init__(message)
        self.oldest = oldest
