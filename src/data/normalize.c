#include "data/normalize.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "data/utf8.h"

/* What becomes of an input character: an entry of 32 bits, class | combining class << 3 | value << 11. The value is the
 * character to write (0: itself) or, for CHAR_MANY, where in `sequences` the count and the entries begin. */
enum char_class {
    CHAR_WORD,  /* part of a word */
    CHAR_SPACE, /* ends a word */
    CHAR_DROP,  /* vanishes */
    CHAR_MARK,  /* vanishes too, after canonical ordering, where it stands between marks (combining class 0) */
    CHAR_ALONE, /* a word of its own */
    CHAR_MANY,  /* several entries */
};
enum { CODE_POINTS = 0x110000, UNASSIGNED_PLANES = 0x40000, ASSIGNED_AGAIN = 0xE0000, LONGEST_DECOMPOSITION = 32 };

struct normalizer {
    uint8_t ascii[256]; /* the byte to write if this byte is an ASCII part of a word, else 0 */
    uint32_t *entries;  /* [CODE_POINTS] */
    uint32_t *sequences;
    uint32_t sequence_count, sequence_capacity;
    struct normalize_options options;
};

static uint32_t entry_make(enum char_class class, uint32_t combining, uint32_t value) {
    return (uint32_t) class | combining << 3 | value << 11;
}
static enum char_class entry_class(uint32_t entry) { return (enum char_class)(entry & 7); }
static uint32_t entry_combining(uint32_t entry) { return entry >> 3 & 0xFF; }
static uint32_t entry_value(uint32_t entry) { return entry >> 11; }

/* The reference classifies characters by Unicode 8 and decomposes them by Unicode 9: marks, punctuation, format
 * characters and decompositions that came later are ordinary characters to it. These ranges hold all of them up to
 * Unicode 18, and no older ones. `ordered`: Unicode 9 knew the combining class. */
static const struct late_range {
    uint32_t first, last;
    bool ordered;
} late_ranges[] = {
    {0x5C8, 0x5C9, false},     {0x61D, 0x61D, false},     {0x7FD, 0x7FD, false},     {0x890, 0x8D3, false},
    {0x8D4, 0x8E1, true},      {0x8E2, 0x8E2, false},     {0x9FD, 0x9FE, false},     {0xA76, 0xA76, false},
    {0xAFA, 0xAFF, false},     {0xB53, 0xB55, false},     {0xC04, 0xC3C, false},     {0xC77, 0xC77, false},
    {0xC84, 0xC84, false},     {0xD00, 0xD00, false},     {0xD3B, 0xD3C, false},     {0xD81, 0xD81, false},
    {0xEBA, 0xEBA, false},     {0xECE, 0xECE, false},     {0x1715, 0x1715, false},   {0x180F, 0x1886, false},
    {0x1ABF, 0x1AF0, false},   {0x1B4E, 0x1B4F, false},   {0x1B7D, 0x1B7F, false},   {0x1DF6, 0x1DFA, false},
    {0x1DFB, 0x1DFB, true},    {0x2E43, 0x2E63, false},   {0xA82C, 0xA82C, false},   {0xA8C5, 0xA8C5, false},
    {0xA8FF, 0xA8FF, false},   {0xA9BD, 0xA9BD, false},   {0x105C9, 0x105E4, false}, {0x10D24, 0x10F89, false},
    {0x11070, 0x11074, false}, {0x110C2, 0x110CD, false}, {0x111C9, 0x111C9, false}, {0x111CF, 0x111CF, false},
    {0x1123E, 0x11241, false}, {0x1133B, 0x1133B, false}, {0x11383, 0x1143F, false}, {0x11442, 0x11442, true},
    {0x11443, 0x11444, false}, {0x11446, 0x11446, true},  {0x1144B, 0x1145E, false}, {0x11660, 0x1166C, false},
    {0x116B9, 0x116B9, false}, {0x1182F, 0x11C3D, false}, {0x11C3F, 0x11C3F, true},  {0x11C41, 0x11FFF, false},
    {0x12FF1, 0x1612F, false}, {0x16D68, 0x16F4F, false}, {0x16FE2, 0x16FF1, false}, {0x1CF00, 0x1D128, false},
    {0x1D250, 0x1D281, false}, {0x1E000, 0x1E02A, true},  {0x1E08F, 0x1E6F5, false}, {0x1E944, 0x1E94A, true},
    {0x1E95E, 0x1E95F, false}};

static int compare_late(const void *key, const void *element) {
    uint32_t c = *(const uint32_t *)key;
    const struct late_range *range = element;
    return c < range->first ? -1 : c > range->last;
}

static const struct late_range *late(uint32_t c) {
    return bsearch(&c, late_ranges, sizeof late_ranges / sizeof *late_ranges, sizeof *late_ranges, compare_late);
}

