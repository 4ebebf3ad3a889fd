"""The names in a store's directory, and which of them a topic may have.

```
data/
  sawlog.json                     format and id of the store
  deleted.json                    the leader epochs of deleted topics
  LOCK                            held briefly by a process that changes the catalog; never deleted
  topics/orders/topic.json        id, partitions, settings
  topics/orders/table.json        location of its table, if it has one
  topics/orders/partition-0/      one log
  topics/<id>.tmp/                a topic that is being created; removed after a crash
  topics/<id>.deleted/            a topic that is being deleted
  topics/<id>.swap/               a topic that is replacing another one
  topics/orders/partition-4.tmp/  a partition that is being added
  groups/  members/               consumer groups
  staging/                        staged batches and intents: see directory/transactions
  registry/                       users of a broker and their access rules
  replica.json                    address of its replica, if it has one: see directory/replica
  restore.json  restore.LOCK      only while it is restored from another store: see directory/founding
```

A topic's name is a directory's name, so it must not lead outside, must not look like one of our own temporary states,
and must not collide with another one on a file system that ignores case. Kafka's rule covers the first; the others are
ours.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from difflib import get_close_matches
from urllib.parse import unquote

from ..errors import InvalidConfig, InvalidTopicName, TopicExists, TopicNotFound

STORE = "sawlog.json"
GONE = "deleted.json"
LOCK = "LOCK"
TOPICS = "topics"
TOPIC = "topic.json"
GROUPS = "groups"
MEMBERS = "members"
STAGING = "staging"
REGISTRY = "registry"
REPLICA = "replica.json"
RESTORE, RESTORE_LOCK = "restore.json", "restore.LOCK"
TMP, DELETED, SWAP = ".tmp", ".deleted", ".swap"

#: Suffixes that sawlog reserves for temporary states.
_STATES = (TMP, SWAP, DELETED, ".torn", ".quarantined")
_LONGEST = 249  # Kafka's limit: leaves space for "-<partition>" in a file name of 255 bytes
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PARTITION = re.compile(r"partition-(0|[1-9][0-9]*)(\.tmp)?")


def check_topic_name(name: object) -> str:
    """Return the name if it is valid for a topic; `InvalidTopicName`."""
    if not isinstance(name, str):
        raise InvalidTopicName(f"a topic's name must be a str, not {type(name).__name__}")
    if why := _fault(name):
        raise InvalidTopicName(
            f"{_short(name)} is not a valid topic name: {why}. Use 1 to {_LONGEST} of the characters a-z A-Z 0-9 "
            f'. _ - but not "." or ".."'
        )
    return name


def is_topic_name(name: str) -> bool:
    """Return whether a directory of that name can be a topic."""
    return not _fault(name)


def _fault(name: str) -> str:
    """Return the reason why a name is invalid; empty if it is valid."""
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "it refers to another directory"
    if len(name) > _LONGEST:
        return f"it has {len(name)} characters"
    if not _TOPIC.fullmatch(name):
        return f"it contains {next(c for c in name if not _TOPIC.fullmatch(c))!r}"
    if name.lower().endswith(_STATES):  # lower: some file systems ignore case
        return f"the suffix {name[name.rindex('.') :]} is reserved for temporary directories of sawlog"
    return ""


def _short(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:57] + "...")


def partition_name(number: int) -> str:
    """Return the directory name of a partition."""
    return f"partition-{number}"


def did_you_mean(name: object, known: Sequence[str]) -> str:
    """Return a suggestion to append to a message; empty if no known name is similar."""
    close = get_close_matches(name, known, n=1) if isinstance(name, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def no_topic(name: object, place: object, known: Sequence[str]) -> str:
    """Return the message for a topic that does not exist: with the most similar name, or the first ones."""
    hint = did_you_mean(name, known)
    if hint:
        return f"no topic {name!r} in {place}{hint}"
    if known:
        hint = f"its topics are {', '.join(known[:10])}{', …' if len(known) > 10 else ''}"
    else:
        hint = "it has no topics yet: create one with create_topic"
    return f"no topic {name!r} in {place}; {hint}"


def topic_exists(name: str, place: object) -> TopicExists:
    """Return the error for a topic that cannot be created again."""
    return TopicExists(errno.EEXIST, f"the topic {name!r} already exists in {place}; exist_ok=True returns it")


def partition_number(name: str) -> int | None:
    """Return the partition number of a directory, including one that is being created; None if it is not a
    partition."""
    found = _PARTITION.fullmatch(name)
    return int(found[1]) if found else None


def check_partition_number(topic: str, number: object, partitions: int) -> None:
    """Raise `TopicNotFound` if a topic with that many partitions does not have this one."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise TopicNotFound(f"a partition must be an integer, not {number!r}")
    if not 0 <= number < partitions:
        raise TopicNotFound(f"the topic {topic!r} has partitions 0 to {partitions - 1}, not {number}")


_DOCUMENT = re.compile(r"[a-z][a-z0-9-]{0,63}")


def check_document_name(name: str) -> None:
    """Raise `InvalidConfig` if a document cannot have that name."""
    if not _DOCUMENT.fullmatch(name):
        raise InvalidConfig(f"{name!r} is not a valid name of a document: use a to z, 0 to 9 and -")


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


def quoted(text: str) -> str:
    """Return text as a reversible file name (`unquoted`) that is not hidden, has no reserved suffix, and differs from
    that of another text by more than case."""
    return "".join(each if each in _PLAIN else "".join(f"%{byte:02x}" for byte in each.encode()) for each in text)


def is_text(name: str) -> bool:
    """Return whether UTF-8 can encode the name: a lone surrogate is not text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def unquoted(name: str) -> str:
    """Return the text of a `quoted` name."""
    return unquote(name)


def check_group_name(name: object) -> str:
    """Return a valid group name: any text that is not too long for a directory's name."""
    if not isinstance(name, str) or not name or not is_text(name) or len(quoted(name)) > 200:
        raise InvalidConfig(f"a group's name must be a str, 1 to 200 characters (fewer if special), not {name!r}")
    return name
