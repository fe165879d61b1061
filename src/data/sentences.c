#include "data/sentences.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "data/utf8.h"

enum { WRAPPED_LINE = 40, LONGEST_ABBREVIATION = 8 };

/* What a stop after a word means. */
enum stop_kind {
    STOP_ENDS,    /* the sentence, if what follows can begin one */
    STOP_NEVER,   /* Mr. Smith */
    STOP_NUMBERS, /* No. 5, but: the answer is no. */
    STOP_MAYBE,   /* the U.S. The …, but: the U.S. Congress: decided by the next word */
};

static const struct {
    const char *word; /* without its stop; matched without regard to case; sorted */
    enum stop_kind kind;
} abbreviations[] = {{"adm", STOP_NEVER},    {"al", STOP_MAYBE},     {"apr", STOP_NUMBERS},  {"art", STOP_NUMBERS},
                     {"assn", STOP_MAYBE},   {"aug", STOP_NUMBERS},  {"ave", STOP_MAYBE},    {"bros", STOP_MAYBE},
                     {"ca", STOP_NUMBERS},   {"capt", STOP_NEVER},   {"cf", STOP_NEVER},     {"ch", STOP_NUMBERS},
                     {"chap", STOP_NUMBERS}, {"cmdr", STOP_NEVER},   {"co", STOP_MAYBE},     {"col", STOP_NEVER},
                     {"corp", STOP_MAYBE},   {"cpl", STOP_NEVER},    {"dec", STOP_NUMBERS},  {"dept", STOP_MAYBE},
                     {"dr", STOP_NEVER},     {"ed", STOP_MAYBE},     {"eq", STOP_NUMBERS},   {"esq", STOP_MAYBE},
                     {"est", STOP_MAYBE},    {"etc", STOP_MAYBE},    {"feb", STOP_NUMBERS},  {"fig", STOP_NUMBERS},
                     {"figs", STOP_NUMBERS}, {"gen", STOP_NEVER},    {"gov", STOP_NEVER},    {"hon", STOP_NEVER},
                     {"inc", STOP_MAYBE},    {"jan", STOP_NUMBERS},  {"jr", STOP_MAYBE},     {"jul", STOP_NUMBERS},
                     {"jun", STOP_NUMBERS},  {"lt", STOP_NEVER},     {"ltd", STOP_MAYBE},    {"maj", STOP_NEVER},
                     {"mar", STOP_NUMBERS},  {"messrs", STOP_NEVER}, {"mr", STOP_NEVER},     {"mrs", STOP_NEVER},
                     {"ms", STOP_NEVER},     {"mt", STOP_NEVER},     {"no", STOP_NUMBERS},   {"nos", STOP_NUMBERS},
                     {"nov", STOP_NUMBERS},  {"oct", STOP_NUMBERS},  {"op", STOP_NUMBERS},   {"p", STOP_NUMBERS},
                     {"pp", STOP_NUMBERS},   {"pres", STOP_NEVER},   {"prof", STOP_NEVER},   {"pt", STOP_NUMBERS},
                     {"pvt", STOP_NEVER},    {"rep", STOP_NEVER},    {"rev", STOP_NEVER},    {"sec", STOP_NUMBERS},
                     {"sen", STOP_NEVER},    {"sep", STOP_NUMBERS},  {"sept", STOP_NUMBERS}, {"sgt", STOP_NEVER},
                     {"sr", STOP_MAYBE},     {"st", STOP_NEVER},     {"ste", STOP_NEVER},    {"supt", STOP_NEVER},
                     {"viz", STOP_NEVER},    {"vol", STOP_NUMBERS},  {"vols", STOP_NUMBERS}, {"vs", STOP_NEVER}};

/* Words that begin sentences far more often than names; sorted. */
static const char *const starters[] = {
    "a",      "after", "all",   "although", "an",      "and",   "another", "as",   "at",    "because",
    "before", "both",  "but",   "by",       "each",    "even",  "every",   "for",  "from",  "he",
    "her",    "here",  "his",   "how",      "however", "i",     "if",      "in",   "it",    "its",
    "many",   "more",  "most",  "my",       "no",      "nor",   "not",     "now",  "of",    "on",
    "once",   "one",   "or",    "our",      "several", "she",   "since",   "so",   "some",  "such",
    "that",   "the",   "their", "then",     "there",   "these", "they",    "this", "those", "though",
    "thus",   "to",    "under", "until",    "upon",    "we",    "what",    "when", "where", "whether",
    "which",  "while", "who",   "why",      "with",    "yet",   "you",     "your"};

