"""Events arrive by HTTP and a group processes them. Its consumer is killed with kill -9, and the next one continues."""

from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import get_context
from tempfile import TemporaryDirectory
from threading import Thread
from urllib.request import urlopen

import sawlog


class Ingest(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        events.append(self.rfile.read(int(self.headers["Content-Length"])))  # returns when the record is on disk
        self.send_response_only(201)
        self.end_headers()


def work(directory: str) -> None:
    with sawlog.open(directory) as store, store.consumer("billing", "events", auto_commit_ms=None) as consumer:
        for record in consumer:
            store["bills"].append(b"bill for " + (record.value or b""))
            consumer.commit()  # a consumer that dies before this leaves the record to the next one: at least once


if __name__ == "__main__":
    with TemporaryDirectory() as path, sawlog.open(path) as store, HTTPServer(("127.0.0.1", 0), Ingest) as server:
        events, bills = store.create_topic("events", partitions=2), store.create_topic("bills")
        Thread(target=server.serve_forever).start()
        for events_before, bills_wanted in ((0, 7), (10, 20)):
            consumer = get_context("spawn").Process(target=work, args=(path,))
            consumer.start()
            for number in range(events_before, events_before + 10):
                urlopen(f"http://127.0.0.1:{server.server_port}", data=b"event %d" % number).close()
            while len({record.value for record in bills.scan()}) < bills_wanted:
                consumer.join(timeout=0.02)
            consumer.kill()  # kill -9, in the middle of its work
            consumer.join()
            print("consumer ended with", consumer.exitcode, "- at least", bills_wanted, "events have their bill")
        server.shutdown()
