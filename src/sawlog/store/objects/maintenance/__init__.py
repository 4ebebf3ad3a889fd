"""Retention, compaction, consolidation, garbage collection and repair of a store on object storage."""
