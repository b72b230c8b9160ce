"""Access: the users allowed on each channel, their roles, linked accounts, approvals and permissions.

In: inbound messages, the channel rules of the settings, codes that users type. Out: a role for each sender,
and the tool calls they may run. Imported by the models, delivery and pipeline packages and everything above
them.
"""

from gateway.access.codes import Code
from gateway.access.grants import Grant, Grants, PluginGrant, PluginGrants, grant
from gateway.access.people import THE_OWNER, Member, UserRef
from gateway.access.policy import Access

__all__ = [
    "THE_OWNER",
    "Access",
    "Code",
    "Grant",
    "Grants",
    "Member",
    "PluginGrant",
    "PluginGrants",
    "UserRef",
    "grant",
]
