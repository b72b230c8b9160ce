"""Commands for what the gateway stores and does: sessions, dead letters, access, database, logs, settings."""
