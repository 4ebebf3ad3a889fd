"""The fold: commits, extents, the state of a store after a commit, and what each action does to it."""
