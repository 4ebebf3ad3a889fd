"""Bugs for mutants.py to plant: known bugs of other stores, and bugs that a missing line would cause here.

Those with a link in /docs/internals/testing.md are incidents of other stores. Each bug has a description in one
sentence and the edits that plant it.
"""

from __future__ import annotations

from .mutants import Edit, Mutant


def _mutant(name: str, story: str, *edits: tuple[str, str, str], by: str = "crashes") -> Mutant:
    return Mutant(name, story, tuple(Edit(*each) for each in edits), by)


#: The unchanged code: whatever is found here is a bug that nobody planted.
CONTROL = Mutant("nothing", "no bug is planted: the control", (), "")

#: Appending and syncing.
_WRITING = (
    _mutant(
        "ack before fsync",
        "an append under `always` returns before anything was synced (etcd 14370, NATS 7564)",
        ("ActiveSegment.sync", "self._sync(self.segment)", "pass"),
    ),
    _mutant(
        "group commit wakes everybody",
        "a thread that wrote while an fsync was already running is told that its records are durable",
        (
            "Durability._hand_over",
            "served = [each for each in self._waiting if each[0] <= self.durable_offset]",
            "served, self._waiting = self._waiting, []\n"
            "        self.durable_offset = max([self.durable_offset, *(each[0] for each in served)])",
        ),
        by="threads",
    ),
    _mutant(
        "interval forgotten",
        "under an interval policy, the limit on unsynced bytes is ignored",
        ("Appender.settle", "if self.must_sync() and", 'if self.config.durability == "always" and'),
    ),
    _mutant(
        "roll before sync",
        "a full segment is sealed, and the next one created, before it is synced",
        ("ActiveSegment.rotate", "self._sync(old)", "pass"),
    ),
    _mutant(
        "retry of fsync",
        "a failed fsync is retried, and its success believed (PostgreSQL's fsyncgate, WiredTiger 4045)",
        ("ActiveSegment._sync", "self.durability.fail(error)\n        raise", "segment.storage.sync()"),
        by="errors",
    ),
    _mutant(
        "failed fsync forgotten",
        "a failed fsync is reported, and writing continues (CouchDB 2077, Turso 3077)",
        ("ActiveSegment._sync", "self.durability.fail(error)\n", "pass\n"),
        ("Durability._lead", "self.fail(error)\n", "self._hand_over(-1, gate)\n"),
        by="errors",
    ),
    _mutant(
        "partial write not rolled back",
        "the part that a failed write left stays in the file, and the next write follows it (Prometheus 13027)",
        ("ActiveSegment.roll_back", "segment.storage.truncate(position)", "pass"),
        ("ActiveSegment.truncate_leftover", "if segment.storage.size > segment.tail[1]:", "if False:"),
        by="errors",
    ),
    _mutant(
        "close without sync",
        "closing marks the log as closed cleanly without syncing it",
        ("Appender.close", "self.durability.ensure_durable(self.active.segment.tail[0])", "pass"),
    ),
    _mutant(
        "watermark before the data",
        "the checkpoint records how far the log was written instead of how far it was synced",
        (
            "Checkpointer.save",
            "offset, segment, position = self._durability.durable",
            "offset, segment, position = self._durability.written",
        ),
    ),
    _mutant(
        "rolled back, but not durably",
        "a failed append is truncated, but reappears after a power cut (ours, once)",
        ("ActiveSegment.roll_back", "self.sync_now()", "pass"),
        by="storage",
    ),
    _mutant(
        "stream not rolled back",
        "a stream that fails leaves its incomplete batch in the segment",
        ("Appender.roll_back", "self.recover()", "self.active.unfinished = None"),
        ("ActiveSegment.truncate_leftover", "if segment.storage.size > segment.tail[1]:", "if False:"),
        by="errors",
    ),
)

