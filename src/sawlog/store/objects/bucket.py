"""`Bucket`: the operations that the store needs from object storage, implemented with `obstore`.

All decisions rest on `create`, which stores an object only if its key is free. A failed request was either *rejected*,
and changed nothing, or its outcome is unknown: `Unanswered`, and the caller looks the object up. A request counts as
rejected only if the server refused the first attempt. After a retry, even a clear refusal says nothing about the
attempt before it. `explained` turns obstore's errors into one whose message says what to do.

A bucket can be pickled and reconnects in each process. `obstore` runs requests on its own threads, which do not survive
a fork: every request of a child would hang. So the child of a process that has used object storage gets an error.

Options are strings. Those of requests, with their defaults:

    timeout           30s    one request, from connecting to the last byte of the answer
    connect_timeout   5s     connecting
    max_retries       5      retries of a request that failed in transit or that the server could not process
    retry_timeout     60s    no retries after this time

The options of `obstore.store.ClientConfig` (`proxy_url`, `root_certificate`, ...) are accepted as well. All others
belong to the backend: `endpoint`, `region`, `access_key_id`, `secret_access_key`, `session_token` for S3. Missing
options come from the customary environment variables, such as `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY` and `AWS_REGION`.

Messages contain the address of the store, the key, the server's status, its error code and its short text. They omit
the request URL, the headers and the rest of the response, which can contain signatures, tokens and keys.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ...addresses import SCHEMES
from ...clock import Deadline
from ...errors import InvalidConfig, MissingPackage, StorageError, StorageFull
from ...storage.forking import this_process

#: Larger objects are uploaded in parts of this size. At 600 KB/s a part takes as long as a request may (`timeout`).
PART_BYTES = 16 << 20
#: Keys of one page of a listing.
_PAGE_KEYS = 1000
#: Backoff of a create that the server rejected because of a concurrent request for the key. It was not applied.
_CONFLICTS_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 0.02, 0.5


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing."""

    key: str
    size_bytes: int
    modified: datetime


