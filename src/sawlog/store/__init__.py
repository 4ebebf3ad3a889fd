"""Named topics made of partitions: what every backend shares, and the backends: a directory, object storage."""
