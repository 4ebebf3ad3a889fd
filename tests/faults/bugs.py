"""The known bugs that mutants.py plants: what others have had, and what this code would have if a line was gone.

Those with a link in /docs/internals/testing.md are incidents of other stores. Each says what is wrong in one sentence;
the edits say it in code.
"""

from __future__ import annotations

from .mutants import Edit, Mutant


def _mutant(name: str, story: str, *edits: tuple[str, str, str], by: str = "crashes") -> Mutant:
    return Mutant(name, story, tuple(Edit(*each) for each in edits), by)


#: The code as it is: what finds something here, finds a bug that nobody planted.
CONTROL = Mutant("nothing", "no bug is planted: the control", (), "")

#: Appending and syncing.
_WRITING = (
    _mutant(
        "ack before fsync",
        "an append under `always` returns before anything was synced (etcd 14370, NATS 7564)",
        ("Active.sync", "self._sync(self.segment)", "pass"),
    ),
    _mutant(
        "group commit wakes everybody",
        "who wrote while an fsync was running is told that it was in time",
        (
            "GroupCommit._pass_on",
            "served = [each for each in self._waiting if each[0] <= self.durable_offset]",
            "served, self._waiting = self._waiting, []\n"
            "        self.durable_offset = max([self.durable_offset, *(each[0] for each in served)])",
        ),
        by="threads",
    ),
    _mutant(
        "interval forgotten",
        "under an interval, the bytes that may be at risk are not counted",
        ("Appender._waits", "self.active.unsynced_bytes >= policy.bytes", "False"),
    ),
    _mutant(
        "roll before sync",
        "a full segment is sealed and the next one begun before it was synced",
        ("Active.rotate", "self._sync(old)", "pass"),
    ),
    _mutant(
        "retry of fsync",
        "an fsync that failed is tried again, and believed (PostgreSQL's fsyncgate, WiredTiger 4045)",
        ("Active._sync", "self.marks.commit.fail(error)\n        raise", "segment.storage.sync()"),
        by="errors",
    ),
    _mutant(
        "failed fsync forgotten",
        "an fsync that failed is reported, and writing goes on (CouchDB 2077, Turso 3077)",
        ("Active._sync", "self.marks.commit.fail(error)\n", "pass\n"),
        ("GroupCommit._lead", "self.fail(error)\n", "self._pass_on(-1, gate)\n"),
        by="errors",
    ),
    _mutant(
        "short write not taken back",
        "a write that failed half-way stays where it is, and the next one follows it (Prometheus 13027)",
        ("Active.cut_back", "segment.storage.truncate(size)", "pass"),
        by="errors",
    ),
    _mutant(
        "close without sync",
        "closing marks the log as ended in order, and has not synced it",
        ("Appender.close", "self.commit.ensure(self.active.segment.tail[0])", "pass"),
    ),
    _mutant(
        "watermark before the data",
        "the checkpoint says how far the log was written instead of how far it was synced",
        (
            "Checkpointer.save",
            "offset, segment, position = self._marks.durable",
            "offset, segment, position = self._marks.written",
        ),
    ),
    _mutant(
        "taken back, but not durably",
        "an append that failed is cut off, and a power cut brings it back (ours, once)",
        ("Active.undo", "self.sync_now()", "pass"),
        by="storage",
    ),
    _mutant(
        "stream not taken back",
        "a stream that fails leaves the room for its header, and what came of it, in the segment",
        ("_stream", "if segment.tail[1] == size:", "if False:"),
        ("_stream", "appender.active.cut_back(segment, size)  #", "pass  #"),
        ("Active.put", "if storage.size != before[1]:", "if False:"),
        by="errors",
    ),
)

