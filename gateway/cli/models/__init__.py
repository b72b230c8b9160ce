"""Commands for models, their providers, the keys of those, and the agents that use them."""
