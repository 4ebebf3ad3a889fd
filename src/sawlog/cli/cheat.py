"""`sawlog cheat`: a page of examples, to be read, copied and changed."""

from __future__ import annotations

PAGE = """\
# Once: where the store is, and completion for your shell
export SAWLOG_DATA=data
sawlog --install-completion

# Topics
sawlog topic create orders --partitions 4 --set retention.ms=7d --set compression.type=zstd
sawlog topic list
sawlog topic describe orders
sawlog topic alter orders --set retention.bytes=10GiB
sawlog topic trim orders --to @-7d --dry-run

# Writing
echo hello | sawlog produce greetings
sawlog produce orders orders.ndjson --key customer.id --timestamp placed_at
sawlog produce prices prices.csv --key symbol --value price
tail -F app.log | sawlog produce logs --header host=web1
sawlog produce photos cat.jpg --input file --key cat

# Reading
sawlog read orders -o -100                          the last hundred of each partition
sawlog read orders -o @-1h: --output ndjson | jq .  the last hour
sawlog read orders -o @2026-11-01:2026-11-02        a day
sawlog read orders -o end --follow                  what comes from now on
sawlog read orders -f '%d %p/%o %k: %v\\n' -n 10     as you like it
sawlog read orders --grep '(?i)error' -o -10000     search
sawlog read orders --out orders.parquet             for pandas, DuckDB, Spark

# Consumer groups
sawlog groups list
sawlog groups describe billing
sawlog groups seek billing --to @-1h --dry-run
sawlog groups seek billing --by -100

# Copying: key, value, headers and time stay as they were
sawlog read orders --output ndjson | sawlog produce copy --input records

# From other systems, and to them
sawlog import /var/lib/kafka --dry-run              what is there, and what would happen
sawlog import /var/lib/kafka orders                 offsets and all; run again, it goes on
sawlog export orders out --format kafka

# Looking after it
sawlog stats orders --plot orders.svg
sawlog verify
sawlog inspect data/topics/orders/partition-0/00000000000000000000.log
sawlog repair --plan
sawlog upkeep
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
