"""A blocking client for brokers that speak Kafka's protocol: `sawlog serve`, or Kafka itself.

```python
from sawlog.broker.client import connect

with connect("127.0.0.1:9092") as store:
    orders = store.create_topic("orders", partitions=4)
    orders.append(b'{"id": 1}', key=b"customer-7")          # returns when the broker has stored it
    for record in orders.partition(0).scan(): ...
    print(store.groups.describe("billing").rows[0])
```

It is what the command line uses for `-b HOST:PORT`, and has the methods of a `Store`, a `Topic`, a `Log` and `Groups`
that it needs, with the same errors. It is small on purpose: programs that consume or produce all day have clients with
rebalancing and batching in the background to choose from.

`connect("logs.example:9093", access=Access(encrypted("ca.pem"), Login("ann", password)))` uses TLS and a user.

`connection` sends and receives, `cluster` knows who leads what and tries again, `asking` has the questions about
partitions; `store`, `topic`, `log`, `groups` and `acls` are what a program sees.
"""

from __future__ import annotations

from .access import Access, Login, encrypted
from .acls import RemoteAcls
from .groups import RemoteGroup, RemoteGroups, RemoteMember
from .log import RemoteLog
from .store import RemoteStore, connect
from .topic import RemoteDescription, RemotePartition, RemoteTopic

__all__ = [
    "Access",
    "Login",
    "RemoteAcls",
    "RemoteDescription",
    "RemoteGroup",
    "RemoteGroups",
    "RemoteLog",
    "RemoteMember",
    "RemotePartition",
    "RemoteStore",
    "RemoteTopic",
    "connect",
    "encrypted",
]
