"""The numbered commits of a store: creating them, reading them, and checkpoints of the state."""
