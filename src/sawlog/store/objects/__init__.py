"""A store of topics on object storage: numbered commits, the state that follows from them, and extents of batches.

A commit is an object `commits/<number>` that is created only if it does not exist. It lists actions: append, create
topic, commit offsets, join a group. Every process folds the same commits into the same state, which has the offsets of
all partitions and the place of every batch. There is no other coordination: no lock, no server, no shared clock.

The modules, from the bottom; each imports only those above it in this list:

```
bucket          requests, options and errors of object storage       selftest   trials of a server's guarantees
state/          commit: the format of commits and extents            __init__   the fold, documents, names
                entries: the map of entries and its digest           partitions, groups: the actions
checkpoints     the state in one object
journal         reads and creates commits; decides what to believe
extent_reader   reads batches, with read-ahead                       cache      blocks on the local disk
session         one open store: batches many callers' requests into a commit, polls for new commits
partition       one partition; topic, slices, transaction: what is built on it
groups          consumer groups; membership: consumers and workers of queues
collect         deletes unneeded objects; maintenance: retention, consolidation, compaction
serving         the broker's view
store           `ObjectStore`; sawlog.json
repair          returns a damaged store to its last consistent state
tiered          a replica as its source reads it
```

A write: `topic` encodes a batch, `session.Committer` puts it into the next commit, `journal` creates that commit, and
the fold (`state.partitions.append`) assigns the offsets. A read: `session.look` returns the extents of a range from the
state, `extent_reader` fetches and verifies them, and `place_batches` sets the offsets in the headers.
"""
