"""Typed records: topics and logs whose keys, values and metadata are Python objects.

`topic.typed(value=JSON(Order), key=Utf8())` returns a view (`TypedTopic`); `log.typed(...)` returns a `TypedLog`. The
stored bytes are the same as without a view: other programs, other groups and Kafka clients read and write them. A
record that does not parse is never dropped: it is an error that carries the record (`DecodeFailed`), or it is copied to
a topic of your choice.
"""
