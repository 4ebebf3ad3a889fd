"""`sawlog cheat`: print a page of examples to copy and adapt."""

from __future__ import annotations

PAGE = """\
# Once: set the store, and install completion for your shell
export SAWLOG_DATA=data
sawlog --install-completion

# Topics
sawlog topic create orders --partitions 4 --set retention.ms=7d --set compression.type=zstd
sawlog topic list
sawlog topic describe orders
sawlog topic alter orders --set retention.bytes=10GiB
sawlog topic trim orders --to @-7d --dry-run

# Writing (a topic must exist: create it first)
for topic in greetings prices logs photos copy; do sawlog topic create $topic --if-not-exists; done
echo hello | sawlog produce greetings
sawlog produce orders orders.ndjson --key customer.id --timestamp placed_at
sawlog produce prices prices.csv --key symbol --value price
tail -F app.log | sawlog produce logs --header host=web1
sawlog produce photos cat.jpg --input file --key cat

# Reading
sawlog read orders -o -100                          # the last 100 records of each partition
sawlog read orders -o @-1h: --output ndjson | jq .  # the last hour
sawlog read orders -o @2026-11-01:2026-11-02        # one day
sawlog read orders -o end --follow                  # new records only, until Ctrl-C
sawlog read orders -f '%d %p/%o %k: %v\\n' -n 10     # your own format
sawlog read orders --grep '(?i)error' -o -10000     # search
sawlog read orders --out orders.parquet             # for pandas, DuckDB, Spark

# SQL over topics, and over files beside them
sawlog sql "select count(*), max(timestamp) from orders"
sawlog sql "select decode(key), count(*) from orders group by key order by 2 desc limit 10"
sawlog sql --schema orders='status STRING' "select value.status, count(*) from orders group by all" --output csv
sawlog sql                                          # a prompt with history and completion

# Consumer groups
sawlog groups list
sawlog groups describe billing
sawlog groups seek billing --to @-1h --dry-run
sawlog groups seek billing --by -100

# Copying: keeps key, value, headers and timestamp
sawlog read orders --output ndjson | sawlog produce copy --input records

# Import from other systems, export to them
sawlog import /var/lib/kafka --dry-run              # show what would be imported
sawlog import /var/lib/kafka orders                 # keeps offsets; run it again to continue
sawlog export orders out --format kafka

# Maintenance
sawlog stats orders --plot orders.svg
sawlog verify
sawlog inspect data/topics/orders/partition-0/00000000000000000000.log
sawlog repair --plan
sawlog maintenance
sawlog doctor
sawlog bench
"""


def cheat() -> None:
    """Print a page of examples.

    \b
    Examples:
      sawlog cheat | grep read
    """
    print(PAGE, end="")
