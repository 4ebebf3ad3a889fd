/* CRC-32C of a range of bytes, for batches that are too small for a call out of the kernel.

   Where the processor computes it (SSE 4.2, ARMv8) that is used, three streams at a time for long ranges, because the
   instruction has a result only after three cycles; elsewhere a table of eight bytes a step. Which, is decided when the
   module is loaded. */

#ifndef SAWLOG_CRC32C_H
#define SAWLOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define SAWLOG_CRC_INTEL 1
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#define SAWLOG_CRC_ARM 1
#include <arm_acle.h>
#endif

/* The polynomial of CRC-32C, its bits in reverse. */
#define SAWLOG_CRC_POLYNOMIAL 0x82f63b78u
/* Bytes of one of three streams. */
#define SAWLOG_CRC_STREAM 1024

static uint32_t sawlog_crc_table[8][256];
/* What a checksum becomes when SAWLOG_CRC_STREAM bytes of zero follow, for each byte of it. */
static uint32_t sawlog_crc_shift[4][256];
static int sawlog_crc_is_fast = 0;

static uint32_t sawlog_crc_by_table(uint32_t crc, const unsigned char *at, size_t size)
{
    while (size >= 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        low = __builtin_bswap32(low);
        high = __builtin_bswap32(high);
#endif
        low ^= crc;
        crc = sawlog_crc_table[7][low & 255] ^ sawlog_crc_table[6][low >> 8 & 255] ^
              sawlog_crc_table[5][low >> 16 & 255] ^ sawlog_crc_table[4][low >> 24] ^
              sawlog_crc_table[3][high & 255] ^ sawlog_crc_table[2][high >> 8 & 255] ^
              sawlog_crc_table[1][high >> 16 & 255] ^ sawlog_crc_table[0][high >> 24];
        at += 8;
        size -= 8;
    }
    while (size--)
        crc = sawlog_crc_table[0][(crc ^ *at++) & 255] ^ crc >> 8;
    return crc;
}

static inline uint32_t sawlog_crc_shifted(uint32_t crc)
{
    return sawlog_crc_shift[0][crc & 255] ^ sawlog_crc_shift[1][crc >> 8 & 255] ^
           sawlog_crc_shift[2][crc >> 16 & 255] ^ sawlog_crc_shift[3][crc >> 24];
}

#if defined(SAWLOG_CRC_INTEL) || defined(SAWLOG_CRC_ARM)

#if defined(SAWLOG_CRC_INTEL)
#define SAWLOG_CRC_TARGET __attribute__((target("sse4.2")))
#define SAWLOG_CRC_EIGHT(crc, word) ((uint32_t)__builtin_ia32_crc32di((crc), (word)))
#define SAWLOG_CRC_ONE(crc, byte) ((uint32_t)__builtin_ia32_crc32qi((crc), (byte)))
#else
#define SAWLOG_CRC_TARGET
#define SAWLOG_CRC_EIGHT(crc, word) __crc32cd((crc), (word))
#define SAWLOG_CRC_ONE(crc, byte) __crc32cb((crc), (byte))
#endif

SAWLOG_CRC_TARGET
static uint32_t sawlog_crc_by_processor(uint32_t crc, const unsigned char *at, size_t size)
{
    while (size >= 3 * SAWLOG_CRC_STREAM) {
        uint32_t second = 0, third = 0;
        size_t i;
        for (i = 0; i < SAWLOG_CRC_STREAM; i += 8) {
            uint64_t a, b, c;
            if (i % 64 == 0) { /* a processor that sees three streams of a kilobyte does not fetch ahead by itself */
                __builtin_prefetch(at + i + 3 * SAWLOG_CRC_STREAM);
                __builtin_prefetch(at + i + 4 * SAWLOG_CRC_STREAM);
                __builtin_prefetch(at + i + 5 * SAWLOG_CRC_STREAM);
            }
            memcpy(&a, at + i, 8);
            memcpy(&b, at + SAWLOG_CRC_STREAM + i, 8);
            memcpy(&c, at + 2 * SAWLOG_CRC_STREAM + i, 8);
            crc = SAWLOG_CRC_EIGHT(crc, a);
            second = SAWLOG_CRC_EIGHT(second, b);
            third = SAWLOG_CRC_EIGHT(third, c);
        }
        crc = sawlog_crc_shifted(sawlog_crc_shifted(crc) ^ second) ^ third;
        at += 3 * SAWLOG_CRC_STREAM;
        size -= 3 * SAWLOG_CRC_STREAM;
    }
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc = SAWLOG_CRC_EIGHT(crc, word);
        at += 8;
        size -= 8;
    }
    while (size--)
        crc = SAWLOG_CRC_ONE(crc, *at++);
    return crc;
}

#endif

/* Once, before anything else. */
static void sawlog_crc_prepare(void)
{
    uint32_t value, bit[32];
    int i, j;
    for (i = 0; i < 256; i++) {
        value = (uint32_t)i;
        for (j = 0; j < 8; j++)
            value = value & 1 ? value >> 1 ^ SAWLOG_CRC_POLYNOMIAL : value >> 1;
        sawlog_crc_table[0][i] = value;
    }
    for (j = 1; j < 8; j++)
        for (i = 0; i < 256; i++) {
            value = sawlog_crc_table[j - 1][i];
            sawlog_crc_table[j][i] = sawlog_crc_table[0][value & 255] ^ value >> 8;
        }
    for (i = 0; i < 32; i++) { /* a checksum is linear: what happens to each of its bits says all */
        value = (uint32_t)1 << i;
        for (j = 0; j < SAWLOG_CRC_STREAM; j++)
            value = sawlog_crc_table[0][value & 255] ^ value >> 8;
        bit[i] = value;
    }
    for (j = 0; j < 4; j++)
        for (i = 0; i < 256; i++) {
            int k;
            value = 0;
            for (k = 0; k < 8; k++)
                if (i >> k & 1)
                    value ^= bit[8 * j + k];
            sawlog_crc_shift[j][i] = value;
        }
#if defined(SAWLOG_CRC_INTEL)
    __builtin_cpu_init();
    sawlog_crc_is_fast = __builtin_cpu_supports("sse4.2");
#elif defined(SAWLOG_CRC_ARM)
    sawlog_crc_is_fast = 1;
#endif
}

static uint32_t sawlog_crc32c(const unsigned char *at, size_t size)
{
#if defined(SAWLOG_CRC_INTEL) || defined(SAWLOG_CRC_ARM)
    if (sawlog_crc_is_fast)
        return ~sawlog_crc_by_processor(~(uint32_t)0, at, size);
#endif
    return ~sawlog_crc_by_table(~(uint32_t)0, at, size);
}

#endif