struct splitter {
    const uint8_t *text, *end;
};

static uint32_t char_at(const struct splitter *s, const uint8_t *at, size_t *length) {
    uint32_t character = 0;
    *length = at < s->end ? utf8_decode(at, s->end, &character) : 0;
    return character;
}

static bool is_space(uint32_t c) {
    return c == ' ' || (c >= '\t' && c <= '\r') || c == 0xA0 || c == 0x3000 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F;
}

static bool is_stop(uint32_t c) {
    return c == '.' || c == '!' || c == '?' || c == 0x2026 /* … */ || c == 0x203C || c == 0x2047 || c == 0x2048 ||
           c == 0x2049 || c == 0x61F /* ؟ */ || c == 0x6D4 /* ۔ */ || c == 0x964 /* । */ || c == 0x965;
}

/* Stops of scripts that put no space after a sentence. */
static bool is_wide_stop(uint32_t c) {
    return c == 0x3002 /* 。 */ || c == 0xFF01 /* ！ */ || c == 0xFF1F /* ？ */ || c == 0xFF61 /* ｡ */;
}

static bool is_closer(uint32_t c) {
    if (c == '"' || c == '\'' || c == ')' || c == ']' || c == '}' || c == 0xBB || c == 0x203A)
        return true;
    utf8proc_category_t kind = c < 0x80 ? UTF8PROC_CATEGORY_CN : utf8proc_category((utf8proc_int32_t)c);
    return kind == UTF8PROC_CATEGORY_PE || kind == UTF8PROC_CATEGORY_PF;
}

/* An opening quote or bracket, looked through to the word behind it. */
static bool is_opener(uint32_t c) {
    if (c == '"' || c == '\'' || c == '(' || c == '[' || c == '{' || c == 0xAB || c == 0x2039)
        return true;
    utf8proc_category_t kind = c < 0x80 ? UTF8PROC_CATEGORY_CN : utf8proc_category((utf8proc_int32_t)c);
    return kind == UTF8PROC_CATEGORY_PS || kind == UTF8PROC_CATEGORY_PI;
}

