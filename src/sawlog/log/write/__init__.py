"""Makes a log grow and truncates it: everything that needs the writer's lock and moves the watermarks."""
