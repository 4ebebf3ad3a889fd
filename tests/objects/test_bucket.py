"""A bucket reports defects of the server, the network and its settings, and never takes them for an answer."""

from __future__ import annotations

import errno
import multiprocessing
import pickle
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import sawlog
from sawlog.errors import InvalidConfig, SawlogError, StorageError
from sawlog.store.objects import bucket as bucket_module
from sawlog.store.objects.bucket import Bucket, Unanswered

from .careless import careless
from .proxy import Fault, Faults, Proxy
from .servers import BUCKET, KEY_ID, SECRET, Server

KEY = "folder/object"
#: The smallest part that S3 allows in a multipart upload.
PART_BYTES = 5 << 20


def behind(proxy: Proxy, server: Server, **more: str) -> Bucket:
    """Return a bucket whose requests go through a proxy."""
    return Bucket(server.new_url(), {**server.options, "endpoint": proxy.endpoint, **more})


def parts_left(server: Server) -> int:
    """Return multipart uploads that were neither completed nor aborted."""
    with urllib.request.urlopen(f"{server.endpoint}/{BUCKET}?uploads", timeout=60) as answer:
        return answer.read().count(b"<UploadId>")


# --- uploads


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the smallest parts that S3 allows: larger ones take seconds of the servers' CPU."""
    monkeypatch.setattr("sawlog.store.objects.bucket.PART_BYTES", PART_BYTES)


@pytest.mark.usefixtures("small_parts")
def test_an_object_is_one_request_unless_it_is_very_large(moto: Server) -> None:
    """An upload in one request leaves nothing behind if the process is killed."""
    with Proxy(moto.endpoint) as proxy:
        bucket = behind(proxy, moto)
        bucket.put(KEY, bytes(PART_BYTES))
        assert (proxy.counts["PUT"], proxy.counts["POST"]) == (1, 0)
        bucket.put(KEY, bytes(PART_BYTES + 1))
        assert (proxy.counts["PUT"], proxy.counts["POST"]) == (3, 2)
    assert parts_left(moto) == 0


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_an_upload_that_fails_leaves_no_parts(moto: Server, method: str) -> None:
    with Proxy(moto.endpoint) as proxy:
        bucket = behind(proxy, moto)
        faults = [Fault.DENIED] if method == "PUT" else [Fault.NONE, Fault.DENIED]  # a part, the completion
        proxy.plan(method, KEY, *faults)
        with pytest.raises(StorageError, match="storing"):
            bucket.put(KEY, bytes(PART_BYTES + 1))
        assert proxy.counts["DELETE"] == 1
        assert bucket.get(KEY) is None
    assert parts_left(moto) == 0


# --- error messages


@pytest.mark.parametrize(
    "request_of",
    [
        lambda bucket: bucket.get(KEY),
        lambda bucket: bucket.get_range(KEY, 0, 1),
        lambda bucket: bucket.create(KEY, b""),
        lambda bucket: bucket.put(KEY, b""),
        lambda bucket: list(bucket.list("folder/")),
        lambda bucket: bucket.delete(KEY),
    ],
    ids=["get", "get_range", "create", "put", "list", "delete"],
)
def test_a_missing_bucket_is_an_error_and_not_an_empty_one(
    moto: Server, request_of: Callable[[Bucket], object]
) -> None:
    bucket = Bucket("s3://no-such-bucket/store", moto.options)
    with pytest.raises(StorageError, match=r"s3://no-such-bucket/store.*NoSuchBucket.*create the bucket") as caught:
        request_of(bucket)
    assert caught.value.errno == errno.ENOENT
    assert not isinstance(caught.value, Unanswered)


def test_wrong_credentials_are_reported_without_any_secret() -> None:
    with careless("forbidden") as (server, _):
        bucket = Bucket(server.new_url(), {**server.options, "session_token": "a-token-for-nobody"})
        for request in (lambda: bucket.get(KEY), lambda: bucket.create(KEY, b""), lambda: list(bucket.list("a/"))):
            with pytest.raises(StorageError, match=r"403 InvalidAccessKeyId.*AWS_ACCESS_KEY_ID") as caught:
                request()
            assert caught.value.errno == errno.EACCES
            said = str(caught.value)
            assert not any(secret in said for secret in (KEY_ID, SECRET, "a-token-for-nobody", "Signature="))
            assert caught.value.__suppress_context__, "a traceback would show the whole answer"


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://no-such-host.invalid:9000", "the name of its host cannot be resolved"),
        ("http://127.0.0.1:1", "nothing answers at its endpoint"),
    ],
)
def test_an_unreachable_server_is_reported(endpoint: str, said: str) -> None:
    bucket = Bucket("s3://bucket/store", {**Server(endpoint).options, "max_retries": "0"})
    with pytest.raises(Unanswered, match=rf"s3://bucket/store.*{said}.*AWS_ENDPOINT_URL"):
        bucket.get(KEY)


