"""Forwarding of appends and transactions to the process that holds a partition's lock."""
