"""Reading of updates: objects of the Bot API, and the text, files and quotes of messages.

Raw JSON and objects come in, values of the gateway go out. Only the Telegram channel imports it.
"""
