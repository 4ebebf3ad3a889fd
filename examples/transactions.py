"""Two topics, all or nothing: an order and the stock that it takes."""

from tempfile import TemporaryDirectory

import sawlog


def counts(store: sawlog.Store) -> dict[str, int]:
    """Return the number of records in each topic."""
    return {topic.name: topic.describe().records for topic in store}


with TemporaryDirectory() as directory, sawlog.open(directory) as store:
    for name in ("orders", "stock"):
        store.create_topic(name, partitions=2)

    with store.transaction() as tx:
        tx.append("orders", b"two apples", key=b"customer 7")
        tx.append("stock", b"apples: -2", key=b"apples")
    print("committed:", counts(store))

    try:
        with store.transaction() as tx:
            tx.append("orders", b"a thousand apples", key=b"customer 8")
            raise ValueError("not that many")
    except ValueError as error:
        print("aborted:", error, counts(store))

    # A job that numbers its transactions can retry after any failure.
    for attempt in (1, 2):
        with store.transaction(name="nightly", sequence=1) as tx:
            tx.append("orders", b"the nightly order", key=b"customer 1")
        print(
            "attempt",
            attempt,
            "replayed:",
            tx.replayed,
            counts(store),
        )
