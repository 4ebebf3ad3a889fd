"""A record that is never completely in memory: a file is appended chunk by chunk, or not at all."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from sawlog import Log
from sawlog.errors import StreamAborted


def chunks_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(64 << 10), b"")


def broken(chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield next(chunks)
    raise ConnectionError("the upload broke off")


with TemporaryDirectory() as directory, Log.open(f"{directory}/uploads") as log:
    upload = Path(directory, "upload.bin")
    upload.write_bytes(bytes(range(256)) * 20_000)  # 5 MB

    offset = log.append_stream(chunks_of(upload), key=b"upload.bin")
    print(f"offset {offset}: the same as the file: {log.read(offset).value == upload.read_bytes()}")
    before = log.size_bytes
    try:
        log.append_stream(broken(chunks_of(upload)))
    except StreamAborted as error:
        print(f"aborted: {error.__cause__}; of {before:,} bytes the log now holds {log.size_bytes:,}")
