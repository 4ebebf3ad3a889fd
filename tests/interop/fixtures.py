"""Three records ("hello", "", "log") in every layout, written by hand from the documentation of the formats.

Checksums are CRC-32 as `zlib.crc32` gives it for the bytes that stand beside them.
"""

from __future__ import annotations

from .files import bytes_of

VALUES = [b"hello", b"", b"log"]

#: laminarmq, base index 42, u32 indices.
LAMINARMQ = {
    "42.index": bytes_of("""
        2a 00 00 00 00 00 00 00   00 00 00 00 00 00 00 00      # base index 42, padding
        32 25 37 5d 00 00 00 00   0e 00 00 00   00 00 00 00    # CRC, 14 bytes at 0
        6e 50 cd e6 00 00 00 00   09 00 00 00   0e 00 00 00    # CRC, 9 bytes at 14
        de 53 bf 57 00 00 00 00   0c 00 00 00   17 00 00 00    # CRC, 12 bytes at 23
    """),
    "42.store": bytes_of("""
        05 00 00 00   01 2a 00 00 00   68 65 6c 6c 6f          # 5 bytes of metadata: Some(42); hello
        05 00 00 00   01 2b 00 00 00                           # Some(43); nothing
        05 00 00 00   01 2c 00 00 00   6c 6f 67                # Some(44); log
    """),
}

#: With u64 indices.
LAMINARMQ_64 = {
    "42.index": bytes_of("""
        2a 00 00 00 00 00 00 00   00 00 00 00 00 00 00 00
        9e 4a 04 7b 00 00 00 00   12 00 00 00   00 00 00 00    # CRC, 18 bytes at 0
        29 26 86 3b 00 00 00 00   0d 00 00 00   12 00 00 00    # CRC, 13 bytes at 18
        23 a5 9d 56 00 00 00 00   10 00 00 00   1f 00 00 00    # CRC, 16 bytes at 31
    """),
    "42.store": bytes_of("""
        09 00 00 00   01 2a 00 00 00 00 00 00 00   68 65 6c 6c 6f
        09 00 00 00   01 2b 00 00 00 00 00 00 00
        09 00 00 00   01 2c 00 00 00 00 00 00 00   6c 6f 67
    """),
}

#: RustLog, base offset 7.
RUSTLOG = {
    "00000000000000000007.log": bytes_of("""
        00 00 00 05   00 00 00 00 00 00 00 07   68 65 6c 6c 6f
        00 00 00 00   00 00 00 00 00 00 00 08
        00 00 00 03   00 00 00 00 00 00 00 09   6c 6f 67
    """),
    "00000000000000000007.index": bytes_of("""
        00 00 00 00 00 00 00 07   00 00 00 00 00 00 00 00      # offset 7 at byte 0
    """),
}

#: GUMLOG, base offset 300: the offset takes two bytes of varint (0x12c = 10 0101100).
GUMLOG = {
    "300.store": bytes_of("""
        00 00 00 00 00 00 00 0a   0a 05 68 65 6c 6c 6f   10 ac 02    # value = hello, offset = 300
        00 00 00 00 00 00 00 03                          10 ad 02    # no value, offset = 301
        00 00 00 00 00 00 00 08   0a 03 6c 6f 67         10 ae 02    # value = log, offset = 302
    """),
    "300.index": bytes_of("""
        00 00 00 00   00 00 00 00 00 00 00 00
        00 00 00 01   00 00 00 00 00 00 00 12                  # 18
        00 00 00 02   00 00 00 00 00 00 00 1d                  # 29
    """),
}

#: The plain segmented log, base (in bytes) 4096.
PLAIN = {
    "4096.store": bytes_of("""
        e5 fa 5e f3   0d 00 00 00   00 10 00 00 00 00 00 00   68 65 6c 6c 6f    # byte offset 0x1000
        e8 7c a7 36   08 00 00 00   15 10 00 00 00 00 00 00                     # byte offset 0x1015
        46 a2 9c cb   0b 00 00 00   25 10 00 00 00 00 00 00   6c 6f 67          # byte offset 0x1025
    """),
}

#: The plain segmented log with the head that laminarmq's book shows; there is no way to write an empty record.
PLAIN_64 = {
    "4096.store": bytes_of("""
        86 a6 10 36 00 00 00 00   05 00 00 00 00 00 00 00   68 65 6c 6c 6f
        c5 68 3f 8f 00 00 00 00   03 00 00 00 00 00 00 00   6c 6f 67
    """),
}

#: Format, files, first offset.
FIXTURES = [
    ("laminarmq", LAMINARMQ, 42),
    ("laminarmq", LAMINARMQ_64, 42),
    ("rustlog", RUSTLOG, 7),
    ("gumlog", GUMLOG, 300),
    ("plain", PLAIN, 0),
]
NAMES = ["laminarmq", "laminarmq-u64", "rustlog", "gumlog", "plain"]
