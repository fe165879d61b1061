/* A hash of a short byte string, for tables in memory. */
#ifndef BERTH_DATA_HASH_H
#define BERTH_DATA_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t hash_mix(uint64_t value) {
    value *= 0x9E3779B97F4A7C15ull;
    return value ^ value >> 32;
}

static inline uint64_t hash_bytes(const void *bytes, size_t length) {
    const char *at = bytes;
    uint64_t hash = length, block;
    for (; length >= 8; at += 8, length -= 8) {
        memcpy(&block, at, 8);
        hash = hash_mix(hash ^ block);
    }
    block = 0;
    memcpy(&block, at, length);
    return hash_mix(hash_mix(hash ^ block));
}

#endif
