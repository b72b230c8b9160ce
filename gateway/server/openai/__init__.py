"""The API that clients of OpenAI speak, on our own port: the same sessions behind other words."""