class Bucket:
    """The objects below one address, by key. Thread-safe."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        scheme, mark, place = url.partition("://")
        if not mark or scheme not in SCHEMES:
            raise InvalidConfig(f"{url!r} is not an address of object storage; use {'://, '.join(SCHEMES)}://")
        check_address(url)
        self.url = f"{scheme}://{place.rstrip('/')}"
        self._options = dict(options or {})
        #: The process that opened the `obstore` client, and the client.
        self._opened: tuple[int, Any] = (0, None)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.url.startswith("memory://"):
            raise InvalidConfig("a store in memory is only in its own process")
        return Bucket, (self.url, self._options)

    def __repr__(self) -> str:
        return f"<Bucket {self.url}>"

    @property
    def options(self) -> dict[str, str]:
        return dict(self._options)

    def again(self) -> Bucket:
        """Return a bucket with the same address and options, and its own connections."""
        return Bucket(self.url, self._options)

    @property
    def _store(self) -> Any:
        process, store = self._opened
        if process != this_process():
            if self.url.startswith("memory://") and store is not None:
                raise InvalidConfig("a store in memory is only in its own process")
            store = connect(self.url, self._options)
            self._opened = (this_process(), store)
        return store

    def create(self, key: str, data: bytes) -> bool:
        """Store an object if its key is free, and return whether it was stored.

        False proves that an object exists, but not who created it: the client library retries requests, and the first
        attempt may have been applied. Raises `Unanswered` if the outcome is unknown, and another `StorageError` if
        nothing was stored.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        store = self._store
        patience = Deadline(_CONFLICTS_S, first_pause_s=_FIRST_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S)
        is_repeated = False
        while True:
            try:
                store.put(key, data, mode="create", use_multipart=False)
                return True
            except (AlreadyExistsError, PreconditionError) as error:
                # obstore reports every 409 as "exists", including S3's "conflicting request", after which the key may
                # be free.
                if not failure_of(error).is_conflict:
                    return False
                if not patience.retry():
                    raise self._failed("creating", key, error) from None
                is_repeated = True
            except Exception as error:
                failed = self._failed("creating", key, error)
                if is_repeated and not isinstance(failed, Unanswered):  # an earlier attempt may have been applied
                    failed = Unanswered(failed.errno, failed.strerror)
                raise failed from None

    @contextmanager
    def _connected(self, doing: str, key: str) -> Iterator[Any]:
        """Provide the client, and explain its errors."""
        store = self._store
        try:
            yield store
        except Exception as error:
            raise self._failed(doing, key, error) from None

    def put(self, key: str, data: bytes) -> None:
        """Store an object under a key that no other writer uses. Idempotent.

        An object of up to `PART_BYTES` is one request. A larger one is a multipart upload, which `obstore` aborts if a
        part fails. A process that is killed during the upload leaves its parts in the bucket, invisible but billed.
        obstore can neither list nor remove them, so buckets need a lifecycle rule (docs/object-storage.md).
        """
        with self._connected("storing", key) as store:
            store.put(key, data, chunk_size=PART_BYTES)

    def get(self, key: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist. A missing bucket is an error, because it would
        look like a store without commits."""
        store = self._store
        try:
            return bytes(store.get(key).bytes())
        except Exception as error:
            if _is_missing_object(error):
                return None
            raise self._failed("reading", key, error) from None

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the content of several objects, requested in parallel."""
        if len(keys) < 2:
            return [self.get(key) for key in keys]
        with ThreadPoolExecutor(len(keys), thread_name_prefix="sawlog-objects-get") as pool:
            return list(pool.map(self.get, keys))

    def get_range(self, key: str, start: int, size_bytes: int) -> bytes:
        with self._connected("reading", key) as store:
            found = bytes(store.get_range(key, start=start, length=size_bytes))
        if len(found) != size_bytes:
            raise StorageError(errno.EIO, f"{self.url}/{key} has {len(found)} bytes from {start} on, not {size_bytes}")
        return found

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        """Yield the objects below a prefix, which ends with "/", ordered by key; only keys greater than `after`."""
        assert prefix.endswith("/") or not prefix, prefix  # obstore's prefixes are folders
        found: list[Entry] = []
        with self._connected("listing", prefix) as store:
            for page in store.list(prefix, chunk_size=_PAGE_KEYS, **({"offset": after} if after else {})):
                found += [Entry(each["path"], each["size"], each["last_modified"]) for each in page]
        # Not every backend lists in key order or honours the offset.
        yield from sorted((each for each in found if each.key > after), key=lambda each: each.key)

    def delete(self, key: str) -> None:
        store = self._store
        try:
            store.delete(key)
        except Exception as error:
            if not _is_missing_object(error):
                raise self._failed("deleting", key, error) from None

    def delete_many(self, keys: Iterable[str]) -> None:
        """Delete objects that exist, with bulk requests where the server supports them."""
        store, wanted = self._store, [*keys]
        try:
            store.delete(wanted)
        except Exception:  # one is missing, or there are no bulk deletes: delete one at a time to find out
            for key in wanted:
                self.delete(key)

    def _failed(self, doing: str, key: str, error: Exception) -> StorageError:
        if _is_missing_object(error):
            # For a write this is not final: obstore does not say whether an earlier attempt was applied.
            kind = Unanswered if doing in ("creating", "storing") else StorageError
            return kind(errno.ENOENT, f"{self.url}: {doing} {key} failed: it does not exist")
        return explained(self.url, f"{doing} {key}", error)


def _is_missing_object(error: Exception) -> bool:
    """Return whether an object does not exist, as opposed to its bucket."""
    return isinstance(error, FileNotFoundError) and not failure_of(error).is_missing_bucket


# --- options and connecting

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
_ADDRESSING = frozenset(
    {
        *("endpoint", "endpoint_url", "region", "default_region", "skip_signature", "account_name"),
        *("virtual_hosted_style_request", "unsigned_payload", "checksum_algorithm", "s3_express", "request_payer"),
    }
)
_CREDENTIALS = frozenset(
    {
        *("access_key_id", "secret_access_key", "session_token", "token"),
        *("service_account", "service_account_path", "service_account_key", "application_credentials"),
        *("account_key", "client_id", "client_secret", "tenant_id", "sas_key", "sas_token"),
    }
)
_PREFIXES = ("aws_", "google_", "azure_")
#: Options that may be written to a file: none of them identifies the caller.
_PUBLIC = (_CLIENT - {"proxy_url", "user_agent"}) | _RETRIES | _ADDRESSING | {"cache_bytes", "cache_path"}
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
    return name in _CLIENT | _RETRIES | _ADDRESSING | _CREDENTIALS | _OWN or name.startswith(_PREFIXES)


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


#: Azure's code for creating a blob that exists.
_EXISTS = frozenset({"BlobAlreadyExists"})
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "BucketNotFound"})
#: Codes for bad credentials that come with a status other than 401 and 403.
_BAD_CREDENTIALS = frozenset({"ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "AuthorizationHeaderMalformed"})
_DENIED = frozenset({401, 403})
_UNSUPPORTED = 501
#: The server may still process such a request, or has not looked at it.
_NOT_FINAL = frozenset({408, 409, 429})
#: Addresses from which clients request instance credentials if nothing else provides any.
_METADATA_SERVICES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*([\w.-]{1,80})\s*</Code>")
_SAID = re.compile(r"<Message>\s*([^<]{1,200})")
_ADDRESS = re.compile(r"\w+://\S+")
_SAID_MOST = 160
_RETRY_COUNT = re.compile(r"after (\d+) retries")
_SYSTEM = re.compile(r"\(os error (\d+)\)")
_TIMED_OUT = "timed out"
#: Fragments of the HTTP client's errors and their meaning; the first match wins.
_TRANSPORT = (
    ("dns error", "the name of its host cannot be resolved"),
    ("certificate", "its certificate is not trusted"),
    ("kind: Timeout", _TIMED_OUT),
    ("tcp connect error", "nothing answers at its endpoint"),
    ("kind: Connect", "nothing answers at its endpoint"),
    ("SendRequest", "the connection broke"),
    ("BadScheme", "plain HTTP is not allowed"),
)


class Unanswered(StorageError):
    """A failed request that may have been applied."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The parts of an `obstore` error."""

    status: int | None
    code: str
    said: str
    retries: int
    #: The defect of the connection, if there was no answer.
    transport: str
    system: int | None
    no_credentials: bool
    redirected: bool
    #: The client's message for all other failures, without URLs.
    otherwise: str

    @property
    def is_conflict(self) -> bool:
        """True if a concurrent request for the same key interfered: not applied, and the key may or may not exist."""
        return self.status == 409 and self.code not in _EXISTS

    @property
    def is_missing_bucket(self) -> bool:
        """True if the bucket does not exist, as opposed to the object."""
        return self.status == 404 and self.code in _NO_BUCKET

    @property
    def is_denied(self) -> bool:
        """True if the credentials are invalid or insufficient."""
        return self.status in _DENIED or self.code in _BAD_CREDENTIALS

    @property
    def is_final(self) -> bool:
        """True if the request was certainly not applied."""
        if self.system is not None:
            return self.system in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
        if self.no_credentials:
            return True
        refused = self.status is not None and 400 <= self.status < 500 and self.status not in _NOT_FINAL
        unsupported = self.status == _UNSUPPORTED
        return (refused or unsupported or self.redirected) and not self.retries

    @property
    def evidence(self) -> str:
        """The server's answer in a few words."""
        parts = [str(self.status) if self.status else "", self.code, f"({self.said})" if self.said else ""]
        answer = " ".join(part for part in parts if part)
        tries = f" after {self.retries + 1} attempts" if self.retries else ""
        return f"{answer or self.transport or self.otherwise}{tries}"


def failure_of(error: BaseException) -> Failure:
    """Parse an `obstore` error."""
    text, _, debug = str(error).partition("\n\nDebug source")

    def found(pattern: re.Pattern[str], where: str) -> str:
        match = pattern.search(where)
        return match[1] if match else ""

    status, system = found(_STATUS, text), found(_SYSTEM, text)
    if isinstance(error, PermissionError):
        system = system or str(errno.EACCES)
    return Failure(
        status=int(status) if status else None,
        code=found(_CODE, text),
        said=" ".join(found(_SAID, text).split()),
        retries=int(found(_RETRY_COUNT, text) or 0),
        transport=next((meaning for sign, meaning in _TRANSPORT if sign in debug), ""),
        system=int(system) if system else None,
        no_credentials=any(host in text for host in _METADATA_SERVICES),
        redirected="BareRedirect" in debug,
        otherwise=_ADDRESS.sub("...", " ".join(text.split()))[:_SAID_MOST] or type(error).__name__,
    )


def explained(url: str, doing: str, error: BaseException) -> StorageError:
    """Return the error for a failed request; `doing` names the operation, such as "reading a/b"."""
    failure = failure_of(error)
    kind = StorageError if failure.is_final else Unanswered
    if failure.system is not None:
        kind = StorageFull if failure.system in (errno.ENOSPC, errno.EDQUOT) else kind
        return kind(failure.system, f"{url}: {doing} failed: {_SYSTEM_SAYS.get(failure.system, 'error of the system')}")
    number, advice = _advice(url.partition("://")[0], failure)
    return kind(number, f"{url}: {doing} failed: {failure.evidence}{advice and f'; {advice}'}")


def _advice(scheme: str, failure: Failure) -> tuple[int, str]:
    names, endpoint = _VARIABLES.get(scheme, "its credentials"), _ENDPOINTS.get(scheme, "the endpoint")
    cases = (
        (failure.no_credentials, errno.EACCES, f"no credentials were found: set {names}, or give them as options"),
        (failure.is_missing_bucket, errno.ENOENT, f"create the bucket, or check its name and {endpoint}"),
        (failure.is_denied, errno.EACCES, f"check {names}, and that they may read, write, list and delete there"),
        (failure.redirected, errno.EINVAL, "the bucket is in another region: set AWS_REGION"),
        (failure.transport == _TIMED_OUT, errno.ETIMEDOUT, "it may have been applied or not"),
        (bool(failure.transport), errno.EHOSTUNREACH, f"check the network and {endpoint}"),
        (
            failure.status == _UNSUPPORTED,
            errno.ENOTSUP,
            "the server does not support it; sawlog needs conditional writes",
        ),
    )
    return next(((number, advice) for applies, number, advice in cases if applies), (errno.EIO, ""))


_VARIABLES = {
    **dict.fromkeys(("s3", "s3a"), "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN)"),
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    **dict.fromkeys(("az", "abfs", "abfss"), "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
}
_ENDPOINTS = {
    **dict.fromkeys(("s3", "s3a"), "AWS_ENDPOINT_URL"),
    **dict.fromkeys(("az", "abfs", "abfss"), "AZURE_STORAGE_ACCOUNT_NAME"),
}
_SYSTEM_SAYS = {
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "the quota is used up",
    errno.EIO: "input/output error of the disk",
    errno.EMFILE: "too many open files",
}
