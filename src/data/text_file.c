#include "data/text_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#ifdef BERTH_ZSTD
#include <zstd.h>
#endif

#include "base/file.h"
#include "base/memory.h"

enum { STORED_BYTES = 1 << 18 };

enum packing { PLAIN, GZIP, ZSTD };

struct text_file {
    const char *name;
    int descriptor;
    enum packing packing;
    unsigned char stored[STORED_BYTES]; /* as read; [used, count) are not unpacked yet */
    size_t used, count;
    bool file_ended;
    bool inside; /* a gzip member or Zstandard frame has begun and not ended */
    int64_t consumed;
    z_stream gzip;
#ifdef BERTH_ZSTD
    ZSTD_DStream *zstd;
#endif
};

/* Reads on behind what is not unpacked yet. */
static status fill(struct text_file *file) {
    memmove(file->stored, file->stored + file->used, file->count - file->used);
    file->count -= file->used;
    file->used = 0;
    ssize_t got;
    do
        got = read(file->descriptor, file->stored + file->count, STORED_BYTES - file->count);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return failed("%s: cannot read: %s", file->name, strerror(errno));
    file->count += (size_t)got;
    file->consumed += got;
    file->file_ended = got == 0;
    return OK;
}

static status start_unpacking(struct text_file *file) {
    static const unsigned char gzip[] = {0x1F, 0x8B}, zstd[] = {0x28, 0xB5, 0x2F, 0xFD};
    while (file->count < sizeof zstd && !file->file_ended)
        TRY(fill(file));
    if (file->count >= sizeof gzip && memcmp(file->stored, gzip, sizeof gzip) == 0)
        file->packing = GZIP;
    if (file->count >= sizeof zstd && memcmp(file->stored, zstd, sizeof zstd) == 0)
        file->packing = ZSTD;
    if (file->packing == GZIP && inflateInit2(&file->gzip, 16 + MAX_WBITS) != Z_OK)
        return failed("%s: cannot start zlib", file->name);
#ifdef BERTH_ZSTD
    if (file->packing == ZSTD && !(file->zstd = ZSTD_createDStream()))
        return failed("%s: cannot start the Zstandard library", file->name);
#else
    if (file->packing == ZSTD)
        return bad_input(
            "%s: is compressed with Zstandard, which this build of berth cannot read (package libzstd-dev); "
            "unpack it first: zstd -dc FILE | berth ... --input -",
            file->name);
#endif
    return OK;
}

status text_file_open(const char *path, struct text_file **out) {
    struct text_file *file = xcalloc(1, sizeof *file);
    bool standard = strcmp(path, "-") == 0;
    file->name = standard ? "standard input" : path;
    file->descriptor = STDIN_FILENO;
    status code = standard ? OK : file_open_read(path, &file->descriptor);
    if (code == OK) {
        code = start_unpacking(file);
        if (code != OK)
            text_file_close(file);
    } else {
        free(file);
    }
    *out = code == OK ? file : NULL;
    return code;
}

void text_file_close(struct text_file *file) {
    if (!file)
        return;
    if (file->descriptor != STDIN_FILENO)
        close(file->descriptor);
    if (file->packing == GZIP)
        inflateEnd(&file->gzip);
#ifdef BERTH_ZSTD
    ZSTD_freeDStream(file->zstd);
#endif
    free(file);
}

/* --- unpacking what is stored: some bytes of it, to some bytes of text --- */

static status damaged(const struct text_file *file, const char *form) {
    return bad_input("%s: the %s data is damaged near byte %lld of the file", file->name, form,
                     (long long)(file->consumed - (int64_t)(file->count - file->used)));
}

static status unpack_plain(struct text_file *file, char *to, size_t bytes, size_t *got) {
    size_t left = file->count - file->used;
    *got = left < bytes ? left : bytes;
    memcpy(to, file->stored + file->used, *got);
    file->used += *got;
    return OK;
}

static status unpack_gzip(struct text_file *file, char *to, size_t bytes, size_t *got) {
    z_stream *stream = &file->gzip;
    if (!file->inside)
        inflateReset(stream); /* files may hold several members, one after another */
    stream->next_in = file->stored + file->used;
    stream->avail_in = (uInt)(file->count - file->used);
    stream->next_out = (unsigned char *)to;
    stream->avail_out = (uInt)bytes;
    int result = inflate(stream, Z_NO_FLUSH);
    file->used = file->count - stream->avail_in;
    *got = bytes - stream->avail_out;
    file->inside = result != Z_STREAM_END;
    return result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR ? OK : damaged(file, "gzip");
}

#ifdef BERTH_ZSTD
static status unpack_zstd(struct text_file *file, char *to, size_t bytes, size_t *got) {
    ZSTD_inBuffer in = {file->stored, file->count, file->used};
    ZSTD_outBuffer out = {to, bytes, 0};
    size_t result = ZSTD_decompressStream(file->zstd, &out, &in);
    file->used = in.pos;
    *got = out.pos;
    file->inside = result != 0;
    return ZSTD_isError(result) ? damaged(file, "Zstandard") : OK;
}
#endif

static status unpack(struct text_file *file, char *to, size_t bytes, size_t *got) {
    switch (file->packing) {
        case GZIP:
            return unpack_gzip(file, to, bytes, got);
#ifdef BERTH_ZSTD
        case ZSTD:
            return unpack_zstd(file, to, bytes, got);
#endif
        default:
            return unpack_plain(file, to, bytes, got);
    }
}

status text_file_read(struct text_file *file, char *to, size_t bytes, size_t *got) {
    bytes = bytes < 1u << 30 ? bytes : 1u << 30; /* zlib counts in 32 bits */
    for (*got = 0; *got == 0;) {
        size_t before = file->count - file->used;
        /* an unpacker may hold text back that it has already taken in: ask it even when nothing is stored */
        if (before || file->inside)
            TRY(unpack(file, to, bytes, got));
        if (*got || (before && file->count - file->used < before))
            continue;
        if (!file->file_ended)
            TRY(fill(file));
        else if (file->inside || before)
            return bad_input("%s: the compressed data ends early: the file is cut off", file->name);
        else
            return OK;
    }
    return OK;
}

int64_t text_file_consumed(const struct text_file *file) { return file->consumed; }
