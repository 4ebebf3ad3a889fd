"""The command line: `sawlog` (also `python -m sawlog.cli`). One file per command.

`main` is the entry point, `run` the same without ending the process. Here every failure becomes one line on stderr
that says what to do, and an exit code that a script can tell apart:

    0    it was done
    1    it failed: the line says why
    2    it was called in a wrong way
    3    the store, topic, group, log or file is not there
    4    corruption was found
    5    somebody else holds it: another writer, or members of a group
    130  interrupted (Ctrl-C)

A reader that goes away (`sawlog read ... | head -1`) has what it wanted: that ends a command quietly, with 0. A
traceback is shown for one thing only: a mistake of ours.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from .. import errors

__all__ = ["EXIT_CODES", "main", "run"]

OK, FAILED, USAGE, NOT_FOUND, CORRUPT, LOCKED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

#: What each exit code means, for the help and for the reference.
EXIT_CODES = {
    OK: "it was done",
    FAILED: "it failed; the line on stderr says why",
    USAGE: "it was called in a wrong way",
    NOT_FOUND: "the store, topic, group, log or file is not there",
    CORRUPT: "corruption was found",
    LOCKED: "somebody else holds it: another writer, or live members of a group",
    INTERRUPTED: "interrupted",
}

#: The first kind that fits decides.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.TopicNotFound, NOT_FOUND),
    (errors.GroupNotFound, NOT_FOUND),
    (errors.CorruptData, CORRUPT),
    (errors.DirectoryLocked, LOCKED),
    (errors.SourceInUse, LOCKED),
    (errors.GroupActive, LOCKED),
    (errors.InvalidConfig, USAGE),
    (errors.InvalidTopicName, USAGE),
    (FileNotFoundError, NOT_FOUND),
)


#: What to do about it, where the error itself, which does not know of the command line, cannot say.
_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.StoreNotFound, "`sawlog topic create NAME` makes a store with a topic"),
    (errors.TopicNotFound, "`sawlog topic create NAME` makes one"),
    (errors.GroupNotFound, "`sawlog groups list` shows those there are"),
    (errors.CorruptBatch, "`sawlog inspect FILE` shows the place"),
    (errors.ForeignDamage, "what precedes it is stored; --on-damage skip leaves it out and goes on"),
)


def main() -> None:
    """The program `sawlog`."""
    signal.signal(signal.SIGTERM, _end)
    sys.exit(run(sys.argv[1:]))


def _end(number: int, frame: object) -> None:
    """Asked to go (SIGTERM): as any exit, so that what was taken is stored and locks are let go."""
    sys.exit(128 + number)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    _open_closed_streams()
    try:
        import rich  # noqa: F401 - asked for here, so that the advice comes before anything was done
        import typer
    except ImportError as error:
        print(f"sawlog: the command line needs {error.name}: pip install 'sawlog[cli]'", file=sys.stderr)
        return FAILED
    from .app import command

    if "_SAWLOG_COMPLETE" in os.environ:  # a shell asks how a line could go on
        command().main(list(arguments), prog_name="sawlog")
    try:
        with command().make_context("sawlog", list(arguments) or ["--help"]) as context:
            context.command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as done:
        return _leave(done.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _leave(INTERRUPTED)
    except BrokenPipeError:
        return _leave(OK)
    except (errors.SawlogError, OSError, MemoryError) as error:
        _complain(message_of(error) + hint_for(error))
        return _leave(exit_code_of(error))
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _complain(_usage(error))
        return _leave(USAGE)
    return OK


def _open_closed_streams() -> None:
    """A stream that the caller has closed (`<&-`) is as good as empty, and what goes there as good as gone."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - for as long as the process lives
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def exit_code_of(error: BaseException) -> int:
    """The exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def message_of(error: BaseException) -> str:
    """What an error says, on one line, without the number or the quotes that Python puts around some."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename is not None else ""
        text = f"{error.strerror}{where}"
    elif isinstance(error, KeyError) and len(error.args) == 1:
        text = str(error.args[0])
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split())


def hint_for(error: BaseException) -> str:
    """What to do, as the end of the line; empty where the message says it."""
    return next((f"; {hint}" for kind, hint in _HINTS if isinstance(error, kind)), "")


def _usage(error: Exception) -> str:
    """A usage error on one line, with where to read more."""
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "sawlog")
    text = " ".join(str(error.format_message()).split())  # type: ignore[attr-defined]
    return f"{text.rstrip('.')}; `{path} --help` shows how"


def _complain(text: str) -> None:
    try:
        print(f"sawlog: {text}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        pass  # nobody listens any more; the exit code still says it


def _leave(code: int) -> int:
    """Write out what is buffered; if nobody wants it, say so to nobody when Python closes the streams."""
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    return code
