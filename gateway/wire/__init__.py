"""The wire to model backends: requests out, streamed events in. Knows protocols, but no vendor."""
