"""The customers who bought most in the last hour: one query, over the log itself."""

import json
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

import sawlog

now = datetime.now(UTC)
QUERY = """
    select value.customer, count(*) as orders, sum(value.amount) as total
    from orders
    where timestamp >= now() - interval 1 hour  -- what is older is not even read
    group by all
    order by total desc
    limit ?
"""

with TemporaryDirectory() as directory, sawlog.open(directory) as store:
    schema = "customer STRING NOT NULL, amount DOUBLE"
    orders = store.create_topic("orders", partitions=2, sawlog_schema=schema)
    for minutes in range(600, 0, -1):
        customer = "ada" if minutes % 3 == 0 else f"customer {minutes % 10}"
        value = json.dumps({"customer": customer, "amount": minutes / 4})
        orders.append(value.encode(), key=customer.encode(), timestamp=now - timedelta(minutes=minutes - 0.5))

    table = store.sql(QUERY, [3])  # a pyarrow.Table; .to_pandas() and polars.from_arrow() take it from here
    for row in table.to_pylist():
        print(row["customer"], row["orders"], row["total"])
    recent = store.sql("select count(*) as n from orders where timestamp >= ?", [now - timedelta(hours=1)])
    print("orders in the last hour:", recent["n"][0], "of", orders.describe().records)