/* Lower case, on the other hand, is the newest Unicode's: what older utf8proc releases do not know. */
static const struct {
    uint32_t first, last, lower;
} late_lower[] = {{0x1C89, 0x1C89, 0x1C8A},   {0xA7CB, 0xA7CB, 0x264},  {0xA7CC, 0xA7CC, 0xA7CD},
                  {0xA7CE, 0xA7CE, 0xA7CF},   {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5},
                  {0xA7DA, 0xA7DA, 0xA7DB},   {0xA7DC, 0xA7DC, 0x19B},  {0x10D50, 0x10D65, 0x10D70},
                  {0x16EA0, 0x16EB8, 0x16EBB}};

static uint32_t lower_case(uint32_t c) {
    for (size_t i = 0; i < sizeof late_lower / sizeof *late_lower; i++)
        if (c >= late_lower[i].first && c <= late_lower[i].last)
            return late_lower[i].lower + (c - late_lower[i].first);
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

static utf8proc_category_t category(uint32_t c) {
    switch (c) { /* changed their category since Unicode 8 */
        case 0x1734:
        case 0x1171E:
            return UTF8PROC_CATEGORY_MN;
        case 0x166D:
        case 0x111C9:
            return UTF8PROC_CATEGORY_PO;
    }
    return late(c) ? UTF8PROC_CATEGORY_CN : utf8proc_category((utf8proc_int32_t)c);
}

static bool is_removed(uint32_t c) {
    utf8proc_category_t kind = category(c);
    return c == 0 || c == UTF8_REPLACEMENT || kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF ||
           kind == UTF8PROC_CATEGORY_CO || kind == UTF8PROC_CATEGORY_CS;
}

static bool is_space(uint32_t c) {
    utf8proc_category_t kind = category(c);
    return c == '\t' || c == '\n' || c == '\r' || kind == UTF8PROC_CATEGORY_ZS || kind == UTF8PROC_CATEGORY_ZL ||
           kind == UTF8PROC_CATEGORY_ZP;
}

static bool is_punctuation(uint32_t c) {
    if (c < 0x80) /* ASCII's symbols count, though Unicode does not call them all punctuation */
        return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    utf8proc_category_t kind = category(c);
    return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

/* The blocks of ideographs as the reference has them: its extension E begins at U+2B920, 256 characters late. */
static bool is_ideograph(uint32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
           (c >= 0x2F800 && c <= 0x2FA1F);
}

static uint32_t combining_class(uint32_t c) {
    const struct late_range *range = late(c);
    return range && !range->ordered ? 0 : (uint32_t)utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
}

/* The entries that character `c` turns into; returns their number, 0 if it leaves no trace. */
static uint32_t char_entries(const struct normalize_options *options, uint32_t c, uint32_t *out) {
    utf8proc_int32_t parts[LONGEST_DECOMPOSITION] = {(utf8proc_int32_t)c};
    int64_t count = 1;
    if (options->strip_accents && !late(c)) {
        int boundary = 0;
        count =
            utf8proc_decompose_char((utf8proc_int32_t)c, parts, LONGEST_DECOMPOSITION, UTF8PROC_DECOMPOSE, &boundary);
    }
    uint32_t made = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t part = (uint32_t)parts[i], combining = options->strip_accents ? combining_class(part) : 0;
        if (options->strip_accents && category(part) == UTF8PROC_CATEGORY_MN) {
            if (combining == 0)
                out[made++] = entry_make(CHAR_MARK, 0, 0);
            continue;
        }
        if (options->lower_case && part == 0x130) { /* the only one whose lower case is two characters: i and a dot */
            out[made++] = entry_make(CHAR_WORD, 0, 'i');
            out[made++] = entry_make(CHAR_WORD, 0, 0x307);
            continue;
        }
        uint32_t written = options->lower_case ? lower_case(part) : part;
        bool alone = is_punctuation(written) || (options->space_cjk && is_ideograph(c));
        out[made++] = entry_make(alone ? CHAR_ALONE : CHAR_WORD, combining, written);
    }
    return made;
}

static uint32_t char_entry(struct normalizer *normalizer, uint32_t c) {
    uint32_t parts[LONGEST_DECOMPOSITION];
    if (is_space(c))
        return entry_make(CHAR_SPACE, 0, 0);
    if (is_removed(c))
        return entry_make(CHAR_DROP, 0, 0);
    uint32_t count = char_entries(&normalizer->options, c, parts), begin = normalizer->sequence_count;
    if (count == 0)
        return entry_make(CHAR_DROP, 0, 0);
    if (count == 1) /* a value of 0 keeps most of the table untouched, hence unallocated */
        return entry_value(parts[0]) == c ? entry_make(entry_class(parts[0]), entry_combining(parts[0]), 0) : parts[0];
    for (uint32_t i = 0; i <= count; i++) {
        GROW(normalizer->sequences, normalizer->sequence_count, normalizer->sequence_capacity);
        normalizer->sequences[normalizer->sequence_count++] = i == 0 ? count : parts[i - 1];
    }
    return entry_make(CHAR_MANY, 0, begin);
}

struct normalizer *normalizer_new(const struct normalize_options *options) {
    struct normalizer *normalizer = xcalloc(1, sizeof *normalizer);
    normalizer->options = *options;
    normalizer->entries = xcalloc(CODE_POINTS, sizeof *normalizer->entries);
    for (uint32_t c = 0; c < CODE_POINTS; c++) {
        if (c == UNASSIGNED_PLANES)
            c = ASSIGNED_AGAIN;
        uint32_t entry = char_entry(normalizer, c);
        if (entry)
            normalizer->entries[c] = entry;
        if (c < 0x80 && entry_class(entry) == CHAR_WORD)
            normalizer->ascii[c] = (uint8_t)(entry_value(entry) ? entry_value(entry) : c);
    }
    return normalizer;
}

void normalizer_free(struct normalizer *normalizer) {
    if (!normalizer)
        return;
    free(normalizer->entries);
    free(normalizer->sequences);
    free(normalizer);
}

void word_scan_start(struct word_scan *scan, const char *text, size_t length) {
    scan->at = (const uint8_t *)text;
    scan->end = scan->at + length;
    scan->pending_count = 0;
    scan->length = 0;
}

void word_scan_free(struct word_scan *scan) {
    free(scan->word);
    *scan = (struct word_scan){0};
}

static void reserve(struct word_scan *scan, size_t more) {
    if (scan->length + more <= scan->capacity)
        return;
    scan->capacity = 2 * (scan->length + more);
    scan->word = xrealloc(scan->word, scan->capacity);
}

/* Adds a character; one with a combining class goes before those of its run that have a higher one. */
static void append(const struct normalizer *normalizer, struct word_scan *scan, uint32_t character,
                   uint32_t combining) {
    uint8_t bytes[UTF8_LONGEST];
    size_t length = utf8_encode(character, bytes), place = scan->length;
    while (combining && place > scan->run) {
        size_t before = place - 1;
        while ((scan->word[before] & 0xC0) == 0x80)
            before--;
        uint32_t previous;
        utf8_decode(scan->word + before, scan->word + scan->length, &previous);
        if (entry_combining(normalizer->entries[previous]) <= combining)
            break;
        place = before;
    }
    memmove(scan->word + place + length, scan->word + place, scan->length - place);
    memcpy(scan->word + place, bytes, length);
    scan->length += length;
    scan->chars++;
    if (!combining)
        scan->run = scan->length;
}

/* The longest run of ASCII letters and digits from here: most of most text. */
static void append_ascii(const struct normalizer *normalizer, struct word_scan *scan) {
    size_t room = scan->capacity - scan->length, left = (size_t)(scan->end - scan->at),
           most = room < left ? room : left;
    uint8_t *to = scan->word + scan->length, byte;
    size_t i = 0;
    while (i < most && (byte = normalizer->ascii[scan->at[i]]))
        to[i++] = byte;
    if (i == 0)
        return;
    scan->at += i;
    scan->length += i;
    scan->chars += (int64_t)i;
    scan->run = scan->length;
}

bool word_next(const struct normalizer *normalizer, struct word_scan *scan) {
    scan->length = scan->run = 0;
    scan->chars = 0;
    for (;;) {
        reserve(scan, 64);
        if (!scan->pending_count)
            append_ascii(normalizer, scan);
        uint32_t entry, character = 0;
        size_t size = 0;
        if (scan->pending_count) {
            entry = *scan->pending;
        } else if (scan->at == scan->end) {
            return scan->length > 0;
        } else {
            size = utf8_decode(scan->at, scan->end, &character);
            entry = normalizer->entries[character];
        }
        enum char_class class = entry_class(entry);
        if (class == CHAR_ALONE && scan->length)
            return true;
        if (class == CHAR_DROP)
            scan->broken += utf8_broken(scan->at, size, character);
        if (scan->pending_count) {
            scan->pending++;
            scan->pending_count--;
        }
        scan->at += size;
        if (class == CHAR_WORD || class == CHAR_ALONE)
            append(normalizer, scan, entry_value(entry) ? entry_value(entry) : character, entry_combining(entry));
        if (class == CHAR_ALONE || (class == CHAR_SPACE && scan->length))
            return true;
        if (class == CHAR_MARK)
            scan->run = scan->length;
        if (class == CHAR_MANY) {
            scan->pending = normalizer->sequences + entry_value(entry) + 1;
            scan->pending_count = scan->pending[-1];
        }
    }
}
