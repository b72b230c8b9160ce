"""Commands for what the gateway stores and does: sessions, dead letters, access, database, logs, settings.

In: arguments, and a running gateway or its store. Out: tables or JSON. Imported by the command line alone.
"""