#: Files and their names.
_FILES = (
    _mutant(
        "no directory fsync",
        "names are never synced: on files, and on the simulated disk that does what files do",
        ("FileDirectory.sync", "os.fsync(self.fd)", "pass"),
        ("Folder.sync", "with self.disk.lock:", "return\n    with self.disk.lock:"),
    ),
    _mutant(
        "new file's name not synced",
        "a segment is created, and its directory is not synced",
        ("FileDirectory.create", "self.sync()", "pass"),
        by="storage",
    ),
    _mutant(
        "replaced without fsync",
        "a small file is renamed into place before its bytes were synced (ALICE)",
        (
            "FileDirectory.replace",
            "if durable:\n            sync_data",
            "if False:\n            sync_data",
        ),
        by="storage",
    ),
    _mutant(
        "replaced without directory fsync",
        "a small file is renamed into place, and the name is not synced",
        (
            "FileDirectory.replace",
            "if durable:\n        self.sync()",
            "if False:\n        self.sync()",
        ),
        by="storage",
    ),
    _mutant(
        "short write taken for a whole one",
        "the system writes less than it was asked to, and nobody looks (Prometheus 13027)",
        ("FileStorage._write", "if written < len(data):", "if False:"),
        by="storage",
    ),
    _mutant(
        "failed write left in the file",
        "what a write brought before it failed is not cut off (rocksdb-js 748)",
        ("FileStorage._undo", "os.ftruncate(self._handle.fd, size)", "pass"),
        by="storage",
    ),
    _mutant(
        "short read taken for the end",
        "the system reads less than it was asked to, and nobody goes on",
        ("FileStorage.read", "while len(data) < size:", "while False:"),
        by="storage",
    ),
)

