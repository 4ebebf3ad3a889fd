"""One process writes, another follows: no server, no lock, no polling loop."""

import multiprocessing
from tempfile import TemporaryDirectory

from sawlog import Log


def read_along(directory: str) -> None:
    with Log.open(directory, mode="r") as log:
        for record in log.follow(start=0, timeout=30):  # waits for new records; stops after 30 seconds without one
            print(f"reader: {record.offset} {(record.value or b'').decode()}", flush=True)
            if record.value == b"bye":
                return


if __name__ == "__main__":
    with TemporaryDirectory() as directory, Log.open(directory) as log:
        log.append(b"written before the reader started")
        reader = multiprocessing.get_context("spawn").Process(target=read_along, args=(directory,))
        reader.start()
        for number in range(3):
            log.append(b"event %d" % number)
        log.append(b"bye")
        reader.join()
        print("writer: the reader ended with", reader.exitcode)
