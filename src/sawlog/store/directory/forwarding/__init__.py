"""Appends and transactions for a partition whose lock another process holds: they are forwarded to that process."""
