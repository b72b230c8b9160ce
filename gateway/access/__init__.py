"""Access: who may talk on a channel, as what, and which of them are one person."""

from gateway.access.access import Access
from gateway.access.codes import Code
from gateway.access.people import THE_OWNER, Member, Who

__all__ = ["THE_OWNER", "Access", "Code", "Member", "Who"]
