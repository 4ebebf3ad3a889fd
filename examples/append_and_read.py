"""The first five minutes: append records, read them back by offset, in order, and as if the log were a list."""

from tempfile import TemporaryDirectory

from sawlog import Log
from sawlog.errors import OffsetOutOfRange

with TemporaryDirectory() as directory:
    with Log.open(directory) as log:
        # Each append returns once the record survives a power cut; that is the default.
        first = log.append(b"hello", key=b"greeting")
        log.append(b"world", headers={"language": b"en"})
        log.append(None, key=b"greeting")  # no value: a tombstone, as in Kafka
        print("first offset:", first)

    with Log.open(directory, mode="r") as log:  # a reader takes no lock
        print("read(1):", log.read(1).value, log.read(1).headers)
        print("log[-1]:", log[-1].key, log[-1].value)
        for record in log.scan():
            print("scan:", record.offset, record.key, record.value)
        try:
            log.read(3)
        except OffsetOutOfRange as error:
            print(f"no offset {error.requested}: there are {error.lowest} to {error.next - 1}")
