"""Decisions of operators, and the log of them: questions of all conversations, dead letters, the audit log.

In: requests of admins and viewers. Out: answers, stored with the name of who gave them, and pages of the log.
Imported by the server alone.
"""
