"""Exit codes, and the one-line message with advice that reports an error."""

from __future__ import annotations

from .. import errors

OK, FAILED, USAGE, NOT_FOUND, CORRUPT, LOCKED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

#: Meaning of each exit code, for the help and the reference.
EXIT_CODES = {
    OK: "success",
    FAILED: "failure; the line on stderr says why",
    USAGE: "usage error",
    NOT_FOUND: "the store, topic, group, log or file does not exist",
    CORRUPT: "corruption was found",
    LOCKED: "locked by another process: another writer, or live members of a group",
    INTERRUPTED: "interrupted",
}

#: The first type that matches decides.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.TopicNotFound, NOT_FOUND),
    (errors.TableNotFound, NOT_FOUND),
    (errors.GroupNotFound, NOT_FOUND),
    (errors.UserNotFound, NOT_FOUND),
    (errors.CorruptData, CORRUPT),
    (errors.DirectoryLocked, LOCKED),
    (errors.SourceInUse, LOCKED),
    (errors.GroupActive, LOCKED),
    (errors.InvalidConfig, USAGE),
    (errors.InvalidTopicName, USAGE),
    (errors.QueryFailed, USAGE),
    (FileNotFoundError, NOT_FOUND),
)


#: Advice for errors that the library raises without mentioning commands.
_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.StoreNotFound, "`sawlog topic create NAME` creates a store with a topic"),
    (errors.TopicNotFound, "`sawlog topic create NAME` creates it"),
    (errors.GroupNotFound, "`sawlog groups list` shows the existing groups"),
    (errors.UserNotFound, "`sawlog user list` shows the existing users"),
    (errors.CorruptBatch, "`sawlog inspect FILE` shows the damaged bytes"),
    (errors.BrokerUnavailable, "`sawlog serve -d DIR` starts one"),
    (errors.ForeignDamage, "everything before it is stored; --on-damage skip leaves it out and continues"),
)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def message_of(error: BaseException) -> str:
    """Return an error's message on one line, without the errno or quotes that Python may add."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename is not None else ""
        text = f"{error.strerror}{where}"
    elif isinstance(error, KeyError) and len(error.args) == 1:
        text = str(error.args[0])
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split())


def hint_for(error: BaseException) -> str:
    """Return advice to append to the message, or an empty string if the message already contains it."""
    return next((f"; {hint}" for kind, hint in _HINTS if isinstance(error, kind)), "")
