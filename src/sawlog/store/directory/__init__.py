"""A store in a directory."""