#: Files and their names.
_FILES = (
    _mutant(
        "no directory fsync",
        "directories are never synced, neither on files nor on the simulated disk",
        ("FileDirectory.sync", "os.fsync(self.fd)", "pass"),
        ("Folder.sync", "with self.disk.lock:", "return\n    with self.disk.lock:"),
    ),
    _mutant(
        "new file's name not synced",
        "a segment is created without syncing its directory",
        ("FileDirectory.create", "self.sync()", "pass"),
        by="storage",
    ),
    _mutant(
        "replaced without fsync",
        "a small file is renamed into place before its content is synced (ALICE)",
        (
            "FileDirectory.replace",
            "if durable:\n            sync_data",
            "if False:\n            sync_data",
        ),
        by="storage",
    ),
    _mutant(
        "replaced without directory fsync",
        "a small file is renamed into place without syncing the directory",
        (
            "FileDirectory.replace",
            "if durable:\n        self.sync()",
            "if False:\n        self.sync()",
        ),
        by="storage",
    ),
    _mutant(
        "adopted without fsync",
        "a staged file becomes a segment before the offsets in it are synced",
        ("NumberedFile.sync", "self.storage.sync()", "pass"),
    ),
    _mutant(
        "short write accepted",
        "the system writes fewer bytes than requested, and nobody checks (Prometheus 13027)",
        ("FileStorage._write", "if written < len(data):", "if False:"),
        by="storage",
    ),
    _mutant(
        "failed write left in the file",
        "what a write stored before it failed is not truncated (rocksdb-js 748)",
        ("FileStorage._undo", "os.ftruncate(self._handle.fd, size)", "pass"),
        by="storage",
    ),
    _mutant(
        "short read accepted",
        "the system reads fewer bytes than requested, and nobody reads the rest",
        ("FileStorage.read", "while len(data) < size:", "while False:"),
        by="storage",
    ),
)

#: Opening after a crash.
_RECOVERING = (
    _mutant(
        "append after a torn tail",
        "a torn tail is not truncated, and new records follow it (cqlite 1390, amelie 17)",
        (
            "_Recovery._last",
            "self._save_torn_tail(segment, storage, walk)\n"
            "            return self._make_durable(segment, storage, index, walk, below)",
            "return [self._activate(base, storage, index, walk.next_offset, size)]",
        ),
    ),
    _mutant(
        "in-place tail rewrite",
        "recovery rewrites complete batches in place, and a second crash tears them",
        (
            "_Recovery._make_durable",
            "copy = self._copy(storage, 0, end, base)\n    storage.close()",
            "storage.write_at(0, storage.read(0, end)); storage.truncate(end); storage.sync(); copy = storage",
        ),
    ),
    _mutant(
        "page cache trusted",
        "recovery syncs what it can read, although an earlier failed fsync has marked the pages as clean",
        (
            "_Recovery._make_durable",
            "copy = self._copy(storage, 0, end, base)\n    storage.close()",
            "storage.truncate(end); storage.sync(); copy = storage",
        ),
    ),
    _mutant(
        "recovery's copy not synced",
        "the copy of the tail is renamed into place without an fsync",
        ("_Recovery._copy", "copy.sync()", "pass"),
    ),
    _mutant(
        "corruption treated as a torn tail",
        "any damage in the last segment is truncated, also below the watermark (NATS 7549)",
        ("_Recovery._last", "torn = walk.position >= below and", "torn = True or"),
        by="bits",
    ),
    _mutant(
        "read error treated as the end",
        "an EIO during recovery counts as the end of the complete batches, and the rest is truncated",
        (
            "Batches.walk",
            "except CorruptBatch as damage:",
            "except (CorruptBatch, StorageError) as error:\n"
            "        damage = CorruptBatch(str(error), path=self.path, position=end)",
        ),
        by="errors",
    ),
    _mutant(
        "trim undone by recovery",
        "opening after a crash ignores where the log starts",
        ("_Recovery._trim", "if self.saved is None or", "if True or self.saved is None or"),
    ),
    _mutant(
        "producers not recovered",
        "after a crash, what producers wrote since their state was last saved is ignored",
        (
            "_Recovery._producers",
            "return replayed(segments, self.config.producer_expiry_ms, found, lowest=lowest)",
            "return ProducerState(0) if found is None else ProducerState.of(found, self.config.producer_expiry_ms)",
        ),
    ),
)

