"""Other projects' test suites, run against a broker: fetching, building, running and counting each.

- `command`: the command line of `make suites`; `suite`: the interface of a suite.
- `librdkafka`, `aiokafka`, `kafka_python`, `franz_go`: the suites; `pytest_suite`: shared by the two in Python.
- `failover`: franz-go's ETL tests against two brokers, one of which is killed.
- `inside/`: code that runs in a suite's own environment, next to its tests.
- `brokers`: the brokers under test; `outcomes`: the results; `report`: the table; `explained`: known differences.

Everything is fetched and built in a cache (`places`), nothing in the repository.
"""
