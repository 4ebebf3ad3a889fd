"""The tables of Kafka's messages: one module per family, one table per message, one field per line.

See `schema` for the notation. The version ranges cover current clients and those of recent years.
"""
