/* UTF-8, one character at a time. */
#ifndef BERTH_DATA_UTF8_H
#define BERTH_DATA_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UTF8_LONGEST = 4 };
#define UTF8_REPLACEMENT 0xFFFDu

/* Decodes the character at `at` (at < end) and returns its length in bytes. A broken sequence gives U+FFFD and the
 * length of its longest prefix that could have begun a character (Unicode's "maximal subpart", as Python replaces it).
 */
static inline size_t utf8_decode(const uint8_t *at, const uint8_t *end, uint32_t *character) {
    uint32_t first = *at;
    *character = first;
    if (first < 0x80)
        return 1;
    size_t length = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    *character = UTF8_REPLACEMENT;
    if (!length)
        return 1;
    /* the second byte excludes overlong forms, surrogates and values above U+10FFFF */
    uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    uint32_t value = first & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (at + i == end || at[i] < low || at[i] > high)
            return i;
        value = value << 6 | (at[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *character = value;
    return length;
}

/* True where utf8_decode's U+FFFD stands for broken bytes, not for a U+FFFD written in the text. */
static inline bool utf8_broken(const uint8_t *at, size_t length, uint32_t character) {
    return character == UTF8_REPLACEMENT && !(length == 3 && at[0] == 0xEF && at[1] == 0xBF && at[2] == 0xBD);
}

/* Writes a character, 1 to UTF8_LONGEST bytes, and returns how many. */
static inline size_t utf8_encode(uint32_t character, uint8_t *to) {
    if (character < 0x80) {
        to[0] = (uint8_t)character;
        return 1;
    }
    size_t length = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    for (size_t i = length; --i > 0; character >>= 6)
        to[i] = (uint8_t)(0x80 | (character & 0x3F));
    to[0] = (uint8_t)((0xF00u >> length & 0xFF) | character);
    return length;
}

#endif
