/* Files, with every error named, and a hook that makes the Nth operation fail, for tests of disk-full and crashes. */
#ifndef BERTH_BASE_FILE_H
#define BERTH_BASE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

/* Whole file into `out` (appended). BAD_INPUT if it cannot be opened, FAILED if reading stops. */
status file_read(const char *path, struct text *out);
bool file_exists(const char *path);
bool folder_exists(const char *path);
status file_size(const char *path, int64_t *bytes);

/* Writing: bytes go to "PATH.tmp"; `file_commit` flushes them to disk and renames the file into place, so that PATH is
 * either the old file or the whole new one. BAD_INPUT if PATH is there and is a folder or a device. `file_abandon`
 * removes what was written; it does nothing after a commit. */
struct file_out {
    char *path, *temporary;
    int descriptor; /* -1 when closed */
    char *buffer;
    size_t used;
    int64_t offset; /* bytes written so far */
};
status file_create(struct file_out *file, const char *path);
status file_write(struct file_out *file, const void *bytes, size_t count);
status file_commit(struct file_out *file);
void file_abandon(struct file_out *file);
status file_write_all(const char *path, const void *bytes, size_t count); /* create + write + commit */

/* A file that grows while the program runs: opened (created if need be) and cut to `length` bytes; bytes added at its
 * end; flushed to disk. The caller closes the descriptor. */
status file_open_append(const char *path, int64_t length, int *descriptor);
status file_append(int descriptor, const char *path, const void *bytes, size_t count);
status file_flush(int descriptor, const char *path);

/* Read `count` bytes at `offset`; a short file is an error that names both. 64-bit offsets. */
status file_read_at(int descriptor, const char *path, int64_t offset, void *bytes, size_t count);
status file_open_read(const char *path, int *descriptor);

status folder_create(const char *path); /* with parents; fine if it is there */
status folder_sync(const char *path);   /* make renames in it durable */
status folder_remove(const char *path); /* with everything in it */
status file_rename(const char *from, const char *to);
status link_replace(const char *target, const char *path); /* symlink `path` -> `target`, replaced in one piece */
/* Names in a folder, sorted by byte value, without "." and ".."; the caller frees each and the list. */
status folder_list(const char *path, char ***names, int64_t *count);
void names_free(char **names, int64_t count);

char *path_join(const char *folder, const char *name); /* the caller frees */
const char *path_name(const char *path);               /* what follows the last slash */

/* Tests: let the `after`-th file operation from now (1 = the next) fail as if the disk were full; 0 switches it off.
 * With `crash`, the process ends there at once, as SIGKILL would end it. BERTH_FAULT=N[,crash] sets it at start. */
void file_fault(int64_t after, bool crash);

#endif
