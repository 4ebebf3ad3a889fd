"""`sawlog serve`: run a broker for Kafka clients."""

from __future__ import annotations

import gc
import json
import logging
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..addresses import is_address
from ..clock import Stopwatch
from ..display import counted
from . import DEFAULT_GC_THRESHOLDS
from .options import flag, named_values, option, parsed
from .stores import check_directory

if TYPE_CHECKING:
    from ..broker.broker import Broker
    from ..broker.config import Address, BrokerConfig


class _JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def serve(
    data: str = option(
        "--data -d DIR|URL",
        "The store: a directory, or a URL such as s3://bucket/store.",
        ...,
        envvar="SAWLOG_DATA",
        show_envvar=True,
    ),
    listen: str | None = option("--listen -l HOST:PORT", "The address to listen on.  [default: 127.0.0.1:9092]"),
    advertise: str | None = option(
        "--advertise HOST:PORT", "The address that clients connect to, if it differs from --listen."
    ),
    metrics: str | None = option(
        "--metrics HOST:PORT", "Serve /metrics (Prometheus), /healthz and /readyz on this address."
    ),
    config: Path | None = option("--config FILE", "A TOML file with broker settings.", exists=True, dir_okay=False),
    partitions: int | None = option("--partitions N", "Partition count of topics that are created without one.", min=1),
    auto_create: bool | None = option(
        "--auto-create/--no-auto-create", "Create missing topics when a client uses them.  [default: yes]"
    ),
    allow_anonymous: bool = flag("--allow-anonymous", "Accept connections from other machines without authentication."),
    set_: list[str] | None = option("--set NAME=VALUE", "Any other broker setting; can be repeated."),
    log_format: str = option("--log-format text|json", "The format of log messages on stderr.", "text"),
    verbose: bool = flag("--verbose -v", "Also log what is created and deleted."),
) -> None:
    """Serve the store to Kafka clients in any language, until SIGTERM or Ctrl-C.

    The store is created if the directory is missing or empty. Spark, `sawlog read` and Python programs can keep using
    it at the same time. Several brokers can serve the same store on object storage, and clients spread over all of
    them. Flags override the settings in the file.

    \b
    Examples:
      sawlog serve -d data
      sawlog serve -d data --listen 127.0.0.1:9092 --partitions 4 --metrics 127.0.0.1:9644
      sawlog serve -d data --config broker.toml
      sawlog serve -d s3://bucket/store --listen 10.0.0.7:9092
      sawlog serve -d data --set max_request_bytes=200000000
    """
    from ..broker.broker import serve as run

    if not is_address(data):
        check_directory(Path(data))
    flags = (
        ("--listen", "listen", listen),
        ("--advertise", "advertise", advertise),
        ("--metrics", "metrics", metrics),
        ("--partitions", "default_partitions", partitions),
        ("--auto-create", "auto_create_topics", auto_create),
        ("--allow-anonymous", "allow_anonymous", allow_anonymous or None),
    )
    made = _config(config, flags, set_ or [])
    say = _log_to_stderr(log_format, logging.INFO if verbose else logging.WARNING)
    began = Stopwatch()

    def ready(broker: Broker, watched: Address | None) -> None:
        gc.freeze()  # a long-running process collects at the usual rate, but never what exists after the start
        gc.set_threshold(*DEFAULT_GC_THRESHOLDS)
        _greet(broker, watched)
        say(f"started in {began.elapsed_ms:.0f} ms; Ctrl-C stops it")

    run(data, made, ready)
    say("stopped")


def _config(file: Path | None, flags: Iterable[tuple[str, str, object]], pairs: list[str]) -> BrokerConfig:
    """Merge the settings of the file, of `--set` and of the flags (option, setting, value or None); later ones win.
    Each source is checked separately, so that an error names it."""
    from ..broker.config import BrokerConfig, changed, checked, from_text, read_toml

    given = {} if file is None else read_toml(file)
    for name, text in named_values(pairs, "--set"):
        given[name.replace("-", "_")] = parsed("--set", text, partial(from_text, name))
    for given_as, name, value in flags:
        if value is not None:
            given[name] = parsed(given_as, value, partial(checked, name))
    return changed(BrokerConfig(), given)


def _log_to_stderr(form: str, level: int) -> Callable[[str], None]:
    """Send log messages to stderr. Return a function that writes one regardless of the level: as plain text for
    people, as JSON for programs."""
    if form not in ("text", "json"):
        raise typer.BadParameter(f"text or json, not {form!r}", param_hint="--log-format")
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("sawlog")
    logger.addHandler(handler)
    logger.setLevel(level)

    def say(text: str) -> None:
        if form == "text":
            print(text, file=sys.stderr, flush=True)
        else:
            handler.handle(logging.LogRecord("sawlog.cli", logging.INFO, "", 0, text, None, None))

    return say


def _greet(broker: Broker, watched: Address | None) -> None:
    """Print the address. The first line is for people and for programs that start a broker."""
    topics = counted(len(broker.store.topics()), "topic")
    print(f"listening on {broker.listening}, serving {broker.store.path} ({topics})", flush=True)
    if broker.recovered:
        was = "that was" if broker.recovered == 1 else "that were"
        print(f"recovered {counted(broker.recovered, 'partition')} {was} not closed cleanly", flush=True)
    if watched is not None:
        print(f"metrics on http://{watched}/metrics", flush=True)
    _greet_security(broker)
    advertised = broker.server.advertised
    if advertised != broker.listening:
        print(f"clients are told to connect to {advertised}", flush=True)


def _greet_security(broker: Broker) -> None:
    """Print whether connections are encrypted, and how clients authenticate."""
    guard = broker.authenticator
    if guard.tls is not None:
        wanted = ", with certificates of clients" if guard.tls.requires_certificate else ""
        print(f"TLS with {broker.config.tls_certificate}{wanted}", flush=True)
    if guard.mechanisms:
        print(f"clients authenticate with {', '.join(guard.mechanisms)}", flush=True)
        if not guard.users.names:
            print("there are no users yet; `sawlog user add NAME` adds one", flush=True)
