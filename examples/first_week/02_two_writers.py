"""Two processes append to one topic at the same time, as they would insert into one SQLite database."""

from multiprocessing import get_context
from tempfile import TemporaryDirectory

import sawlog


def append(directory: str, name: str) -> None:
    with sawlog.open(directory, lock_timeout=30) as store:  # waits at most 30 s for another process's lock
        log = store["log"]
        for number in range(500):
            log.append(b"%d" % number, key=name.encode())  # one by one, each on disk when the call returns
        with log.writer() as writer:  # many at once
            for number in range(500, 10_000):
                writer.append(b"%d" % number, name.encode())


if __name__ == "__main__":
    with TemporaryDirectory() as directory, sawlog.open(directory) as store:
        log = store.create_topic("log")
        names = ("web", "worker")
        processes = [get_context("spawn").Process(target=append, args=(directory, name)) for name in names]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        print("ended with:", [process.exitcode for process in processes])
        print("records:", log.describe().records)
        for name in names:
            numbers = [int(record.value or b"") for record in log.scan() if record.key == name.encode()]
            print(name, "has all its records, in its order:", numbers == list(range(10_000)))
