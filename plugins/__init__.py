"""The built-in plugins; they use the same contract as anybody's."""
