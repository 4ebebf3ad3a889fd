"""Sent twice, stored once: a producer that numbers its records can retry after any failure."""

from tempfile import TemporaryDirectory

from sawlog import Log, Producer
from sawlog.errors import OutOfOrderSequence, ProducerFenced

orders = [b"order 1", b"order 2", b"order 3"]

with TemporaryDirectory() as directory:
    with Log.open(directory) as log:
        print("sent:", log.append_many(orders, producer=Producer(id=7, epoch=0, sequence=0)))
        # The acknowledgement was lost, so the producer sends the same batch again.
        print("sent again:", log.append_many(orders, producer=Producer(id=7, epoch=0, sequence=0)))

    with Log.open(directory) as log:  # the sequence is in the batches, so it survives a restart
        print("after a restart:", log.append_many(orders, producer=Producer(id=7, epoch=0, sequence=0)))
        print("the next batch:", log.append_many([b"order 4"], producer=Producer(id=7, epoch=0, sequence=3)))
        try:
            log.append_many([b"order 9"], producer=Producer(id=7, epoch=0, sequence=8))
        except OutOfOrderSequence:
            print("a gap: refused")
        log.append_many([b"order 5"], producer=Producer(id=7, epoch=1, sequence=0))  # its successor takes over
        try:
            log.append_many([b"order 5"], producer=Producer(id=7, epoch=0, sequence=4))
        except ProducerFenced:
            print("the predecessor wakes up: refused")
        print("stored:", [record.value for record in log])