#: Opening after a crash.
_RECOVERING = (
    _mutant(
        "append after a torn tail",
        "what an interrupted write left is not cut, and new records follow it (cqlite 1390, amelie 17)",
        (
            "_Recovery._last",
            "self._set_aside(segment, storage, walk)\n"
            "            return self._settle(segment, storage, index, walk, below)",
            "return [self._activate(base, storage, index, walk.next_offset, size)]",
        ),
    ),
    _mutant(
        "in-place tail rewrite",
        "recovery writes the whole batches again where they are, and a second crash tears them",
        (
            "_Recovery._settle",
            "copy = self._copy(storage, 0, end, base)\n    storage.close()",
            "storage.write_at(0, storage.read(0, end)); storage.truncate(end); storage.sync(); copy = storage",
        ),
    ),
    _mutant(
        "page cache trusted",
        "recovery syncs what it can read, though the fsync that failed before has made the pages clean",
        (
            "_Recovery._settle",
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
        "corruption swallowed as a torn tail",
        "whatever is bad in the last segment is cut off, also below the watermark (NATS 7549)",
        ("_Recovery._last", "torn = walk.position >= below and", "torn = True or"),
        by="bits",
    ),
    _mutant(
        "read error taken for the end",
        "an EIO while recovery reads is taken for the end of what is whole, and the rest is cut",
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
        "opening after a crash does not look at where the log starts",
        ("_Recovery._trim", "if self.saved is None or", "if True or self.saved is None or"),
    ),
    _mutant(
        "producers not recovered",
        "after a crash nobody looks at what producers wrote since their state was last saved",
        (
            "_Recovery._producers",
            "return replayed(segments, self.config.producer_expiry_ms, found)",
            "return ProducerState(0) if found is None else ProducerState.of(found, self.config.producer_expiry_ms)",
        ),
    ),
)

#: Believing bytes.
_READING = (
    _mutant(
        "no CRC check",
        "the checksum of a batch is not looked at",
        ("first_bad_crc", "if len(rows) and", "return -1\n    if len(rows) and"),
        ("Lookup._prove", "size = len(batch)\n", "return\n"),
        ("damage:_is_good", "size = batch_size", "return True\n    size = batch_size"),
        by="bits",
    ),
    _mutant(
        "index trusted over the log",
        "an index entry is not checked against the batch that it points at (Redpanda 2144)",
        ("names_batch", "try:", "return True\n    try:"),
        ("Segment._times_are_right", "start = 0", "return True\n    start = 0"),
        by="bits",
    ),
    _mutant(
        "small files without a checksum",
        "a checkpoint, producers' or upkeep file is believed whatever its checksum says",
        ("TitledFile.decode", "LINE.opened(data)", "data[:-16]"),
        by="bits",
    ),
    _mutant(
        "catalogue without a checksum",
        "topic.json and intents are believed if they parse",
        ("documents:decode", "if FIELD.opened(data) is None:", "if False:"),
        by="bits",
    ),
    _mutant(
        "hops over damage",
        "reading hops by the length of a damaged batch, and misses the one behind it",
        ("Batches.chunks_in", "hops = True", "hops = False"),
        ("Batches.chunks_in", "skip_below = offset if hops else 0", "skip_below = offset"),
        by="bits",
    ),
    _mutant(
        "everything behind damage dropped",
        "a damaged commit of a group hides all later commits of all groups",
        ("OffsetStore._read_on", "self._position = min(next_offset, end)", "self._position = end"),
        by="bits",
    ),
)

#: Changing what is sealed, and dropping records.
_REWRITING = (
    _mutant(
        "swap without fsync",
        "a rewritten segment takes the place of the old ones before it was synced (ALICE)",
        ("_replacement", "storage.sync()", "pass"),
    ),
    _mutant(
        "swap before its name is durable",
        "the old segments go before the rename of the new one was synced (Redpanda 26755)",
        ("_swap", "directory.sync()\n", "pass\n"),
    ),
    _mutant(
        "names taken for durable",
        "recovery removes and cuts because of names that their maker had not synced when it died (ours, once)",
        ("_Recovery._keep_names", "self.directory.sync()", "pass"),
        by="promised",
    ),
    _mutant(
        "length taken for durable",
        "a file is taken to end where it does in the cache, though its end was cut off without a sync (ours, once)",
        ("_Recovery._settle", "storage.sync()  #", "pass  #"),
        by="promised",
    ),
    _mutant(
        "interrupted swap not finished",
        "opening does not look for a rewrite that had begun to replace segments",
        ("_Recovery._finish_swaps", "for name, (base, end) in found:", "for name, (base, end) in ():"),
    ),
    _mutant(
        "trim forgets the start",
        "the new log start is kept in memory, not written down",
        ("History.move_start", "self._checkpoints.save(clean=False)", "pass"),
    ),
    _mutant(
        "trim above what is durable",
        "the new log start is written down while records below it are not durable (ours, once)",
        ("trimming:trim", "appender.active.sync_now()", "pass"),
    ),
    _mutant(
        "truncated segments go in any order",
        "later segments are removed with one sync of the directory for all (ours, once)",
        ("delete_above", "directory.sync()", "pass"),
    ),
    _mutant(
        "truncation keeps the watermark",
        "the log is cut, and the checkpoint still says that more was durable",
        ("Marks.lower", "self.durable = min(tail, before)", "pass"),
        ("History.retreat", "elif tail < before:", "elif False:"),
    ),
    _mutant(
        "truncation not synced",
        "what remains of the segment that was cut is renamed into place without an fsync",
        ("cut", "copy.sync()", "pass"),
    ),
)

#: Several partitions, topics, groups.
_STORING = (
    _mutant(
        "intent applied twice",
        "rolling a transaction forward places what is there already",
        ("Placing._apply", "there = log.next_offset - part.offset", "there = 0"),
    ),
    _mutant(
        "intent not durable",
        "a transaction is placed before its intent was synced",
        (
            "Intents._place_all",
            "self.ledger.record(intent)",
            "self.ledger._area.store(intent.file, intent.encode(), durable=False)",
        ),
    ),
    _mutant(
        "staged file not synced",
        "the intent is durable, and what it speaks of is not",
        ("StagedFile.sync", "self._storage.sync()", "pass"),
    ),
    _mutant(
        "marked before it is placed",
        "a part of a transaction is marked as done, then placed",
        (
            "Placing._bring",
            "self._apply(intent, part, log)\n        self._ledger.mark(intent, number)",
            "self._ledger.mark(intent, number)\n        self._apply(intent, part, log)",
        ),
    ),
    _mutant(
        "replay placed again",
        "a transaction whose name and number are done is stored once more",
        ("Intents.commit", "if last is not None and sequence_of(last) >= (sequence or 0):", "if False:"),
    ),
    _mutant(
        "intent completed too soon",
        "the intent is removed before its batches are placed",
        (
            "Intents._place_all",
            "written = True",
            "written = True\n        self.ledger.complete(intent)",
        ),
    ),
    _mutant(
        "leases ignored",
        "what tasks have staged is swept before their job commits",
        ("StagingArea._is_lent", "for name in", "return False\n    for name in"),
        by="bits",
    ),
    _mutant(
        "topic's name not durable",
        "a topic that was made is not there after a power cut",
        ("Catalog.create", "self.topics.sync()", "pass"),
    ),
    _mutant(
        "partitions counted before they are there",
        "topic.json says more partitions before the directories were made",
        (
            "Catalog._change",
            "self._sweep_topic(directory, entry)",
            "self._sweep_topic(directory, entry)\n        changed.store(directory)",
        ),
    ),
    _mutant(
        "old note believed",
        "whoever takes a turn believes the note of the last one, wherever the file ends",
        ("SharedLog._ends_at", "return", "return True or"),
    ),
)

#: What is shown to readers, and which history a position belongs to.
_SHOWING = (
    _mutant(
        "publish before sync",
        "under `always` a record can be read when it is written, before it is durable (ours, once)",
        ("Active.__init__", 'shows_written=config.durability != "always"', "shows_written=True"),
        by="readers",
    ),
    _mutant(
        "publish half an intent",
        "each part of a transaction is shown when it is placed, while all of it may still be taken back",
        ("Intents._place_all", "appends.enter_context(log.appending())", "pass"),
        by="readers",
    ),
    _mutant(
        "half an append visible",
        "of an append that goes to several segments, each part counts when it is placed",
        (
            "Appender._place_run",
            "segment.index.add_rows(run, size - begin)",
            "segment.index.add_rows(run, size - begin)\n"
            "    held, self.blocks.current = self.blocks.current, None\n"
            "    self.appended()\n"
            "    self.blocks.current = held",
        ),
        by="readers",
    ),
    _mutant(
        "epoch not durable before its first append",
        "a new leader epoch is kept in memory until a checkpoint happens to be written",
        ("Checkpointer.note", "store_epochs(self._directory, epochs)", "pass"),
        ("Checkpointer.note", "self.save(clean=False)", "pass"),
        by="readers",
    ),
    _mutant(
        "position without epoch",
        "a consumer commits an offset and not the leader epoch in which it has read (ours, once)",
        (
            "Committed.by_member",
            'return cls(offset, topic_id, "", now_ms(), member, epoch)',
            'return cls(offset, topic_id, "", now_ms(), member, -1)',
        ),
        by="readers",
    ),
    _mutant(
        "Spark's position without epoch",
        "the streaming source keeps offsets and not the leader epochs in which they were looked up (ours, once)",
        (
            "Places.positions",
            "EpochPosition(*topic.partition(number).position(isolation=isolation))",
            "EpochPosition(topic.partition(number).position(isolation=isolation)[0])",
        ),
        by="readers",
    ),
    _mutant(
        "rewrite joins epochs",
        "compaction and merging make one batch of batches of several leader epochs",
        ("Rebatch._enter_epoch", "if epoch != self._epoch:", "if self._epoch < 0:"),
        ("Rebatch._kinds", "rows[:, LEADER_EPOCH]]", "0 * rows[:, LEADER_EPOCH]]"),
        by="readers",
    ),
    _mutant(
        "truncation begins no epoch",
        "records are cut off that somebody has read, and their offsets are given again in the same epoch",
        ("epochs_after", "if segments.visible_offset > offset:", "if False:"),
        by="readers",
    ),
    _mutant(
        "unclean open begins no epoch",
        "a log that has lost its end in a power cut goes on in the same epoch (ours, once)",
        (
            "History.take_over",
            "elif not clean and not unseen:",
            "elif False:",
        ),
        by="readers",
    ),
    _mutant(
        "late leader announces an old end",
        "whoever was syncing while the log was cut announces the end before the cut",
        (
            "GroupCommit._pass_on",
            " == self._retreats and",
            " <= self._retreats and",
        ),
        by="threads",
    ),
    _mutant(
        "visible end not lowered before a truncation",
        "readers go on to be told the old end while the records before it are being cut off",
        ("GroupCommit.retreat", "self._move(offset)", "self.durable_offset = offset"),
        ("Marks.cut", "if self.visible.offset > tail[0]:", "if False:"),
        by="readers",
    ),
    _mutant(
        "range read short",
        "a task that finds less than it was to read gives what it finds, and no error (ours, once)",
        ("_left", "if last < piece.end_offset:", "if False:"),
        by="readers",
    ),
)

#: What independent tests found in version 0.3 before it was released, put back one by one. (One more of these is above:
#: "late leader announces an old end".)
_RETURNED = (
    _mutant(
        "watermark inside a batch that is cut through",
        "truncation to the middle of a batch notes the offset of the cut with the position of the batch: killed then, "
        "a segment above the size that is copied whole loses kept records (ours, once)",
        ("Cut.tail", "return self.whole,", "return int(self.offset),"),
    ),
    _mutant(
        "interrupted append not noted",
        "an interrupt between a write and its bookkeeping leaves records that count for nobody, and a producer's batch "
        "is stored twice (ours, once)",
        (
            "Appender.place",
            "self._unfinished = segment,",
            "self._unfinished = None; _ = segment,",
        ),
    ),
    _mutant(
        "interrupted flush stores twice",
        "a writer whose flush was interrupted after its batch was placed places it again (ours, once)",
        (
            "Writer._place_batch",
            "self._target.place(batch, answer=self._pending[1])",
            "self._target.place(batch)",
        ),
    ),
    _mutant(
        "interrupted flush loses records",
        "a writer whose flush is interrupted after the builder gave up its batch has it no more (ours, once)",
        (
            "Batcher.ended",
            "taken: Taken | None = builder.taken",
            "taken = builder.taken; builder.taken = None",
        ),
    ),
    _mutant(
        "aborted stream back after a power cut",
        "what an aborted stream wrote is cut off, and not durably (ours, once)",
        (
            "_stream",
            "appender.active.undo(segment, size)",
            "appender.active.cut_back(segment, size)",
        ),
        (
            "Spool.place",
            "appender.active.undo(segment, size)",
            "appender.active.cut_back(segment, size)",
        ),
    ),
    _mutant(
        "producers' file of a longer log believed",
        "after a truncation the producers' file is believed of the log that has grown again (ours, once)",
        ("load_producers", "end if found.leader_epoch < 0 else epochs.end_of(found.leader_epoch, end)", "end"),
        by="promised",
    ),
    _mutant(
        "producers saved within an append",
        "what an append has placed and may take back is remembered of its producer (ours, once)",
        ("Appender.save_producers", "if self.blocks.current is None:", "if True:"),
        by="promised",
    ),
    _mutant(
        "trim that failed believed",
        "a trim whose files could not be removed starts the log where it was to start (ours, once)",
        ("_make_room", "if appender.directory.exists(segment.name):", "if False:"),
        by="promised",
    ),
    _mutant(
        "interrupted taking back forgotten",
        "an interrupt while an append is taken back lets what is left of it count (ours, once)",
        (
            "OpenAppends.take_back_of",
            "block.frame, self.current = None, block",
            "self.current = block.around\n        block.let_go()",
        ),
        by="promised",
    ),
    _mutant(
        "interrupted rollback keeps the index",
        "an interrupt while an append is rolled back leaves its entry in the index (ours, once)",
        ("Appender._mend", "elif self._rolling_back or segment.tail", "elif segment.tail"),
        by="promised",
    ),
    _mutant(
        "upkeep refused after an interrupt",
        "after an append that could not be rolled back upkeep is refused, as if the caller held the log (ours, once)",
        ("Appender._is_kept", "self.check_open()", "pass"),
        by="promised",
    ),
    _mutant(
        "one thread for all timed work",
        "a customer of the background that has to wait holds up the syncs and heartbeats of all others (ours, once)",
        (
            "_keep_time",
            "if len(_ready) > _idle:",
            'if "sawlog-background-work" not in {each.name for each in threading.enumerate()}:',
        ),
        by="promised",
    ),
    _mutant(
        "every fake header summed to its end",
        "a torn value that is made of headers makes opening quadratic (ours, once)",
        (
            "damage:_is_good",
            "return sums.of(position + 21, position + size) == crc",
            "return PartialSums(view).of(position + 21, position + size) == crc",
        ),
        by="promised",
    ),
    _mutant(
        "upkeep keeps partitions open",
        "each partition that upkeep has looked at stays open (ours, once)",
        (
            "Topic._upkeep",
            "if not due:\n        log.close()",
            "if not due:\n        self._logs[number] = log",
        ),
        by="promised",
    ),
    _mutant(
        "all segments rewritten at once",
        "merging and compaction open as many segments as there are (ours, once)",
        (
            "_small_runs",
            "len(runs[-1]) == most or not",
            "not",
        ),
        (
            "_try_to_replace",
            "min(len(segments), rewrite.most_segments())",
            "len(segments)",
        ),
        by="promised",
    ),
    _mutant(
        "lock given up by closing it",
        "a forked child, or a program that another thread was just starting, keeps the writer's lock (ours, once)",
        ("FileLock.release", "if self._pid == os.getpid():", "if False:"),
        by="promised",
    ),
    _mutant(
        "forked child believes its parent's list",
        "a child reads by what its parent knew when it was forked, and reports what has changed as damage (ours, once)",
        ("Access.after_fork", "if self.appender is None or self.closed:", "if True:"),
        by="promised",
    ),
    _mutant(
        "initial offset beyond the last one",
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
        "each two thousand million offsets of a gap have a segment of their own (ours, once)",
        ("_place_run", "| (rows[start:, COUNT] == 0)", "| False"),
        by="promised",
    ),
    _mutant(
        "existing directory not durable",
        "the name of a directory that was there before the log was made in it is never synced (ours, once)",
        ("FileDirectory._make", "_sync_names(path)", "pass"),
        by="promised",
    ),
    _mutant(
        "half-written intent swept",
        "opening a store removes what a live transaction in another process is writing (ours, once)",
        (
            "StagingArea.sweep",
            "continue  # in use",
            "remove_all(self.directory, id_)\n            continue",
        ),
        by="promised",
    ),
    _mutant(
        "half-written lease swept",
        "opening a store removes the lease that a task is writing, and what it has staged (ours, once)",
        ("StagingArea._is_lent", 'name.endswith(f"{LEASE}{TMP}")', "False"),
        by="promised",
    ),
    _mutant(
        "log made inside a store",
        "`Log.open` of a store's directory makes a log there, which nobody finds (ours, once)",
        ("_refuse_store", "if made.exists(STORE):", "if False:"),
        by="promised",
    ),
    _mutant(
        "upkeep keeps the lock",
        "whoever wants to write waits until upkeep has done all that is due (ours, once)",
        ("UpkeepTurns.check", "if self._lent and is_wanted(self._directory):", "if False:"),
        by="promised",
    ),
    _mutant(
        "replay known by its name alone",
        "a query with the same name and another topic is taken for a repetition, and stores nothing (ours, once)",
        ("transaction_name", "return f", "return short or f"),
        by="promised",
    ),
    _mutant(
        "completed before its intent is durable",
        "a transaction whose process died is placed before the name of its intent is synced (ours, once)",
        ("Placing._bring", "self._ledger.settle()", "pass"),
        by="promised",
    ),
    _mutant(
        "intent stripped before it is a note",
        "the batches in an intent are cut off before its new name is durable (ours, once)",
        (
            "Ledger.complete",
            "staging.remove(intent.file)\n    staging.sync()\n"
            "    if intent.name is not None and intent.data and names_offsets:\n        self.notes.strip(intent.name)",
            "if intent.name is not None and intent.data and names_offsets:\n        self.notes.strip(intent.name)\n"
            "    staging.remove(intent.file)\n    staging.sync()",
        ),
    ),
    _mutant(
        "interrupted rotation not durably undone",
        "the file of a segment that was not begun is removed, and a power cut brings it back (ours, once)",
        ("Active._switch", "self._directory.sync()  # else", "pass  # else"),
        by="promised",
    ),
    _mutant(
        "compaction believes what nobody can read",
        "a record goes because of a later one that is not visible yet, and may never be (ours, once)",
        ("compaction:_eligible", "if segment.next_offset > stable:", "if False:"),
        by="promised",
    ),
    _mutant(
        "interrupted truncation undone",
        "a truncation that readers have been told of is not finished by the next one who opens the log (ours, once)",
        ("_Recovery._cut", "None if self.report.clean else unfinished_cut(epochs, segments)", "None"),
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
        ("Appender.truncate", "if replays:", "if False:"),
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
)
