"""The fold: commits, extents, the state of a store after a commit, and the effect of each action."""
