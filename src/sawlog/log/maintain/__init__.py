"""What a log needs besides appends: recovery, trimming, retention, compaction, rewriting, upkeep."""
