"""Consumer groups of the broker: membership, assignment and committed offsets."""