#: Believing bytes.
_READING = (
    _mutant(
        "no CRC check",
        "the checksum of a batch is not verified",
        ("first_bad_crc", "if len(rows) and", "return -1\n    if len(rows) and"),
        ("Lookup._check_crc", "size = len(batch)\n", "return\n"),
        ("batches:_is_good", "size = batch_size", "return True\n    size = batch_size"),
        by="bits",
    ),
    _mutant(
        "index trusted over the log",
        "an index entry is not compared with the batch that it points to (Redpanda 2144)",
        ("names_batch", "try:", "return True\n    try:"),
        ("Segment._time_index_is_complete", "start = 0", "return True\n    start = 0"),
        by="bits",
    ),
    _mutant(
        "small files without a checksum",
        "a checkpoint, producers' or maintenance file is trusted whatever its checksum is",
        ("TitledFile.decode", "LINE.strip_from(data)", "data[:-16]"),
        by="bits",
    ),
    _mutant(
        "catalog without a checksum",
        "topic.json and intents are trusted if they parse",
        ("checksummed:decode", "if FIELD.strip_from(data) is None:", "if False:"),
        by="bits",
    ),
    _mutant(
        "length of a damaged batch trusted",
        "reading skips a damaged batch by its length, and misses the one after it",
        ("Batches.chunks_in", "hops = True", "hops = False"),
        ("Batches.chunks_in", "skip_below = offset if hops else 0", "skip_below = offset"),
        by="bits",
    ),
    _mutant(
        "everything after damage dropped",
        "a damaged commit of a group hides all later commits of all groups",
        ("OffsetStore._read_on", "self._position = min(next_offset, end)", "self._position = end"),
        by="bits",
    ),
)

#: Changes of sealed segments, and dropped records.
_REWRITING = (
    _mutant(
        "swap without fsync",
        "a rewritten segment replaces the old ones before it is synced (ALICE)",
        ("_replacement", "storage.sync()", "pass"),
    ),
    _mutant(
        "swap before its name is durable",
        "the old segments are deleted before the rename of the new one is synced (Redpanda 26755)",
        ("_swap", "directory.sync()\n", "pass\n"),
    ),
    _mutant(
        "names assumed durable",
        "recovery deletes and truncates because of names that were not synced when their process died (ours, once)",
        ("_Recovery._sync_names", "self.directory.sync()", "pass"),
        by="promised",
    ),
    _mutant(
        "length assumed durable",
        "the length of a file in the page cache is trusted, although it was truncated without a sync (ours, once)",
        ("_Recovery._make_durable", "storage.sync()  #", "pass  #"),
        by="promised",
    ),
    _mutant(
        "interrupted swap not finished",
        "opening ignores a rewrite that had begun to replace segments",
        ("_Recovery._finish_swaps", "for name, (base, end) in found:", "for name, (base, end) in ():"),
    ),
    _mutant(
        "trim forgets the start",
        "the new log start is kept in memory only",
        ("LogLineage.move_start", "self._checkpoints.save(clean=False)", "pass"),
    ),
    _mutant(
        "trim above what is durable",
        "the new log start is recorded while records below it are not durable (ours, once)",
        ("retention:trim", "appender.active.sync_now()", "pass"),
    ),
    _mutant(
        "truncated segments deleted in any order",
        "the segments after a truncation are deleted with a single sync of the directory (ours, once)",
        ("delete_above", "directory.sync()", "pass"),
    ),
    _mutant(
        "truncation keeps the watermark",
        "the log is truncated, and the checkpoint still says that more is durable",
        ("Durability.lower_durable", "self.durable = min(tail, before)", "pass"),
        ("LogLineage.record_truncation", "elif tail < before:", "elif False:"),
    ),
    _mutant(
        "truncation not synced",
        "what remains of the truncated segment is renamed into place without an fsync",
        ("truncate_segment", "copy.sync()", "pass"),
    ),
)

