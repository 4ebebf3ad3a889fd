"""Copy and transform a topic, exactly once, in a process that is killed again and again."""

from multiprocessing import get_context
from tempfile import TemporaryDirectory

import sawlog

CHUNK = 100


def copy(directory: str) -> None:
    with sawlog.open(directory) as store:
        source = store["orders"].partition(0)
        # Each number stands for the same records in every run, so a repeated transaction is recognised.
        for number in range(source.next_offset // CHUNK):
            with store.transaction(name="copy", sequence=number) as transaction:
                if transaction.replayed:  # an earlier process has stored it
                    continue
                for record in source.scan(number * CHUNK, (number + 1) * CHUNK):
                    transaction.append("invoices", b"invoice for " + (record.value or b""), record.key)
                    transaction.append("audit", record.value)  # in both topics, or in none


if __name__ == "__main__":
    with TemporaryDirectory() as directory, sawlog.open(directory) as store:
        store.create_topic("orders").append_many([b"order %d" % number for number in range(5_000)])
        invoices, audit = store.create_topic("invoices"), store.create_topic("audit")
        for records in (1, 2_500, 5_000):
            process = get_context("spawn").Process(target=copy, args=(directory,))
            process.start()
            while invoices.describe().records < records:
                process.join(timeout=0.001)
            process.kill()  # kill -9, in the middle of its work
            process.join()
        wanted = [b"invoice for order %d" % number for number in range(5_000)]
        print(
            "invoices:", invoices.describe().records, "as they should be:", [r.value for r in invoices.scan()] == wanted
        )
        print("audited:", audit.describe().records)
