"""The API for OpenAI clients under ``/v1``, on the gateway's own sessions.

In: chat completion and response requests. Out: answers, whole or streamed. Imported by the server alone.
"""