#: Several partitions, topics, groups.
_STORING = (
    _mutant(
        "intent applied twice",
        "rolling a transaction forward places batches that are already there",
        ("Placement._apply", "there = log.next_offset - part.offset", "there = 0"),
    ),
    _mutant(
        "intent not durable",
        "a transaction is placed before its intent is synced",
        (
            "Intents._place_all",
            "self.pending.record(intent)",
            "self.pending._staging.store(intent.file, intent.encode(), durable=False)",
        ),
    ),
    _mutant(
        "staged file not synced",
        "the intent is durable, but the batches that it refers to are not",
        ("StagedFile.sync", "self._storage.sync()", "pass"),
    ),
    _mutant(
        "marked before it is placed",
        "a part of a transaction is marked as done, then placed",
        (
            "Placement._bring",
            "self._apply(intent, part, log)\n    self._pending.mark(intent, number)",
            "self._pending.mark(intent, number)\n    self._apply(intent, part, log)",
        ),
    ),
    _mutant(
        "replay placed again",
        "a transaction whose name and number are already stored is stored again",
        ("Intents.commit", "if last is not None and sequence_of(last) >= (sequence or 0):", "if False:"),
    ),
    _mutant(
        "intent completed too soon",
        "the intent is removed before its batches are placed",
        (
            "Intents._place_all",
            "written = True",
            "written = True\n        self.pending.complete(intent)",
        ),
    ),
    _mutant(
        "leases ignored",
        "what tasks have staged is removed before their job commits",
        ("StagingDirectory._is_lent", "for name in", "return False\n    for name in"),
        by="bits",
    ),
    _mutant(
        "topic's name not durable",
        "a topic that was created is gone after a power cut",
        ("Catalog.create", "self.topics.sync()", "pass"),
    ),
    _mutant(
        "partitions counted before they exist",
        "topic.json has more partitions before their directories are created",
        (
            "Catalog._change",
            "self._sweep_topic(directory, entry)",
            "self._sweep_topic(directory, entry)\n        changed.store(directory)",
        ),
    ),
    _mutant(
        "acknowledged after a failed fsync elsewhere",
        "a process acknowledges although the fsync of another one has failed",
        ("TurnWords.allows_sync", " and not self.view[_FAILED]", ""),
        by="promised",
    ),
    _mutant(
        "opened beside a failing fsync",
        "a process opens the active segment while another one syncs it, and is not told that this fails",
        ("TurnWords.await_syncs", "while self.view[_SYNCING]:", "while False:"),
        by="promised",
    ),
    _mutant(
        "turn kept during the fsync",
        "a process that writes beside others keeps them waiting while it waits for the disk",
        ("Appender._sync", "self._end_turn_soon()", "pass"),
        by="promised",
    ),
    _mutant(
        "truncated end believed",
        "the published end of a history that was truncated counts as durable",
        ("Durability.learn", "epoch != self.epoch or", ""),
        by="promised",
    ),
    _mutant(
        "old note trusted",
        "a process that takes its turn trusts the note of the previous one, wherever the file ends",
        ("SharedLog._ends_at", "return", "return True or"),
    ),
)

