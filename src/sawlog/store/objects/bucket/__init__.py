"""Object storage as the store uses it: requests, failures, the block cache, and a self-test."""
