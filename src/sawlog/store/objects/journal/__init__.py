"""The numbered commits of a store: creating and reading them, and checkpoints of the state."""
