#include "data/shard_chunks.h"

#ifdef BERTH_DEFLATE
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static bool only_gzip(hid_t creation) {
    unsigned flags;
    size_t parameters = 0;
    return H5Pget_nfilters(creation) == 1 &&
           H5Pget_filter2(creation, 0, &flags, &parameters, NULL, 0, NULL, NULL) == H5Z_FILTER_DEFLATE;
}

struct chunk_form chunk_form_of(hid_t dataset, int rank, int64_t width) {
    hsize_t chunk[2] = {0, 1};
    struct chunk_form form = {.width = width};
    hid_t creation = H5Dget_create_plist(dataset), type = H5Dget_type(dataset);
    size_t bytes = H5Tget_size(type);
    bool usual = H5Pget_layout(creation) == H5D_CHUNKED && H5Pget_chunk(creation, rank, chunk) == rank &&
                 (int64_t)chunk[1] == width && only_gzip(creation) && H5Tget_class(type) == H5T_INTEGER &&
                 (bytes == 1 || H5Tget_order(type) == H5T_ORDER_LE) && H5Tget_precision(type) == 8 * bytes;
    if (usual && (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8)) {
        form.rows = (int64_t)chunk[0];
        form.bytes = (int)bytes;
        form.is_signed = H5Tget_sign(type) == H5T_SGN_2;
    }
    H5Tclose(type);
    H5Pclose(creation);
    return form;
}

/* The file's numbers are little-endian, as are those of the machines that this is built for. */
static void convert(const struct chunk_form *form, const unsigned char *from, int64_t count, int32_t *to) {
    switch (form->bytes * 2 + form->is_signed) {
        case 2:
            for (int64_t i = 0; i < count; i++)
                to[i] = from[i];
            break;
        case 3:
            for (int64_t i = 0; i < count; i++)
                to[i] = (int8_t)from[i];
            break;
        case 4:
            for (int64_t i = 0; i < count; i++)
                to[i] = from[2 * i] | from[2 * i + 1] << 8;
            break;
        case 5:
            for (int64_t i = 0; i < count; i++)
                to[i] = (int16_t)(from[2 * i] | from[2 * i + 1] << 8);
            break;
        case 9:
            memcpy(to, from, (size_t)count * sizeof *to);
            break;
        case 8:
        case 16:
        case 17:
            for (int64_t i = 0; i < count; i++) {
                int64_t value = 0; /* negative for unsigned numbers of more than 63 bits */
                memcpy(&value, from + i * form->bytes, (size_t)form->bytes);
                if (value < 0 && !form->is_signed)
                    value = INT64_MAX;
                to[i] = value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : (int32_t)value;
            }
            break;
    }
}

/* One chunk, inflated to `bytes` of `to`. */
static bool read_chunk(hid_t dataset, int64_t row, struct libdeflate_decompressor *inflate, void **stored,
                       size_t *capacity, unsigned char *to, size_t bytes) {
    hsize_t offset[2] = {(hsize_t)row, 0}, size = 0;
    uint32_t skipped = 0;
    if (H5Dget_chunk_storage_size(dataset, offset, &size) < 0 || size == 0)
        return false;
    if (size > *capacity) {
        *capacity = 2 * (size_t)size;
        *stored = xrealloc(*stored, *capacity);
    }
    if (H5Dread_chunk(dataset, H5P_DEFAULT, offset, &skipped, *stored) < 0 || skipped)
        return false;
    return libdeflate_zlib_decompress(inflate, *stored, (size_t)size, to, bytes, NULL) == LIBDEFLATE_SUCCESS;
}

bool chunks_read(hid_t dataset, const struct chunk_form *form, int64_t first, int64_t count, int32_t *values) {
    struct libdeflate_decompressor *inflate = libdeflate_alloc_decompressor();
    int64_t row_bytes = form->width * form->bytes;
    unsigned char *chunk = xmalloc((size_t)(form->rows * row_bytes));
    void *stored = NULL;
    size_t capacity = 0;
    bool good = inflate != NULL;
    for (int64_t row = first; row < first + count && good;) {
        int64_t begin = row / form->rows * form->rows, end = begin + form->rows;
        int64_t rows = (end < first + count ? end : first + count) - row;
        good = read_chunk(dataset, begin, inflate, &stored, &capacity, chunk, (size_t)(form->rows * row_bytes));
        if (good)
            convert(form, chunk + (row - begin) * row_bytes, rows * form->width, values + (row - first) * form->width);
        row += rows;
    }
    free(stored);
    free(chunk);
    libdeflate_free_decompressor(inflate);
    return good;
}

#else

struct chunk_form chunk_form_of(hid_t dataset, int rank, int64_t width) {
    (void)dataset, (void)rank, (void)width;
    return (struct chunk_form){0};
}

bool chunks_read(hid_t dataset, const struct chunk_form *form, int64_t first, int64_t count, int32_t *values) {
    (void)dataset, (void)form, (void)first, (void)count, (void)values;
    return false;
}

#endif
