/* Running text into sentences. A rule-based splitter for text in any language that ends sentences with . ! ? … or the
 * stops of Chinese, Japanese, Hindi, Arabic and Urdu; the abbreviations it knows are English. */
#ifndef BERTH_DATA_SENTENCES_H
#define BERTH_DATA_SENTENCES_H

#include <stddef.h>
#include <stdint.h>

struct span {
    size_t begin, end; /* bytes [begin, end) */
};
/* Zero-initialize; the owner frees `items`. */
struct span_list {
    struct span *items; /* [count] */
    int64_t count, capacity;
};

/* Replaces `out` by the sentences of one document, white space around them left out. A line end inside a sentence is a
 * space where text is wrapped (a line of 40 bytes or more without a stop at its end, or a next line that begins in
 * lower case), and ends the sentence elsewhere (titles, verses, lists). */
void sentences_split(const char *text, size_t length, struct span_list *out);

/* The same for text that has one sentence a line. */
void sentences_lines(const char *text, size_t length, struct span_list *out);

#endif
