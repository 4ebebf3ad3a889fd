/* Big-endian numbers in a buffer, each in one load or store. Written byte by byte, as `primitives.py` does for plain
   Python, the compiler does not find out that it could do so. */

#ifndef SAWLOG_NUMBERS_H
#define SAWLOG_NUMBERS_H

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define SAWLOG_SWAP16(x) (x)
#define SAWLOG_SWAP32(x) (x)
#define SAWLOG_SWAP64(x) (x)
#else
#define SAWLOG_SWAP16(x) __builtin_bswap16(x)
#define SAWLOG_SWAP32(x) __builtin_bswap32(x)
#define SAWLOG_SWAP64(x) __builtin_bswap64(x)
#endif

static inline int16_t sawlog_get16(const unsigned char *at) {
    uint16_t x;
    memcpy(&x, at, 2);
    return (int16_t)SAWLOG_SWAP16(x);
}

static inline uint32_t sawlog_get32(const unsigned char *at) {
    uint32_t x;
    memcpy(&x, at, 4);
    return SAWLOG_SWAP32(x);
}

static inline int64_t sawlog_get64(const unsigned char *at) {
    uint64_t x;
    memcpy(&x, at, 8);
    return (int64_t)SAWLOG_SWAP64(x);
}

static inline void sawlog_put32(unsigned char *at, uint32_t x) {
    x = SAWLOG_SWAP32(x);
    memcpy(at, &x, 4);
}

static inline void sawlog_put64(unsigned char *at, uint64_t x) {
    x = SAWLOG_SWAP64(x);
    memcpy(at, &x, 8);
}

#endif
