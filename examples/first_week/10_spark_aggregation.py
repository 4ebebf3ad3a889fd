"""Revenue per minute and country: Spark aggregates a topic into another one, which Python reads without Spark."""

import json
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

import sawlog
import sawlog.spark

START = datetime(2026, 11, 1, 12, tzinfo=UTC)
QUERY = """
    select concat(date_format(window.start, 'HH:mm '), country) as key, cast(sum(cents) as string) as value
    from (
        select window(timestamp, '1 minute') as window, sale.*
        from (select timestamp, from_json(cast(value as string), 'country string, cents long') as sale from sales)
    )
    group by window, country
"""

with TemporaryDirectory() as directory, sawlog.open(directory) as store:
    with store.create_topic("sales", partitions=2).writer() as writer:
        for number in range(1800):  # ten per second, for three minutes
            sale = {"country": ("DE", "FR", "PT")[number % 3], "cents": number % 100}
            sold_at = START + timedelta(milliseconds=100 * number)
            writer.append(json.dumps(sale).encode(), timestamp=int(sold_at.timestamp() * 1000))
    store.create_topic("revenue")

    spark = sawlog.spark.session()
    sales = spark.read.format("sawlog").option("path", directory).option("subscribe", "sales").load()
    sales.createOrReplaceTempView("sales")
    revenue = spark.sql(QUERY).write.format("sawlog").option("path", directory).option("topic", "revenue")
    revenue.mode("append").save()  # one transaction: all windows or none
    spark.stop()

    totals = {record.key: int(record.value or b"") for record in store["revenue"].scan()}
    for key, cents in sorted(totals.items()):
        print((key or b"").decode(), cents)
    print("cents in all:", sum(totals.values()), "of", sum(number % 100 for number in range(1800)))
