"""From an address to an `obstore` store: options, environment variables, timeouts and retries.

Options are strings. Those of requests, with their defaults:

    timeout           30s    one request, from connecting to the last byte of the answer
    connect_timeout   5s     connecting
    max_retries       5      retries of a request that failed in transit or that the server could not process
    retry_timeout     60s    no retries after this time

The options of `obstore.store.ClientConfig` (`proxy_url`, `root_certificate`, ...) are accepted as well. All others
belong to the backend: `endpoint`, `region`, `access_key_id`, `secret_access_key`, `session_token` for S3. Missing
options come from the customary environment variables, such as `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY` and `AWS_REGION`.

`obstore` runs requests on its own threads, which do not survive a fork: every request of a child would hang. So the
child of a process that has used object storage gets an error instead.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ....errors import InvalidConfig, MissingPackage, StorageError
from ....storage.forking import this_process
from .failures import explained

#: Request options, as `obstore.store.ClientConfig` names them.
_CLIENT = frozenset(
    {
        *("allow_http", "allow_invalid_certificates", "root_certificate"),
        *("timeout", "connect_timeout", "read_timeout"),
        *("http1_only", "http2_only", "http2_keep_alive_interval", "http2_keep_alive_timeout"),
        *("http2_keep_alive_while_idle", "pool_idle_timeout", "pool_max_idle_per_host", "randomize_addresses"),
        *("proxy_url", "proxy_ca_certificate", "proxy_excludes"),
        *("default_content_type", "user_agent"),
    }
)
_RETRIES = frozenset({"max_retries", "retry_timeout"})
#: Backend options without their prefix, as people write them.
_STORAGE = frozenset(
    {
        *("endpoint", "endpoint_url", "region", "default_region"),
        *("access_key_id", "secret_access_key", "session_token", "token", "skip_signature"),
        *("virtual_hosted_style_request", "unsigned_payload", "checksum_algorithm", "s3_express", "request_payer"),
        *("service_account", "service_account_path", "service_account_key", "application_credentials"),
        *("account_name", "account_key", "client_id", "client_secret", "tenant_id", "sas_key", "sas_token"),
    }
)
_PREFIXES = ("aws_", "google_", "azure_")
#: Options that may be written to a file: none of them identifies the caller.
_PUBLIC = (
    (_CLIENT - {"proxy_url", "user_agent"})
    | _RETRIES
    | {"endpoint", "endpoint_url", "region", "default_region", "skip_signature", "account_name"}
    | {"virtual_hosted_style_request", "unsigned_payload", "checksum_algorithm", "s3_express", "request_payer"}
    | {"cache_bytes", "cache_path"}
)
#: Options of `ObjectStore.open` itself.
_OWN = frozenset({"cache_bytes", "cache_path", "linger_ms"})
_TIMEOUT, _CONNECT_TIMEOUT, _RETRY_TIMEOUT = "30s", "5s", "60s"
#: With pauses of 0.1 s, 0.2 s, ... about three seconds in total if every attempt fails at once.
_MAX_RETRIES = "5"
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(milliseconds=100), timedelta(seconds=5)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0}

#: Stores in memory by address, so that opening an address again in this process finds the same content.
_IN_MEMORY: dict[str, Any] = {}
#: The process in which `obstore` was first used.
_used_in: int | None = None


def check_address(url: str) -> None:
    """Reject an address that contains options or credentials; the message does not repeat them."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0]
    if "?" in rest or "#" in rest or ":" in host.rpartition("@")[0]:
        raise InvalidConfig(
            f"an address {scheme}://... consists of a bucket and a prefix; give credentials and settings as options or "
            "environment variables"
        )
    if scheme == "file" and rest.strip("/") and not rest.startswith("/"):
        raise InvalidConfig(f"{url} is no address: file:// is followed by an absolute path, as in file:///tmp/store")
    if not rest.strip("/") and scheme != "memory":
        raise InvalidConfig(f"{url} does not name a {'directory' if scheme == 'file' else 'bucket'}")


def is_missing(url: str) -> bool:
    """Return whether an address is a missing directory. Connecting would create it, which a reader must not do."""
    return url.startswith("file://") and not os.path.isdir(url.removeprefix("file://"))


def is_option(name: str) -> bool:
    """Return whether an option configures the connection to object storage."""
    return name in _CLIENT | _RETRIES | _STORAGE | _OWN or name.startswith(_PREFIXES)


def public_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that may be written to a shared file: no credentials, and no URLs that contain any."""
    return {
        name: value
        for name, value in options.items()
        if next((name.removeprefix(each) for each in _PREFIXES if name.startswith(each)), name) in _PUBLIC
        and "@" not in value
    }


def connect(url: str, options: Mapping[str, str]) -> Any:
    """Open the store at an address. Sends no request."""
    global _used_in  # noqa: PLW0603  obstore has one thread pool per process
    try:
        from obstore.store import LocalStore, MemoryStore, from_url
    except ImportError as error:
        raise MissingPackage(
            "a store on object storage needs obstore, which is in the extra sawlog[objects]: run "
            "pip install '.[objects]' in a clone of sawlog"
        ) from error
    if _used_in not in (None, this_process()):
        raise StorageError(
            errno.ENOTSUP,
            f"{url} cannot be used here: this process was forked from one that had used object storage; start "
            'processes with multiprocessing.get_context("spawn"), or fork before the first use',
        )
    _used_in = this_process()
    if url.startswith("memory://"):
        return _IN_MEMORY.setdefault(url, MemoryStore())
    client, retries, rest = divided(options)
    try:
        if url.startswith("file://"):
            return LocalStore(url.removeprefix("file://"), mkdir=True)
        opened: Any = from_url
        return opened(url, config=rest or None, client_options=client, retry_config=retries)
    except OSError as error:
        raise explained(url, "opening", error) from None
    except Exception as error:
        raise InvalidConfig(f"{url}: {str(error).partition(chr(10))[0]}") from None


def divided(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Split options into those of requests, of retries and of the backend."""
    client: dict[str, Any] = {"timeout": _TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT}
    client |= {name: value for name, value in options.items() if name in _CLIENT}
    rest = {name: value for name, value in options.items() if name not in _CLIENT | _RETRIES}
    if "allow_http" not in client:
        client["allow_http"] = _endpoint(rest).startswith("http://")
    most = options.get("max_retries", _MAX_RETRIES)
    if not most.isdecimal():
        raise InvalidConfig(f"max_retries must be a number, not {most!r}")
    retries = {
        "max_retries": int(most),
        "retry_timeout": _duration("retry_timeout", options.get("retry_timeout", _RETRY_TIMEOUT)),
        "backoff": {"init_backoff": _FIRST_PAUSE, "max_backoff": _LONGEST_PAUSE, "base": 2},
    }
    return client, retries, rest


def _endpoint(options: Mapping[str, str]) -> str:
    """Return the configured endpoint, or "". Plain HTTP is allowed only if the endpoint asks for it."""
    names = ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url")
    given = next((options[name] for name in names if name in options), None)
    if given is None:
        variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        given = next((os.environ[name] for name in variables if name in os.environ), "")
    if given and not given.startswith(("http://", "https://")):
        raise InvalidConfig(f"the endpoint must begin with http:// or https://, not {given!r}")
    return given


def _duration(name: str, text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InvalidConfig(f"{name} must be a duration such as 500ms, 30s or 2m, not {text!r}")
    return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
