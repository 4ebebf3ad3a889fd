"""Other projects' test suites, run against a broker: fetching, building, running and counting each.

- `command`: what `make suites` takes, and the order of things; `suite`: what a suite must be able to do.
- `librdkafka`, `aiokafka`, `kafka_python`, `franz_go`: the suites; `pytest_suite`: what the two in Python share.
- `failover`: franz-go's ETL tests against two brokers, one of which is killed.
- `inside/`: code that runs in a suite's own environment, next to its tests.
- `brokers`: what they run against; `outcomes`: what came of it; `report`: the table; `explained`: known differences.

Everything that is fetched and built goes to a cache (`places`), nothing into the repository.
"""
