"""Move a topic from a running Kafka: each record keeps its key, headers, time and offset. A second run continues."""

import sys
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import cast

from confluent_kafka import Consumer, Message, Producer, TopicPartition

import sawlog


def record_of(message: Message) -> sawlog.Record:
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return sawlog.Record(message.value(), message.key(), headers, message.timestamp()[1])


def move(client: dict[str, str], topic: sawlog.Topic) -> None:
    consumer = Consumer({**client, "group.id": "move"})
    for number in range(topic.partitions):
        place = TopicPartition(topic.name, number, topic.offsets()[number].next)  # where our copy ends
        consumer.assign([place])
        _, end = consumer.get_watermark_offsets(place)
        while (offset := topic.offsets()[number].next) < end:
            records = [record_of(message) for message in consumer.consume(min(500, end - offset), timeout=10)]
            topic.append_many(records, partition=number, expect_offset=offset)  # all or none, at their offsets
    consumer.close()
    print("records moved so far:", topic.describe().records, "- the first:", next(topic.scan()).headers)


with TemporaryDirectory() as directory, sawlog.open(f"{directory}/data") as store:
    serve = ["serve", f"--data={directory}/kafka", "--listen=127.0.0.1:0", "--partitions=2"]  # plays the Kafka here
    with Popen([sys.executable, "-m", "sawlog.cli", *serve], stdout=PIPE, stderr=DEVNULL, text=True) as kafka:
        client = {"bootstrap.servers": next(kafka.stdout or iter(())).split()[2].rstrip(","), "log_level": "0"}
        producer, topic = Producer(client), store.create_topic("orders", partitions=2)
        for number in range(2000):
            producer.produce("orders", b"%d" % number, b"key %d" % (number % 7), headers=[("shop", b"7")])
            if number in (999, 1999) and producer.flush() == 0:
                move(client, topic)
        kafka.terminate()
