"""The parts of `examples/demo.py`: the events, the streaming job, and what it is checked against."""
