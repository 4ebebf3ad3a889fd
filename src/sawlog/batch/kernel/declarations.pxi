# What all units share, for the compiler: `declarations.py` says the same to plain Python, with a word on each.
# C constants, because a name of Python's would be looked up in every turn of a loop; cpdef: Python sees them, too.

cpdef enum:
    POSITION = 0
    SIZE = 1
    BASE = 2
    LAST = 3
    COUNT = 4
    ATTRIBUTES = 5
    BASE_TIME = 6
    MAX_TIME = 7
    PRODUCER_ID = 8
    PRODUCER_EPOCH = 9
    BASE_SEQUENCE = 10
    CRC = 11
    BODY = 12
    BODY_END = 13
    LEADER_EPOCH = 14
    MARKER = 15
    ROW_WIDTH = 16

cpdef enum:
    HASH_LOW = 0
    HASH_HIGH = 1
    OFFSET_PLUS_ONE = 2
    KEY_WIDTH = 3

cpdef enum:
    COMPRESSION_MASK = 0x07
    TIMESTAMP_TYPE_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    DELETE_HORIZON_BIT = 0x40

cpdef enum:
    ABORT_MARKER = 1
    COMMIT_MARKER = 2
    OTHER_MARKER = 3
    MARKER_MASK = 0xFF
    MARKER_SHIFT = 8

cpdef enum:
    HEADER_BYTES = 61
    LENGTH_END = 12
    LEAST_RECORD = 7
    LEAST_LENGTH = 6
    VIEW_BYTES = 16

cpdef enum:
    MOST_DELTA = 0x7FFFFFFF
    CELL_SHIFT = 12
    PLAIN_CELL = 0x8000

cpdef enum:
    SCAN_MORE = 0
    SCAN_END = 1
    SCAN_SHORT = 2
    SCAN_BAD = 3

cpdef enum:
    WALK_MORE = 0
    WALK_END = 1
    WALK_SHORT = 2
    WALK_BAD = 3

cpdef enum:
    JSON_KIND = 0
    JSON_SLOT = 1
    JSON_CHILD = 2
    JSON_MANY = 3
    JSON_NAME = 4
    JSON_SIZE = 5
    JSON_NODE_WIDTH = 6

cpdef enum:
    JSON_STRUCT = 0
    JSON_LONG = 1
    JSON_DOUBLE = 2
    JSON_BOOLEAN = 3
    JSON_STRING = 4

cpdef enum:
    JSON_ABSENT = 0
    JSON_PRESENT = 1
    JSON_NULL = 2

cpdef enum:
    JSON_DEPTH = 64
    JSON_DIGITS = 200

cdef extern from "numbers.h" nogil:
    short sawlog_get16(const unsigned char *at)
    unsigned int sawlog_get32(const unsigned char *at)
    long long sawlog_get64(const unsigned char *at)
    void sawlog_put32(unsigned char *at, unsigned int x)
    void sawlog_put64(unsigned char *at, unsigned long long x)

cdef extern from "crc32c.h" nogil:
    unsigned int sawlog_crc32c(const unsigned char *at, size_t size)
    unsigned int sawlog_crc_by_table(unsigned int crc, const unsigned char *at, size_t size)
    void sawlog_crc_prepare()

cdef struct Fields:
    Py_ssize_t end
    long long time_delta
    long long delta
    Py_ssize_t key_at
    Py_ssize_t key_size
    Py_ssize_t value_at
    Py_ssize_t value_size
    Py_ssize_t headers_at
    Py_ssize_t header_count

cdef struct Walk:
    Py_ssize_t at
    Py_ssize_t end
    long long left
    long long most
    long long previous
    long long base
    long long base_time
    long long max_time
    bint log_time
    Fields record
