"""Surfaces of the app beside messages: the greeting of users who open it, its home tab, and a form.

In: the user who opened the app or asked for a form. Out: calls of the Web API.
Only the Slack channel imports it.
"""
