"""Classification of failed requests: one error whose message says what to do, derived from obstore's.

A failed request was either *rejected*, and changed nothing, or its outcome is unknown: `Unanswered`, and the caller
looks. A request counts as rejected only if the server refused the first attempt. After a retry, even a clear refusal
says nothing about the attempt before it.

Messages contain the address of the store, the key, the server's status, its error code and its short text. They omit
the request URL, the headers and the rest of the response, which can contain signatures, tokens and keys.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from ....errors import StorageError, StorageFull

#: Azure's code for creating a blob that exists.
_EXISTS = frozenset({"BlobAlreadyExists"})
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "BucketNotFound"})
#: Codes for bad credentials that come with a status other than 401 and 403.
_BAD_CREDENTIALS = frozenset({"ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "AuthorizationHeaderMalformed"})
_DENIED = frozenset({401, 403})
_UNSUPPORTED = 501
#: The server may still process such a request, or has not looked at it.
_NOT_FINAL = frozenset({408, 409, 429})
#: Where clients look for instance credentials if nothing else provides them.
_METADATA_SERVICES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*([\w.-]{1,80})\s*</Code>")
_SAID = re.compile(r"<Message>\s*([^<]{1,200})")
_ADDRESS = re.compile(r"\w+://\S+")
_SAID_MOST = 160
_RETRIES = re.compile(r"after (\d+) retries")
_SYSTEM = re.compile(r"\(os error (\d+)\)")
_TIMED_OUT = "timed out"
#: Fragments of the HTTP client's errors and their meaning; the first match wins.
_TRANSPORT = (
    ("dns error", "the name of its host cannot be resolved"),
    ("certificate", "its certificate is not trusted"),
    ("kind: Timeout", _TIMED_OUT),
    ("tcp connect error", "nobody answers at its endpoint"),
    ("kind: Connect", "nobody answers at its endpoint"),
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
    #: What was wrong with the connection, if there was no answer.
    transport: str
    system: int | None
    no_credentials: bool
    redirected: bool
    #: The client's message for all other failures, without URLs.
    otherwise: str

    @property
    def is_conflict(self) -> bool:
        """Whether a concurrent request for the same key interfered: not applied, and the key may or may not exist."""
        return self.status == 409 and self.code not in _EXISTS

    @property
    def is_missing_bucket(self) -> bool:
        """Whether the bucket does not exist, as opposed to the object."""
        return self.status == 404 and self.code in _NO_BUCKET

    @property
    def is_denied(self) -> bool:
        """Whether the credentials are invalid or insufficient."""
        return self.status in _DENIED or self.code in _BAD_CREDENTIALS

    @property
    def is_final(self) -> bool:
        """Whether the request was certainly not applied."""
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
        retries=int(found(_RETRIES, text) or 0),
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
    """Return an error number and what to do."""
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
