"""Context of messages: what a message shows, who wrote it, and what was said before it.

Comes in: Slack's messages and events about users, channels and user groups. Goes out: text in Slack's markup,
names, earlier messages of a thread, and members of user groups. Only the Slack channel imports it.
"""