#: Visibility of records, and leader epochs of positions.
_SHOWING = (
    _mutant(
        "publish before sync",
        "under `always`, a record can be read before it is durable (ours, once)",
        ("ActiveSegment.__init__", 'publishes_written=config.durability != "always"', "publishes_written=True"),
        by="readers",
    ),
    _mutant(
        "publish half an intent",
        "each part of a transaction becomes visible when it is placed, while all of it may still be rolled back",
        ("Intents._place_all", "appends.enter_context(log._appending())", "pass"),
        by="readers",
    ),
    _mutant(
        "half an append visible",
        "the parts of an append to several segments count one by one",
        (
            "Appender._place_run",
            "segment.index.add_rows(run, size - begin)",
            "segment.index.add_rows(run, size - begin)\n"
            "    held, self.block = self.block, None\n"
            "    self.complete_append()\n"
            "    self.block = held",
        ),
        by="readers",
    ),
    _mutant(
        "epoch not durable before its first append",
        "a new leader epoch is kept in memory until the next checkpoint",
        ("Checkpointer.record_epochs", "store_epochs(self._directory, epochs)", "pass"),
        ("Checkpointer.record_epochs", "self.save(clean=False, cutting=cutting)", "pass"),
        by="readers",
    ),
    _mutant(
        "position without epoch",
        "a consumer commits an offset without its leader epoch (ours, once)",
        (
            "Committed.by_member",
            'return cls(offset, topic_id, "", now_ms(), member, epoch)',
            'return cls(offset, topic_id, "", now_ms(), member, -1)',
        ),
        by="readers",
    ),
    _mutant(
        "Spark's position without epoch",
        "the streaming source keeps offsets without their leader epochs (ours, once)",
        (
            "SubscribedPartitions.positions",
            "EpochPosition(*topic.partition(number).position(isolation=isolation))",
            "EpochPosition(topic.partition(number).position(isolation=isolation)[0])",
        ),
        by="readers",
    ),
    _mutant(
        "rewrite joins epochs",
        "compaction and merging join batches of several leader epochs",
        ("Rebatcher._enter_epoch", "if epoch != self._epoch:", "if self._epoch < 0:"),
        ("Rebatcher._kinds", "rows[:, LEADER_EPOCH]]", "0 * rows[:, LEADER_EPOCH]]"),
        by="readers",
    ),
    _mutant(
        "truncation begins no epoch",
        "records that were read are truncated, and their offsets are reused in the same epoch",
        ("epochs_after", "if segments.visible_offset > offset:", "if False:"),
        by="readers",
    ),
    _mutant(
        "unclean open begins no epoch",
        "a log that has lost its end in a power cut continues in the same epoch (ours, once)",
        (
            "LogLineage.take_over",
            "elif not clean and not unseen:",
            "elif False:",
        ),
        by="readers",
    ),
    _mutant(
        "late leader announces an old end",
        "the thread that was syncing during a truncation publishes the end from before it",
        (
            "Durability._hand_over",
            " == self._truncations and",
            " <= self._truncations and",
        ),
        by="threads",
    ),
    _mutant(
        "visible end not lowered before a truncation",
        "readers still see the old end while the records before it are being truncated",
        ("Durability._truncate", "self._move(offset)", "self.durable_offset = offset"),
        ("Durability.truncate", "if self._segments.visible_offset > tail[0]:", "if False:"),
        by="readers",
    ),
    _mutant(
        "range read short",
        "a task that finds fewer records than planned returns them without an error (ours, once)",
        ("_remaining", "if last < planned.end_offset:", "if False:"),
        by="readers",
    ),
)

