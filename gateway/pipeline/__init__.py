"""The pipeline: the path of an accepted message, in the order of processing.

``intake`` accepts it, ``mailbox`` keeps the order of its session, ``revisions`` selects the revision of an
edited message to answer, ``runner`` applies hooks and slash commands, ``agent`` runs the turn, ``model_call``
calls the model, ``agent_loop`` converts its output for hooks and custom loops, ``tools`` runs tools,
``nested`` runs child turns. ``submission`` is the same path for plugins and the server.

In: InboundMessage. Out: deltas to the session, and a committed answer for ``delivery``. Imported by
``conversations`` and everything above it.
"""
