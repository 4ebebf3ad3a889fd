"""Reading what is visible: records, Arrow tables, raw batches; and checking what is there."""
