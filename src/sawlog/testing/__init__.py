"""Shipped for the tests of whoever builds on sawlog: storages that fail on demand. Our own tests use them, too."""

from .faulty import Call, Fault, FaultyDirectory

__all__ = ["Call", "Fault", "FaultyDirectory"]
