/* A file of text as a stream of bytes: plain, gzip (.gz) or Zstandard (.zst), told apart by their first bytes, or the
 * standard input. */
#ifndef BERTH_DATA_TEXT_FILE_H
#define BERTH_DATA_TEXT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct text_file;

/* `path` "-" is the standard input. BAD_INPUT if it cannot be opened, or is compressed in a way this build lacks. */
status text_file_open(const char *path, struct text_file **out);
void text_file_close(struct text_file *file);

/* Up to `bytes` (> 0) more of the text; *got 0: the end. BAD_INPUT if compressed data is damaged or cut off. */
status text_file_read(struct text_file *file, char *to, size_t bytes, size_t *got);

int64_t text_file_consumed(const struct text_file *file); /* bytes of the file as stored, read so far */

#endif
