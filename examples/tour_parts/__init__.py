"""The acts of `examples/tour.py`, one per file, and the screen that they share."""