def test_a_request_fails_after_its_timeout(moto: Server) -> None:
    said = "timed out; it may have been applied or not"
    with Proxy(moto.endpoint, Faults(latency_s=5.0)) as proxy, pytest.raises(Unanswered, match=said) as caught:
        behind(proxy, moto, timeout="100ms", max_retries="0").create(KEY, b"")
    assert caught.value.errno == errno.ETIMEDOUT


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("http://bucket", {}, "is not an address of object storage"),
        ("s3://", {}, "does not name a bucket"),
        ("s3://bucket/store", {"endpont": "http://hidden"}, "'endpont' is not valid"),
        ("s3://bucket/store", {"max_retries": "many"}, "max_retries must be a number"),
        ("s3://bucket/store", {"retry_timeout": "soon"}, "retry_timeout must be a duration"),
        ("s3://someone:hidden@bucket/store", {}, "as options"),
        ("az://bucket/store?sig=hidden", {}, "as options"),
    ],
)
def test_an_invalid_address_or_option_is_refused_without_showing_values(
    url: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=said) as caught:
        Bucket(url, options).get(KEY)
    assert "hidden" not in str(caught.value)


def test_a_directory_that_cannot_be_created_raises_an_error_of_sawlog(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SawlogError, match="file"):
        Bucket(f"file://{tmp_path}/file/store").get(KEY)