#: Bugs that independent tests found in version 0.3 before its release, put back one by one. (One more is above:
#: "late leader announces an old end".)
_RETURNED = (
    _mutant(
        "watermark inside a truncated batch",
        "truncating inside a batch records the offset of the cut with the position of the batch; if the process is "
        "killed then, a large segment loses records that were to be kept (ours, once)",
        ("CutPoint.tail", "return self.whole,", "return int(self.offset),"),
    ),
    _mutant(
        "interrupted append not recorded",
        "an interrupt between a write and its bookkeeping leaves records that do not count, and a producer's batch is "
        "stored twice (ours, once)",
        (
            "Appender.recover",
            "unfinished = active.unfinished",
            "unfinished = None",
        ),
    ),
    _mutant(
        "interrupted flush stores twice",
        "a writer whose flush was interrupted after its batch was placed stores it again (ours, once)",
        (
            "Writer._place_batch",
            "self._target.place(batch, placement=self._pending[1])",
            "self._target.place(batch)",
        ),
    ),
    _mutant(
        "interrupted flush loses records",
        "a writer whose flush is interrupted after the batch has left the builder loses it (ours, once)",
        (
            "Batcher.ended",
            "taken: Taken | None = builder.taken",
            "taken = builder.taken; builder.taken = None",
        ),
    ),
    _mutant(
        "aborted stream reappears after a power cut",
        "what an aborted stream wrote is truncated, but not durably (ours, once)",
        (
            "ActiveSegment.roll_back",
            "if segment.storage.size > position:",
            "if segment.storage.size > position + 4096:\n"
            "            segment.storage.truncate(position)\n            return\n"
            "        if segment.storage.size > position:",
        ),
    ),
    _mutant(
        "producers' file of a longer log trusted",
        "after a truncation, the old producers' file is trusted once the log has grown again (ours, once)",
        ("load_producers", "epochs.end_of(found.leader_epoch, end)", "end"),
        ("after_cut", "directory.remove(PRODUCERS)", "pass"),
        by="promised",
    ),
    _mutant(
        "producers saved during an append",
        "the producers' file contains batches of an append that may still be rolled back (ours, once)",
        ("Appender.save_producers", "if self.block is None:", "if True:"),
        ("after_cut", "directory.remove(PRODUCERS)", "pass"),
        by="promised",
    ),
    _mutant(
        "failed trim trusted",
        "after a trim whose files could not be deleted, the log starts at the new offset (ours, once)",
        ("_make_room", "if appender.directory.exists(segment.name):", "if False:"),
        by="promised",
    ),
    _mutant(
        "interrupted rollback forgotten",
        "after an interrupt during a rollback, the rest of the append counts (ours, once)",
        (
            "Appender.roll_back",
            "    self.recover()\n    finally:\n",
            "    self.recover()\n    except BaseException:\n        self.active.unfinished = None\n        raise\n"
            "    finally:\n",
        ),
        by="promised",
    ),
    _mutant(
        "interrupted rollback keeps the index",
        "an interrupt during a rollback leaves the entry of the append in the index (ours, once)",
        ("Appender._return_to", "reindex = reindex or active.segment.tail", "reindex = active.segment.tail"),
        by="promised",
    ),
    _mutant(
        "maintenance refused after an interrupt",
        "after an append that could not be rolled back, maintenance is refused as if the log were held (ours, once)",
        ("Appender._holds_lock", "self.check_open()", "pass"),
        by="promised",
    ),
    _mutant(
        "one thread for all timed work",
        "a background task that waits delays the syncs and heartbeats of all others (ours, once)",
        (
            "_dispatch",
            "if len(_ready) > _idle:",
            'if "sawlog-background-work" not in {each.name for each in threading.enumerate()}:',
        ),
        by="promised",
    ),
    _mutant(
        "every fake header checksummed to its end",
        "a torn value that consists of batch headers makes opening quadratic (ours, once)",
        (
            "batches:_is_good",
            "return sums.of(position + 21, position + size) == crc",
            "return PartialSums(view).of(position + 21, position + size) == crc",
        ),
        by="promised",
    ),
    _mutant(
        "maintenance keeps partitions open",
        "each partition that maintenance has checked stays open (ours, once)",
        (
            "OpenPartitions._maintain",
            "log.close()\n        return MaintenanceReport(log.path, tiering=problem)",
            "self.logs[number] = log\n        return MaintenanceReport(log.path, tiering=problem)",
        ),
        by="promised",
    ),
    _mutant(
        "all segments rewritten at once",
        "merging and compaction open all segments at once (ours, once)",
        (
            "_small_runs",
            "len(runs[-1]) == most or not",
            "not",
        ),
        (
            "_try_to_replace",
            "min(len(segments), rewrite.max_segments())",
            "len(segments)",
        ),
        by="promised",
    ),
    _mutant(
        "lock released by closing it",
        "a forked child, or a program that another thread is just starting, keeps the writer's lock (ours, once)",
        ("FileLock.release", "if self._pid == os.getpid():", "if False:"),
        by="promised",
    ),
    _mutant(
        "forked child trusts its parent's list",
        "a child reads with the list that its parent had at the fork, and reports changes since then as damage (ours, "
        "once)",
        ("Access.after_fork", "if (self.appender is None and self.waiting is None) or self.closed:", "if True:"),
        by="promised",
    ),
    _mutant(
        "initial offset too large",
        "a log begins at an offset at which no record can be read (ours, once)",
        (
            "LogConfig.__post_init__",
            "self.initial_offset, 0, MAX_OFFSET)",
            "self.initial_offset, 0, 2**63)",
        ),
        by="promised",
    ),
    _mutant(
        "gap filled with files",
        "a gap gets one segment per two billion offsets (ours, once)",
        ("_place_run", "| (rows[start:, COUNT] == 0)", "| False"),
        by="promised",
    ),
    _mutant(
        "existing directory not durable",
        "the name of a directory that existed before the log was created in it is never synced (ours, once)",
        ("FileDirectory._make", "_sync_names(path)", "pass"),
        by="promised",
    ),
    _mutant(
        "half-written intent removed",
        "opening a store removes what a live transaction in another process is writing (ours, once)",
        (
            "StagingDirectory.sweep",
            "continue  # in use",
            "remove_all(self.directory, id_)\n            continue",
        ),
        by="promised",
    ),
    _mutant(
        "half-written lease removed",
        "opening a store removes the lease that a task is writing, and what it has staged (ours, once)",
        ("StagingDirectory._is_lent", 'name.endswith(f"{LEASE}{TMP}")', "False"),
        by="promised",
    ),
    _mutant(
        "log created inside a store",
        "`Log.open` on a store's directory creates a log there that nobody finds (ours, once)",
        ("_refuse_store", "if made.exists(STORE):", "if False:"),
        by="promised",
    ),
    _mutant(
        "maintenance keeps the lock",
        "a writer waits until maintenance has done everything that is due (ours, once)",
        ("MaintenanceLock.check", "if self._lent and is_release_requested(self._directory):", "if False:"),
        by="promised",
    ),
    _mutant(
        "replay recognised by its name alone",
        "a query with the same name and another topic counts as a replay, and stores nothing (ours, once)",
        ("ReplayCandidate.transaction_name", "return f", "return short or f"),
        by="promised",
    ),
    _mutant(
        "completed before its intent is durable",
        "the transaction of a dead process is placed before the name of its intent is synced (ours, once)",
        ("Placement._bring", "self._pending.settle()", "pass"),
        by="promised",
    ),
    _mutant(
        "intent stripped before it is a note",
        "the batches in an intent are truncated before its new name is durable (ours, once)",
        (
            "PendingTransactions.complete",
            "staging.remove(intent.file)\n    staging.sync()\n"
            "    if intent.name is not None and intent.data:\n        self.names.strip(intent.name)",
            "if intent.name is not None and intent.data:\n        self.names.strip(intent.name)\n"
            "    staging.remove(intent.file)\n    staging.sync()",
        ),
    ),
    _mutant(
        "interrupted rotation not durably undone",
        "the file of a segment that was never used is deleted, but reappears after a power cut (ours, once)",
        ("delete_above", "directory.sync()", "pass"),
        by="promised",
    ),
    _mutant(
        "rotation interrupted twice forgotten",
        "a second interrupt leaves the empty file of the next segment, which hides what the old one gets (ours, once)",
        ("ActiveSegment.rotate", "self.unfinished = before or old.tail", "pass"),
        by="promised",
    ),
    _mutant(
        "truncation interrupted twice forgotten",
        "after two interrupts during a truncation, appends go on in a file that is half cut (ours, once)",
        ("Appender.begin_change", "self.active.unfinished = CHANGE", "pass"),
        by="promised",
    ),
    _mutant(
        "leftover of an interrupted append sealed",
        "bytes that an interrupted append has left stay at the end of a segment that is sealed (ours, once)",
        ("ActiveSegment.truncate_leftover", "if segment.storage.size > segment.tail[1]:", "if False:"),
        by="promised",
    ),
    _mutant(
        "compaction trusts what nobody can read",
        "a record is removed because of a later one that is not visible yet, and may never be (ours, once)",
        ("compaction:_eligible", "if segment.next_offset > stable:", "if False:"),
        by="promised",
    ),
    _mutant(
        "interrupted truncation undone",
        "a truncation that readers know of is not finished when the log is next opened (ours, once)",
        (
            "_Recovery._finish_truncation",
            "None if self.report.clean else unfinished_truncation(epochs, segments)",
            "None",
        ),
        by="readers",
    ),
)

