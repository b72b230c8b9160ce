"""The terminal chat and ``trunkline send``: clients of the websocket protocol."""
