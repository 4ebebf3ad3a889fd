"""The parts of `examples/demo.py`: the events, the processes, the Spark jobs, and the expected result."""
