"""The command line: `sawlog` (also `python -m sawlog.cli`). One file per command.

`main` is the entry point; `run` does the same without ending the process. Every failure becomes one line on stderr
that says what to do, and an exit code that scripts can distinguish:

    0    success
    1    failure: the line says why
    2    usage error
    3    the store, topic, group, log or file does not exist
    4    corruption was found
    5    locked by another process: another writer, or live members of a group
    130  interrupted (Ctrl-C)

When the reader closes the pipe (`sawlog read ... | head -1`), the command exits silently with 0. Only a bug in sawlog
shows a traceback.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence

from .. import errors
from .codes import EXIT_CODES, FAILED, INTERRUPTED, OK, USAGE, exit_code_of, hint_for, message_of

__all__ = ["EXIT_CODES", "main", "run"]

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
        advice = "run pip install '.[cli]' in a clone of sawlog"
        print(f"sawlog: the command line needs {error.name}: {advice}", file=sys.stderr)
        return FAILED
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
        _complain(message_of(error) + hint_for(error))
        return _leave(exit_code_of(error))
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _complain(_usage(error))
        return _leave(USAGE)
    return OK


def _reopen_closed_streams() -> None:
    """Replace streams that the caller has closed (`<&-`) with /dev/null."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - open until the process ends
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _usage(error: Exception) -> str:
    """Return a usage error on one line, with a pointer to the help."""
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "sawlog")
    text = " ".join(str(error.format_message()).split())  # type: ignore[attr-defined]
    return f"{text if text.endswith('?') else text.rstrip('.') + ';'} `{path} --help` shows the usage"


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
