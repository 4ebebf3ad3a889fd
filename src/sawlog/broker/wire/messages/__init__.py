"""What Kafka's messages consist of: one module per family, one table per message, one field per line.

The notation is `schema`'s. Ranges of versions are those that today's clients and those of some years ago use.
"""
