"""Batches for several partitions, committed all or none."""