static bool is_lower(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL; }
static bool is_ascii_letter(uint8_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_digit(uint32_t c) { return c >= '0' && c <= '9'; }

static const uint8_t *skip_spaces(const struct splitter *s, const uint8_t *at) {
    size_t length;
    while (at < s->end && is_space(char_at(s, at, &length)))
        at += length;
    return at;
}

static const uint8_t *skip_openers(const struct splitter *s, const uint8_t *at) {
    size_t length;
    while (at < s->end && is_opener(char_at(s, at, &length)))
        at += length;
    return at;
}

static int compare_words(const void *key, const void *element) { return strcmp(key, *(const char *const *)element); }

static bool is_starter(const struct splitter *s, const uint8_t *at) {
    char word[16];
    size_t length = 0;
    while (at + length < s->end && length < sizeof word - 1 && is_ascii_letter(at[length])) {
        word[length] = (char)(at[length] | 0x20);
        length++;
    }
    word[length] = 0;
    return bsearch(word, starters, sizeof starters / sizeof *starters, sizeof *starters, compare_words);
}

/* What the stop at `stop` means, from the word before it, which begins at `begin` or later. */
static enum stop_kind stop_after_word(const uint8_t *begin, const uint8_t *stop) {
    const uint8_t *word = stop;
    bool dotted = false; /* U.S, e.g, J.R.R */
    while (word > begin &&
           (is_ascii_letter(word[-1]) || (word[-1] == '.' && word - begin > 1 && is_ascii_letter(word[-2])))) {
        dotted |= word[-1] == '.';
        word--;
    }
    size_t length = (size_t)(stop - word);
    bool whole = word == begin || word[-1] < 0x80; /* not the end of a word with other letters */
    if (length == 0 || !whole)
        return STOP_ENDS;
    if (word > begin && (is_digit(word[-1]) || word[-1] == '\''))
        return STOP_ENDS;
    if (dotted) {
        bool latin = length == 3 &&
                     (strncasecmp((const char *)word, "e.g", 3) == 0 || strncasecmp((const char *)word, "i.e", 3) == 0);
        bool letters = true; /* single letters only; else two sentences run together, or an address */
        for (size_t i = 1; i < length; i += 2)
            letters &= word[i] == '.';
        return latin ? STOP_NEVER : letters || length <= LONGEST_ABBREVIATION ? STOP_MAYBE : STOP_ENDS;
    }
    if (length == 1 && *word >= 'A' && *word <= 'Z')
        return STOP_MAYBE; /* an initial */
    for (size_t i = 0; i < sizeof abbreviations / sizeof *abbreviations && length <= LONGEST_ABBREVIATION; i++)
        if (strlen(abbreviations[i].word) == length &&
            strncasecmp(abbreviations[i].word, (const char *)word, length) == 0)
            return abbreviations[i].kind;
    return STOP_ENDS;
}

/* A number that begins the sentence, and nothing else: "3. The third item". */
static bool is_list_number(const uint8_t *begin, const uint8_t *stop) {
    if (stop == begin || stop - begin > 3)
        return false;
    for (; begin < stop; begin++)
        if (!is_digit(*begin))
            return false;
    return true;
}

/* Does the sentence that began at `begin` end with the stops at [stop, after), closers included, before `next`? */
static bool sentence_ends(const struct splitter *s, const uint8_t *begin, const uint8_t *stop, const uint8_t *stops_end,
                          const uint8_t *next) {
    size_t length;
    const uint8_t *word = skip_openers(s, next);
    uint32_t first = char_at(s, word, &length);
    if (is_lower(first) || is_stop(first)) /* an ellipsis may be spaced: ". . ." */
        return false;
    if (*stop != '.' || stops_end - stop > 1)
        return true;
    if (is_list_number(begin, stop))
        return false;
    switch (stop_after_word(begin, stop)) {
        case STOP_NEVER:
            return false;
        case STOP_NUMBERS:
            return !is_digit(first);
        case STOP_MAYBE:
            return is_starter(s, word) || *stops_end == '"' || *stops_end >= 0x80; /* a quote closes after it */
        case STOP_ENDS:
            break;
    }
    return true;
}

static void add_sentence(const struct splitter *s, const uint8_t *begin, const uint8_t *end, struct span_list *out) {
    begin = skip_spaces(s, begin);
    while (end > begin && is_space(end[-1]) && end[-1] < 0x80)
        end--;
    if (begin >= end)
        return;
    GROW(out->items, out->count, out->capacity);
    out->items[out->count++] = (struct span){(size_t)(begin - s->text), (size_t)(end - s->text)};
}

/* Does the line end at `newline` end a sentence that has no stop there? */
static bool line_ends_sentence(const struct splitter *s, const uint8_t *line, const uint8_t *newline) {
    size_t length;
    const uint8_t *next = skip_openers(s, skip_spaces(s, newline));
    if (next == s->end)
        return true;
    return newline - line < WRAPPED_LINE && !is_lower(char_at(s, next, &length));
}

void sentences_split(const char *text, size_t length, struct span_list *out) {
    struct splitter s = {(const uint8_t *)text, (const uint8_t *)text + length};
    const uint8_t *begin = skip_spaces(&s, s.text), *line = begin;
    out->count = 0;
    for (const uint8_t *at = begin; at < s.end;) {
        size_t size;
        uint32_t c = char_at(&s, at, &size);
        const uint8_t *stop = at, *cut = NULL;
        at += size;
        if (c == '\n') {
            if (line_ends_sentence(&s, line, stop))
                cut = stop;
            line = at;
        } else if (is_stop(c) || is_wide_stop(c)) {
            bool wide = is_wide_stop(c);
            while (is_stop(c = char_at(&s, at, &size)) || is_wide_stop(c)) {
                wide |= is_wide_stop(c);
                at += size;
            }
            const uint8_t *stops_end = at;
            while (size && is_closer(c = char_at(&s, at, &size)))
                at += size;
            const uint8_t *next = skip_spaces(&s, at);
            if (next == s.end || wide || (next > at && sentence_ends(&s, begin, stop, stops_end, next)))
                cut = at;
        }
        if (cut) {
            add_sentence(&s, begin, cut, out);
            begin = at = skip_spaces(&s, cut);
            line = begin;
        }
    }
    add_sentence(&s, begin, s.end, out);
}

void sentences_lines(const char *text, size_t length, struct span_list *out) {
    struct splitter s = {(const uint8_t *)text, (const uint8_t *)text + length};
    out->count = 0;
    for (const uint8_t *at = s.text; at < s.end;) {
        const uint8_t *stop = memchr(at, '\n', (size_t)(s.end - at));
        stop = stop ? stop : s.end;
        add_sentence(&s, at, stop, out);
        at = stop < s.end ? stop + 1 : s.end;
    }
}
