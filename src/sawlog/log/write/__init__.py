"""Making a log grow, and cutting its end: everything that needs the writer's lock and moves the watermarks."""
