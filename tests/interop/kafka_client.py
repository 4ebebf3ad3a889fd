"""A Kafka client in its own process: reads a list of operations as JSON, runs them, and writes their results.

    python kafka_client.py HOST:PORT < operations

Apart from the tests, because the client library leaves threads and sockets behind. Bytes travel as latin-1 text.

    {"do": "create", "topic", "partitions", "settings"}           -> null
    {"do": "produce", "topic", "records", "partition", "codec"}   -> offsets   records: [value, key, headers, timestamp]
    {"do": "transactions", "topic", "values", "abort"}            -> null      a transaction each; abort: those numbers
    {"do": "delete", "topic", "partition", "before"}              -> null
    {"do": "consume", "topic", "partition", "committed"}          -> [offset, key, value, headers, timestamp], ...
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

warnings.simplefilter("ignore")

from kafka import KafkaConsumer, KafkaProducer, TopicPartition  # noqa: E402
from kafka.admin import KafkaAdminClient, NewTopic  # noqa: E402
from kafka.errors import KafkaError  # noqa: E402

_PATIENCE_S = 90.0


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


class Client:
    """The operations."""

    def __init__(self, address: str) -> None:
        self._address = address
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._admin = KafkaAdminClient(bootstrap_servers=address)
                return
            except (KafkaError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def create(self, topic: str, partitions: int = 1, settings: dict[str, object] | None = None) -> None:
        configs = {name: str(value) for name, value in (settings or {}).items()}
        self._admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])

    def produce(self, topic: str, records: list[Any], partition: int | None = None, codec: str | None = None) -> Any:
        producer = KafkaProducer(bootstrap_servers=self._address, compression_type=codec, linger_ms=5)
        sent = [
            producer.send(
                topic,
                _bytes(value),
                _bytes(key),
                [(name, _bytes(text)) for name, text in headers],
                partition=partition,
                timestamp_ms=timestamp,
            )
            for value, key, headers, timestamp in records
        ]
        producer.flush()
        offsets = [each.get(_PATIENCE_S).offset for each in sent]
        producer.close()
        return offsets

    def transactions(self, topic: str, values: list[str], abort: list[int]) -> None:
        producer = KafkaProducer(bootstrap_servers=self._address, transactional_id="t")
        producer.init_transactions()
        for number, value in enumerate(values):
            producer.begin_transaction()
            producer.send(topic, _bytes(value))
            producer.flush()
            (producer.abort_transaction if number in abort else producer.commit_transaction)()
        producer.close()

    def delete(self, topic: str, partition: int, before: int) -> None:
        self._admin.delete_records({TopicPartition(topic, partition): before})

    def consume(self, topic: str, partition: int = 0, committed: bool = False) -> list[Any]:
        place = TopicPartition(topic, partition)
        level = "read_committed" if committed else "read_uncommitted"
        consumer = KafkaConsumer(bootstrap_servers=self._address, isolation_level=level)
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        consumer.seek_to_beginning(place)
        found: list[Any] = []
        deadline = time.monotonic() + _PATIENCE_S
        while consumer.position(place) < end and time.monotonic() < deadline:
            for batch in consumer.poll(500).values():
                found += batch
        consumer.close()
        return [
            [each.offset, _text(each.key), _text(each.value), [[k, _text(v)] for k, v in each.headers], each.timestamp]
            for each in found
        ]


def main() -> None:
    """Run the operations on standard input."""
    operations = json.load(sys.stdin)
    client = Client(sys.argv[1])
    json.dump([getattr(client, each.pop("do"))(**each) for each in operations], sys.stdout)


if __name__ == "__main__":
    main()
