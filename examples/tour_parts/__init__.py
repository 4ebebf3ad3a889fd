"""The acts of `examples/tour.py`, one to a file: what each one does with sawlog, and the screen they share."""
