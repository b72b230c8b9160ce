"""Delivery: brings one answer to its chat exactly once, while it grows and after a crash.

``deliverer`` holds the lifecycle of an answer (begin → show → commit → settle), ``live`` shows it while it is
made, ``pages`` places, edits and deletes its pages on the platform.

In: a running turn and its committed answer. Out: calls of the channel's ``send``, ``edit`` and ``delete``,
and the state of each page in the outbox. Imported by the pipeline and everything above it.
"""
