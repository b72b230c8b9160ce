"""Adapters: one module for each program, with its protocol, its arguments and its variables.

In: a request (prompt, model, session, folder) and the program's messages. Out: messages for the program, and
events that mean the same for every program. They do no I/O; the backend, the run and the login import them.
"""
