"""The terminal chat and ``trunkline send``: clients of the websocket protocol.

In: lines and keys of a terminal, frames of the gateway. Out: messages, and answers on the terminal. Imported
by the command line alone.
"""