#: Transactions of Kafka's producers.
_DECIDING = (
    _mutant(
        "a marker counts before it is durable",
        "records are shown as committed while the marker is on its way to the disk, where a power cut takes it back",
        ("Transactions._end", "if marker >= self._visible:", "if False:"),
        by="promised",
    ),
    _mutant(
        "open transactions forgotten",
        "the file of producers does not say which transactions were open: after a restart they seem to be committed",
        ("ProducerState.encode", "list(known.open.values())", "[]"),
    ),
    _mutant(
        "truncated marker still counts",
        "a truncation takes a marker away, and its transaction stays decided",
        ("Appender._cut", "if replays:", "if False:"),
    ),
)

#: The beginning and end of a log, and every record of them.
_MISSING = (
    _mutant(
        "missing beginning unnoticed",
        "the first segment is gone, and the log is opened for writing as if it had been trimmed (ours, once)",
        ("_Recovery._missing_beginning", "if saved is None or", "if True or"),
        by="missing",
    ),
    _mutant(
        "visible end forgotten by the writer",
        "the tail of a killed writer is gone, and its offsets are used again (ours, once)",
        ("_Recovery._load_visible", "if published is None:", "if True:"),
        by="missing",
    ),
    _mutant(
        "readers end with the files",
        "a reader of a log whose end is missing gets a shorter log and no error (ours, once)",
        ("FollowedSegmentSet._with_gaps", "if not (lost_first or short or lost_list) or", "if True or"),
        by="missing",
    ),
    _mutant(
        "offsets of a lost tail reused",
        "what readers had seen is reported as lost, and its offsets are used again",
        ("_Recovery._continue_after_damage", "self.seen_end, ", ""),
        by="missing",
    ),
    _mutant(
        "missing middle unnoticed",
        "a sealed segment is gone or shorter, and opening for writing does not say so (ours, once)",
        ("_Recovery._check_ends", "if saved is None or", "if True or"),
        by="missing",
    ),
    _mutant(
        "lost beginning forgotten",
        "opening a log without its beginning reports that once, and never again",
        (
            "_Recovery._missing_beginning",
            "return [self._placeholder(saved.log_start, first, Where.BEGINNING)]",
            "self._find(Where.BEGINNING, ''); return []",
        ),
        by="missing",
    ),
    _mutant(
        "trim deletes first",
        "segments are deleted before the new start is recorded: a crash in between looks like a loss",
        (
            "retention:trim",
            "appender.lineage.set_remote(None)  # first",
            "drop(appender, kept, gone)\n        appender.lineage.set_remote(None)  # first",
        ),
    ),
    _mutant(
        "trim on a full disk leaves no name",
        "segments are deleted to make room for the new start, and a crash before it is recorded looks like a loss",
        ("_make_room", "_leave_name(appender, segment)", "pass"),
        by="promised",
    ),
    _mutant(
        "removal ends with the checkpoint",
        "a log is removed segment by segment while its checkpoint says that they exist (ours, once)",
        ("Access.remove", "for name in (CHECKPOINT, VISIBLE):", "for name in ():"),
        by="promised",
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *_WRITING,
    *_FILES,
    *_RECOVERING,
    *_READING,
    *_REWRITING,
    *_STORING,
    *_SHOWING,
    *_DECIDING,
    *_RETURNED,
    *_MISSING,
)
