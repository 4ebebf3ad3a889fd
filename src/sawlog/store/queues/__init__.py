"""Queues: records of a topic delivered to workers one by one, and acknowledged one by one."""
