"""The command line: `sawlog` (also `python -m sawlog.cli`).

`main` is the entry point; `run` does the same without ending the process. `program` lists the commands and the modules
that implement them, and the exit codes. Every failure becomes one line on stderr that says what to do.

When the reader closes the pipe (`sawlog read ... | head -1`), the command exits silently with 0. Only a bug in sawlog
shows a traceback.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Sequence

from .. import __version__, errors
from .._kernel_info import kernel_info

__all__ = ["main", "run"]

OK, FAILED, USAGE, NOT_FOUND, CORRUPT, LOCKED, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

#: The errors that each exit code stands for, the first match deciding; `FAILED` stands for all others.
_ERRORS: dict[int, tuple[type[BaseException], ...]] = {
    NOT_FOUND: (
        errors.TopicNotFound,
        errors.TableNotFound,
        errors.GroupNotFound,
        errors.UserNotFound,
        FileNotFoundError,
    ),
    CORRUPT: (errors.CorruptData,),
    LOCKED: (errors.DirectoryLocked, errors.SourceInUse, errors.GroupActive),
    USAGE: (errors.InvalidConfig, errors.InvalidTopicName, errors.QueryFailed),
}
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

#: Allocations before the garbage collector runs while a command starts. Modules, classes and options stay alive, and
#: collecting them every few hundred allocations took a tenth of the start-up time.
_STARTUP_GC_THRESHOLD = 50_000
#: Python's own thresholds, which `sawlog serve` restores.
DEFAULT_GC_THRESHOLDS = gc.get_threshold()


def main() -> None:
    """Run the `sawlog` program and exit."""
    gc.set_threshold(_STARTUP_GC_THRESHOLD)
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(sys.argv[1:]))


def _terminate(number: int, frame: object) -> None:
    """Exit normally on SIGTERM, so that accepted records are stored and locks are released."""
    sys.exit(128 + number)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the exit code."""
    _reopen_closed_streams()
    try:
        import rich  # noqa: F401 - imported early, so that the advice precedes any effect
        import typer
    except ImportError as error:
        return _run_without_extra(arguments, str(error.name))
    from .program import command

    if "_SAWLOG_COMPLETE" in os.environ:  # a shell asks for completions
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
        _complain(message_of(error))
        return _leave(exit_code_of(error))
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _complain(_usage(error))
        return _leave(USAGE)
    return OK


def _run_without_extra(arguments: Sequence[str], missing: str) -> int:
    """Run `sawlog` where the extra `cli` is not installed: print the version and how to install the commands."""
    advice = f"the command line needs {missing}: run pip install '.[cli]' in a clone of sawlog"
    if list(arguments) in ([], ["--help"], ["-h"], ["--version"]):
        kernel = "compiled" if kernel_info().compiled else "interpreted"
        print(f"sawlog {__version__}, {kernel} kernel\nThe library is installed; {advice}")
        return _leave(OK)
    _complain(advice)
    return FAILED


def _reopen_closed_streams() -> None:
    """Replace streams that the caller has closed (`<&-`) with /dev/null."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - open until the process ends
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _usage(error: Exception) -> str:
    """Return a usage error on one line, with a pointer to the help."""
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "sawlog")
    text = str(error.format_message())  # type: ignore[attr-defined]
    text = " ".join(_in_our_words(error, text).split()).removeprefix("Invalid value: ")
    text = re.sub(r" \(Possible options: (.*)\)$", r"; did you mean \1?", text)
    return f"{text if text.endswith('?') else text.rstrip('.') + ';'} `{path} --help` shows the usage"


def _in_our_words(error: Exception, text: str) -> str:
    """Replace what typer's validation says of a value, "Input should be ...", by a message with the value in it."""
    for found in getattr(error.__cause__, "errors", list)():
        kind, value, bounds = found["type"], found["input"], found.get("ctx", {})
        ours = found["msg"].removeprefix("Value error, ")
        if kind.startswith("int_"):
            ours = f"{value!r} is not an integer"
        elif kind.startswith("float_") or kind == "finite_number":
            ours = f"{value!r} is not a number"
        elif kind == "greater_than_equal":
            ours = f"must be at least {bounds['ge']}, not {value}"
        elif kind == "less_than_equal":
            ours = f"must be at most {bounds['le']}, not {value}"
        text = text.replace(found["msg"], ours)
    return text


def _complain(text: str) -> None:
    try:
        print(f"sawlog: {text}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        pass  # stderr is closed; the exit code still reports the failure


def _leave(code: int) -> int:
    """Flush stdout. If that fails, redirect it, so that Python does not complain when it closes the streams."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    return code


# --- errors


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error."""
    return next((code for code, kinds in _ERRORS.items() if isinstance(error, kinds)), FAILED)


def message_of(error: BaseException) -> str:
    """Return an error's message and advice on one line, without the errno or quotes that Python may add."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename is not None else ""
        text = f"{error.strerror}{where}"
    elif isinstance(error, KeyError) and len(error.args) == 1:
        text = str(error.args[0])
    else:
        text = str(error) or type(error).__name__
    advice = next((hint for kind, hint in _HINTS if isinstance(error, kind)), "")
    separator = "" if not advice else " " if text.endswith("?") else "; "
    return " ".join(text.split()) + separator + advice