def test_endpoint_and_credentials_come_from_the_customary_environment_variables(
    moto: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto.variables.items():
        monkeypatch.setenv(name, value)
    url = moto.new_url()
    assert Bucket(url).create(KEY, b"here")
    assert Bucket(url, moto.options).get(KEY) == b"here"


# --- unknown outcomes


def test_a_conflicting_create_is_retried(moto: Server) -> None:
    with Proxy(moto.endpoint) as proxy:
        bucket = behind(proxy, moto)
        proxy.plan("PUT", KEY, Fault.CONFLICT, Fault.CONFLICT)
        assert bucket.create(KEY, b"mine")
        assert proxy.counts[Fault.CONFLICT] == 2
        proxy.plan("PUT", KEY, Fault.CONFLICT)
        assert not bucket.create(KEY, b"other")
        assert bucket.get(KEY) == b"mine"


def test_a_create_that_always_conflicts_is_unanswered_and_not_refused(
    moto: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "_CONFLICTS_S", 0.05)
    with Proxy(moto.endpoint, Faults(conflict=1.0)) as proxy:
        bucket = behind(proxy, moto)
        with pytest.raises(Unanswered, match="409 ConditionalRequestConflict"):
            bucket.create(KEY, b"mine")
        assert bucket.get(KEY) is None


@pytest.mark.parametrize("fault", [Fault.LOST_AFTER, Fault.FAILED, Fault.LOST_BEFORE, Fault.BUSY, Fault.LATE])
def test_a_create_that_fails_in_transit_is_retried_and_stores_its_content(moto: Server, fault: Fault) -> None:
    with Proxy(moto.endpoint, Faults(late_s=0.3)) as proxy:
        bucket = behind(proxy, moto)
        proxy.plan("PUT", KEY, fault)
        # After a lost answer the second attempt finds its own object: refused, so the caller has to look.
        applied = fault in (Fault.LOST_AFTER, Fault.FAILED)
        assert bucket.create(KEY, b"mine") == (not applied)
        proxy.settle()
        assert bucket.get(KEY) == b"mine"


def test_a_refusal_after_a_lost_answer_proves_nothing(moto: Server) -> None:
    with Proxy(moto.endpoint) as proxy:
        bucket = behind(proxy, moto)
        proxy.plan("PUT", KEY, Fault.LOST_AFTER, Fault.DENIED)
        with pytest.raises(Unanswered, match="403 AccessDenied"):
            bucket.create(KEY, b"mine")
        assert bucket.get(KEY) == b"mine"
        proxy.plan("PUT", "another", Fault.DENIED)
        with pytest.raises(StorageError, match=r"403 AccessDenied.*AWS_ACCESS_KEY_ID") as caught:
            bucket.create("another", b"mine")
        assert not isinstance(caught.value, Unanswered)
        assert caught.value.errno == errno.EACCES


def test_requests_wait_for_a_busy_server(moto: Server) -> None:
    with Proxy(moto.endpoint) as proxy:
        bucket = behind(proxy, moto)
        proxy.plan("PUT", KEY, Fault.BUSY, Fault.BUSY)
        assert bucket.create(KEY, b"mine")
        proxy.plan("GET", KEY, Fault.BUSY, Fault.LOST_AFTER)
        assert bucket.get(KEY) == b"mine"


# --- several objects


def test_objects_are_deleted_in_bulk_even_if_some_are_missing(moto: Server, tmp_path: Path) -> None:
    for bucket in (Bucket(moto.new_url(), moto.options), Bucket(f"file://{tmp_path}"), Bucket("memory://many")):
        for name in ("a/1", "a/2", "b"):
            bucket.put(name, b"x")
        bucket.delete_many(["a/0", "a/1", "a/2", "c"])
        assert [entry.key for entry in bucket.list("")] == ["b"]


def test_a_listing_has_the_keys_after_a_given_one_in_order(moto: Server, tmp_path: Path) -> None:
    names = ["a/" + name for name in ("1", "10", "2", "B", "a", "b")]
    for bucket in (Bucket(moto.new_url(), moto.options), Bucket(f"file://{tmp_path}"), Bucket("memory://listing")):
        for name in reversed(names):
            bucket.put(name, name.encode())
        bucket.put("ab", b"")
        assert [entry.key for entry in bucket.list("a/")] == names
        assert [(entry.key, entry.size_bytes) for entry in bucket.list("a/", "a/2")] == [
            ("a/B", 3), ("a/a", 3), ("a/b", 3),
        ]  # fmt: skip


# --- processes

_FORKING = """
import multiprocessing, sys
from sawlog.store.objects.bucket import Bucket

def use(bucket, queue):
    try:
        queue.put(bucket.get("key"))
    except Exception as error:
        queue.put(f"{type(error).__name__}: {error}")

bucket = Bucket(sys.argv[1])
context = multiprocessing.get_context("fork")
for _ in range(2):
    queue = context.Queue()
    child = context.Process(target=use, args=(bucket, queue))
    child.start()
    print(queue.get(timeout=60))
    child.join(60)
    bucket.put("key", b"again")
    print(bucket.get("key"))
"""


def test_a_forked_child_can_use_a_bucket_unless_its_parent_had_used_one(tmp_path: Path) -> None:
    """Runs in a process of its own, because pytest has threads and has used buckets."""
    Bucket(f"file://{tmp_path}").put("key", b"value")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORKING, f"file://{tmp_path}"],
        env={"PYTHONPATH": str(Path(sawlog.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, parent, after, again = done.stdout.splitlines()
    assert (before, parent, again) == ("b'value'", "b'again'", "b'again'")
    assert after.startswith("StorageError")
    assert 'get_context("spawn")' in after


def test_a_spawned_process_can_use_a_pickled_bucket(moto: Server) -> None:
    bucket = Bucket(moto.new_url(), moto.options)
    bucket.put(KEY, b"value")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(bucket.get, (KEY,)).get(60) == b"value"


def test_a_bucket_in_memory_cannot_be_pickled() -> None:
    with pytest.raises(InvalidConfig, match="only in its own process"):
        pickle.dumps(Bucket(f"memory://{uuid.uuid4().hex}"))


def test_a_create_that_is_answered_not_found_may_have_been_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore repeats a create by itself and reports only the last answer."""
    from obstore.exceptions import NotFoundError

    class Store:
        def put(self, *given: object, **more: object) -> None:
            raise NotFoundError("Object at location commits/1 not found")

    monkeypatch.setattr(Bucket, "_store", Store())
    with pytest.raises(Unanswered):
        Bucket("memory://answered-not-found").create("commits/1", b"x")
