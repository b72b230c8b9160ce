"""Conversations as users handle them: titles, forks, branches, undo, shares, exports, search, files.

Settled turns, committed messages, the wishes of users and of plugins come in; titles go out to sessions
and channels, copies of sessions and the words of messages to the store, and entries to the inbox. Commands,
the host and everything above them import it; it imports the pipeline and what is below.
"""

from dataclasses import dataclass

from gateway.conversations.branches import Branch, Branches, HiddenVersion, Version, read_hidden_versions
from gateway.conversations.changes import ChangedFile, ChangeLog, ChangeSummary, Reverted, read_changes
from gateway.conversations.export import as_json_lines, as_markdown
from gateway.conversations.forks import Forks
from gateway.conversations.search import (
    ConversationFilter,
    ConversationFinder,
    SearchIndex,
    SearchPage,
    SearchSort,
    Sort,
    search_messages,
    search_ranked,
)
from gateway.conversations.selection import AgentChoice, ModelChoice, Selection
from gateway.conversations.shares import (
    NewShare,
    Share,
    SharedConversation,
    SharePreview,
    Shares,
    read_shares,
)
from gateway.conversations.titles import LONGEST_TITLE, Titles, one_line
from gateway.conversations.undo import Change, Command, Undo

__all__ = [
    "LONGEST_TITLE",
    "AgentChoice",
    "Branch",
    "Branches",
    "Change",
    "ChangeLog",
    "ChangeSummary",
    "ChangedFile",
    "Command",
    "ConversationFilter",
    "ConversationFinder",
    "ConversationServices",
    "Forks",
    "HiddenVersion",
    "ModelChoice",
    "NewShare",
    "Reverted",
    "SearchIndex",
    "SearchPage",
    "SearchSort",
    "Selection",
    "Share",
    "SharePreview",
    "SharedConversation",
    "Shares",
    "Sort",
    "Titles",
    "Undo",
    "Version",
    "as_json_lines",
    "as_markdown",
    "one_line",
    "read_changes",
    "read_hidden_versions",
    "read_shares",
    "search_messages",
    "search_ranked",
]


@dataclass(frozen=True)
class ConversationServices:
    """The services for conversations beside the sending of messages."""

    titles: Titles
    forks: Forks
    shares: Shares
    undo: Undo
    branches: Branches
    search: SearchIndex
    changes: ChangeLog
