"""The slash commands that come with the gateway, one module for each subject.

In: the text after the command's name and its context. Out: the reply, as Markdown. Imported by ``app``.
"""
