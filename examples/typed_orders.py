"""Orders as objects. A record that does not parse raises an error that carries it, or goes to a separate topic."""

from dataclasses import dataclass
from tempfile import TemporaryDirectory

import sawlog
from sawlog import JSON, Bytes, Headers, Utf8


@dataclass
class Order:
    id: int
    customer: str
    amount: float


with TemporaryDirectory() as directory, sawlog.open(directory) as store:
    topic = store.create_topic("orders")
    orders = topic.typed(value=JSON(Order), key=Utf8())
    orders.append(Order(1, "ada", 10.0), key="ada")
    topic.append(b'{"id": "two"}', key=b"eve")  # another program, with another schema
    orders.append_many([Order(3, "bob", 7.25), Order(4, "ada", 1.5)], key=lambda order: order.customer)

    try:
        print("total:", sum(record.value.amount for record in orders.scan()))
    except sawlog.errors.DecodeFailed as error:
        print(error)

    careful = topic.typed(value=JSON(Order), key=Utf8(), errors_to="orders-bad")
    with careful.consumer("billing") as consumer:
        print("total:", sum(record.value.amount for record in consumer.drain()))
    for bad in store["orders-bad"].typed(Bytes(), metadata=Headers()).scan():  # headers as a dict of str
        print("set aside:", bad.value, "of offset", bad.metadata["sawlog.error.offset"])
