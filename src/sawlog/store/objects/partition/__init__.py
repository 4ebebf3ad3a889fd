"""One partition on object storage: extents, appends, reads and slices."""
