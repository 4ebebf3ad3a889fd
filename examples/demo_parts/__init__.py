"""The parts of `examples/demo.py`: the events, the streaming job, and the expected result."""
