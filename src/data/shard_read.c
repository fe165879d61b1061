#include "data/shard_read.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/memory.h"
#include "data/shard_file.h"

static pthread_mutex_t library = PTHREAD_MUTEX_INITIALIZER;

/* --- what a shard holds --- */

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t shard_blocks(const struct shard *shard) {
    return (shard->stored_rows + shard->block_rows - 1) / shard->block_rows;
}

struct extent shard_block(const struct shard *shard, int64_t number) {
    int64_t first = number * shard->block_rows, stored = smaller(shard->block_rows, shard->stored_rows - first);
    if (!shard->block_sequences)
        return (struct extent){first, stored, stored, first};
    struct extent extent = {first, stored, shard->block_sequences[number], 0};
    for (int64_t i = 0; i < number; i++)
        extent.first_sequence += shard->block_sequences[i];
    return extent;
}

/* h5py's own choice of chunks is thousands of rows tall and a few columns wide, so a block of fewer rows would
 * decompress them all several times. Rows of variable length are 16 bytes in their chunks: there it matters little. */
static int64_t rows_a_block(const struct shard_file *file) {
    int64_t chunk = file->chunk_rows;
    if (file->form != FORM_FIXED)
        return BLOCK_ROWS;
    if (chunk <= BLOCK_ROWS)
        return BLOCK_ROWS / chunk * chunk;
    int64_t most = larger(BLOCK_ROWS, BLOCK_TOKENS / file->width[INPUT_IDS]), parts = (chunk + most - 1) / most;
    return (chunk + parts - 1) / parts;
}

/* Where rows differ in length, only reading them tells how long they get, and how many sequences are packed in them:
 * the smallest datasets that say so. */
static status scan_block(const struct shard_file *file, struct shard *shard, int64_t number) {
    struct extent extent = shard_block(shard, number);
    struct stored_rows lengths = {0}, masks = {0};
    bool packed = file->form == FORM_PACKED;
    status code = shard_file_read(file, packed ? PACKED_LENGTHS : SEGMENT_IDS, extent.first, extent.stored, &lengths);
    if (code == OK)
        code = shard_file_read(file, packed ? PACKED_MASKS : MASKED_POSITIONS, extent.first, extent.stored, &masks);
    if (code == OK && packed) {
        shard->block_sequences[number] = (int32_t)lengths.starts[extent.stored];
        shard->rows += lengths.starts[extent.stored];
        for (int64_t i = 0; i < lengths.starts[extent.stored]; i++)
            shard->seq_len = larger(shard->seq_len, lengths.values[i]);
        for (int64_t i = 0; i < masks.starts[extent.stored]; i++)
            shard->max_predictions = larger(shard->max_predictions, masks.values[i]);
    }
    for (int64_t r = 0; r < extent.stored && code == OK && !packed; r++) {
        shard->seq_len = larger(shard->seq_len, lengths.starts[r + 1] - lengths.starts[r]);
        shard->max_predictions = larger(shard->max_predictions, masks.starts[r + 1] - masks.starts[r]);
    }
    stored_rows_free(&lengths);
    stored_rows_free(&masks);
    return code;
}

static status scan(const struct shard_file *file, struct shard *shard) {
    if (file->form == FORM_PACKED) {
        shard->block_sequences = xcalloc((size_t)shard_blocks(shard), sizeof *shard->block_sequences);
        shard->rows = 0;
    }
    for (int64_t number = 0; number < shard_blocks(shard); number++)
        TRY(scan_block(file, shard, number));
    return shard->rows > 0 ? OK : bad_input("%s: holds no sequences, expected at least one", file->path);
}

static status hash_first_rows(const struct shard_file *file, uint64_t *hash) {
    struct stored_rows ids;
    status code = shard_file_read(file, INPUT_IDS, 0, smaller(file->rows, 16), &ids);
    *hash = 14695981039346656037u; /* FNV-1a */
    for (int64_t i = 0; code == OK && i < ids.starts[smaller(file->rows, 16)]; i++)
        *hash = (*hash ^ (uint32_t)ids.values[i]) * 1099511628211u;
    stored_rows_free(&ids);
    return code;
}

static status check_locked(const char *path, struct shard *out) {
    struct shard_file file;
    status code = shard_file_open(path, &file);
    if (code == OK) {
        out->rows = out->stored_rows = file.rows;
        out->block_rows = rows_a_block(&file);
        out->vocab_size = shard_file_attribute(&file, "vocab_size");
        int64_t told_length = shard_file_attribute(&file, "seq_len");
        int64_t told_masks = shard_file_attribute(&file, "max_predictions");
        if (file.form == FORM_FIXED) {
            out->seq_len = file.width[INPUT_IDS];
            out->max_predictions = file.width[MASKED_POSITIONS];
        } else if (file.form == FORM_VARIABLE && told_length && told_masks) {
            out->seq_len = told_length; /* held against the rows as these are read */
            out->max_predictions = told_masks;
        } else {
            code = scan(&file, out);
        }
    }
    if (code == OK)
        code = hash_first_rows(&file, &out->hash);
    shard_file_close(&file);
    return code;
}

status shard_check(const char *path, struct shard *out) {
    *out = (struct shard){0};
    TRY(file_size(path, &out->bytes));
    pthread_mutex_lock(&library);
    status code = check_locked(path, out);
    pthread_mutex_unlock(&library);
    if (code == OK)
        out->path = xstrdup(path);
    else
        shard_free(out);
    return code;
}

void shard_free(struct shard *shard) {
    free(shard->path);
    free(shard->block_sequences);
    *shard = (struct shard){0};
}

/* --- the stored rows of a block --- */

struct raw {
    const struct shard *shard;
    const struct shard_limits *limits;
    int64_t first, stored;
    enum shard_form form;
    struct stored_rows column[COLUMNS]; /* values NULL: absent */
};

/* i2 holds ids up to 65,535 for who reads them as unsigned; a vocabulary that needs it says so. */
static void read_as_unsigned(struct stored_rows *rows, int64_t stored) {
    for (int64_t i = 0; i < rows->starts[stored]; i++)
        rows->values[i] += rows->values[i] < 0 ? 65536 : 0;
}

static status read_raw(struct raw *raw) {
    struct shard_file file;
    pthread_mutex_lock(&library);
    status code = shard_file_open(raw->shard->path, &file);
    if (code == OK && file.rows != raw->shard->stored_rows)
        code = bad_input("%s: has %lld rows, but had %lld when the run began: the file changed", raw->shard->path,
                         (long long)file.rows, (long long)raw->shard->stored_rows);
    raw->form = file.form;
    for (enum column c = 0; c < COLUMNS && code == OK; c++) {
        if (file.dataset[c] < 0)
            continue;
        code = shard_file_read(&file, c, raw->first, raw->stored, &raw->column[c]);
        if (code == OK && (c == INPUT_IDS || c == MASKED_IDS) && file.signed16[c] && raw->limits->vocab_size > 32768)
            read_as_unsigned(&raw->column[c], raw->stored);
    }
    shard_file_close(&file);
    pthread_mutex_unlock(&library);
    return code;
}

static const int32_t *raw_row(const struct raw *raw, enum column c, int64_t row) {
    return raw->column[c].values + raw->column[c].starts[row];
}

static int64_t raw_length(const struct raw *raw, enum column c, int64_t row) {
    return raw->column[c].starts[row + 1] - raw->column[c].starts[row];
}

/* --- sequences: checked and cut --- */

/* Where a sequence lies in its stored row. */
struct piece {
    int64_t row, number; /* number: in its pack, from 0 */
    int64_t token, length;
    int64_t mask, masks;
};

static status bad_value(const struct raw *raw, enum column c, int64_t row, int64_t column, const char *expected) {
    return bad_input("%s: dataset %s, row %lld, column %lld: found %d, expected %s", raw->shard->path, column_name(c),
                     (long long)(raw->first + row), (long long)column, raw_row(raw, c, row)[column], expected);
}

static status bad_id(const struct raw *raw, enum column c, int64_t row, int64_t column) {
    char expected[64];
    snprintf(expected, sizeof expected, "an id from 0 to %lld (the vocabulary)",
             (long long)raw->limits->vocab_size - 1);
    return bad_value(raw, c, row, column, expected);
}

static status bad_count(const struct raw *raw, enum column c, int64_t row, int64_t found, const char *what,
                        int64_t expected) {
    return bad_input("%s: dataset %s, row %lld: found %lld %s, expected %lld", raw->shard->path, column_name(c),
                     (long long)(raw->first + row), (long long)found, what, (long long)expected);
}

/* The real length of a padded row. */
static status padded_length(const struct raw *raw, int64_t row, int64_t *length) {
    int64_t n = 0, width = raw_length(raw, INPUT_IDS, row);
    if (raw->column[INPUT_MASK].values) {
        const int32_t *mask = raw_row(raw, INPUT_MASK, row);
        while (n < width && mask[n] == 1)
            n++;
        for (int64_t i = n; i < width; i++)
            if (mask[i] != 0)
                return bad_value(raw, INPUT_MASK, row, i, "ones, then zeros up to the end");
    } else {
        const int32_t *ids = raw_row(raw, INPUT_IDS, row);
        for (n = width; n > 0 && ids[n - 1] == 0; n--)
            continue;
    }
    *length = n;
    return OK;
}

/* [CLS] is never masked: a position of 0 ends the list. */
static status padded_masks(const struct raw *raw, int64_t row, int64_t *masks) {
    const int32_t *positions = raw_row(raw, MASKED_POSITIONS, row);
    int64_t n = 0, width = raw_length(raw, MASKED_POSITIONS, row);
    while (n < width && positions[n] != 0)
        n++;
    *masks = n;
    for (int64_t i = n; i < width; i++)
        if (positions[i] != 0)
            return bad_value(raw, MASKED_POSITIONS, row, i, "ascending positions, then zeros up to the end");
    return OK;
}

static void put(struct numbers *to, int64_t at, uint32_t value) {
    if (to->narrow)
        to->narrow[at] = (uint16_t)value;
    else
        to->wide[at] = value;
}

static status add_tokens(const struct raw *raw, const struct piece *piece, int64_t begin, struct block *block) {
    const int32_t *ids = raw_row(raw, INPUT_IDS, piece->row) + piece->token;
    const int32_t *types = raw_row(raw, SEGMENT_IDS, piece->row) + piece->token;
    for (int64_t i = 0; i < piece->length; i++) {
        if ((uint32_t)ids[i] >= (uint64_t)raw->limits->vocab_size)
            return bad_id(raw, INPUT_IDS, piece->row, piece->token + i);
        if (types[i] != 0 && types[i] != 1)
            return bad_value(raw, SEGMENT_IDS, piece->row, piece->token + i, "0 or 1");
        put(&block->tokens, begin + i, 2 * (uint32_t)ids[i] + (uint32_t)types[i]);
    }
    return OK;
}

static status add_masks(const struct raw *raw, const struct piece *piece, int64_t begin, struct block *block) {
    const int32_t *positions = raw_row(raw, MASKED_POSITIONS, piece->row) + piece->mask;
    const int32_t *labels = raw_row(raw, MASKED_IDS, piece->row) + piece->mask;
    for (int64_t i = 0; i < piece->masks; i++) {
        if (positions[i] < piece->token || positions[i] >= piece->token + piece->length)
            return bad_value(raw, MASKED_POSITIONS, piece->row, piece->mask + i, "a position inside the sequence");
        if (i > 0 && positions[i] <= positions[i - 1])
            return bad_value(raw, MASKED_POSITIONS, piece->row, piece->mask + i, "ascending positions");
        if ((uint32_t)labels[i] >= (uint64_t)raw->limits->vocab_size)
            return bad_id(raw, MASKED_IDS, piece->row, piece->mask + i);
        put(&block->positions, begin + i, (uint32_t)(positions[i] - piece->token));
        put(&block->labels, begin + i, (uint32_t)labels[i]);
    }
    return OK;
}

static status add_sequence(const struct raw *raw, const struct piece *piece, struct block *block) {
    const struct shard_limits *limits = raw->limits;
    const char *path = raw->shard->path;
    int64_t row = raw->first + piece->row, n = block->sequences;
    if (piece->length < 1)
        return bad_input("%s: dataset %s, row %lld: the sequence is empty, expected at least one token", path,
                         column_name(raw->column[INPUT_MASK].values ? INPUT_MASK : INPUT_IDS), (long long)row);
    if (piece->length > limits->seq_len)
        return bad_input("%s: row %lld has %lld tokens, more than the %lld planned for", path, (long long)row,
                         (long long)piece->length, (long long)limits->seq_len);
    if (piece->masks > limits->max_predictions)
        return bad_input("%s: row %lld has %lld masked positions, more than the %lld planned for", path, (long long)row,
                         (long long)piece->masks, (long long)limits->max_predictions);
    TRY(add_tokens(raw, piece, block->token_starts[n], block));
    TRY(add_masks(raw, piece, block->mask_starts[n], block));
    int32_t label = raw_row(raw, NSP_LABELS, piece->row)[piece->number];
    if (label != 0 && label != 1)
        return bad_value(raw, NSP_LABELS, piece->row, piece->number, "0 or 1");
    block->token_starts[n + 1] = block->token_starts[n] + piece->length;
    block->mask_starts[n + 1] = block->mask_starts[n] + piece->masks;
    block->nsp[n] = (uint8_t)label;
    block->sequences++;
    return OK;
}

static status check_lengths(const struct raw *raw, int64_t row) {
    int64_t tokens = raw_length(raw, INPUT_IDS, row), masks = raw_length(raw, MASKED_POSITIONS, row);
    if (raw_length(raw, SEGMENT_IDS, row) != tokens)
        return bad_count(raw, SEGMENT_IDS, row, raw_length(raw, SEGMENT_IDS, row), "numbers", tokens);
    if (raw_length(raw, MASKED_IDS, row) != masks)
        return bad_count(raw, MASKED_IDS, row, raw_length(raw, MASKED_IDS, row), "numbers", masks);
    return OK;
}

static status add_pack(const struct raw *raw, int64_t row, struct block *block) {
    int64_t count = raw_length(raw, PACKED_LENGTHS, row);
    int64_t tokens = raw_length(raw, INPUT_IDS, row), masks = raw_length(raw, MASKED_POSITIONS, row);
    if (raw_length(raw, PACKED_MASKS, row) != count)
        return bad_count(raw, PACKED_MASKS, row, raw_length(raw, PACKED_MASKS, row), "numbers", count);
    if (raw_length(raw, NSP_LABELS, row) != count)
        return bad_count(raw, NSP_LABELS, row, raw_length(raw, NSP_LABELS, row), "numbers", count);
    struct piece piece = {.row = row};
    for (; piece.number < count; piece.number++) {
        piece.length = raw_row(raw, PACKED_LENGTHS, row)[piece.number];
        piece.masks = raw_row(raw, PACKED_MASKS, row)[piece.number];
        if (piece.length < 1 || piece.length > tokens - piece.token)
            return bad_value(raw, PACKED_LENGTHS, row, piece.number, "lengths that add up to the tokens of the row");
        if (piece.masks < 0 || piece.masks > masks - piece.mask)
            return bad_value(raw, PACKED_MASKS, row, piece.number, "counts that add up to the masks of the row");
        TRY(add_sequence(raw, &piece, block));
        piece.token += piece.length;
        piece.mask += piece.masks;
    }
    if (piece.token != tokens)
        return bad_count(raw, PACKED_LENGTHS, row, piece.token, "tokens in all", tokens);
    return piece.mask == masks ? OK : bad_count(raw, PACKED_MASKS, row, piece.mask, "masked positions in all", masks);
}

static status add_row(const struct raw *raw, int64_t row, struct block *block) {
    TRY(check_lengths(raw, row));
    if (raw->form == FORM_PACKED)
        return add_pack(raw, row, block);
    struct piece piece = {.row = row, .length = raw_length(raw, INPUT_IDS, row)};
    if (raw->form == FORM_FIXED)
        TRY(padded_length(raw, row, &piece.length));
    TRY(padded_masks(raw, row, &piece.masks));
    return add_sequence(raw, &piece, block);
}

/* --- blocks --- */

static void numbers_resize(struct numbers *numbers, int64_t count, bool wide) {
    if (wide)
        numbers->wide = xrealloc(numbers->wide, (size_t)count * sizeof *numbers->wide);
    else
        numbers->narrow = xrealloc(numbers->narrow, (size_t)count * sizeof *numbers->narrow);
}

static void block_resize(struct block *block, const struct shard_limits *limits, int64_t tokens, int64_t masks) {
    numbers_resize(&block->tokens, tokens, limits->vocab_size > 32768);
    numbers_resize(&block->positions, masks, limits->seq_len > 65536);
    numbers_resize(&block->labels, masks, limits->vocab_size > 65536);
}

static status cut(const struct raw *raw, int64_t sequences, struct block *block) {
    int64_t stored = raw->stored;
    if ((raw->form == FORM_PACKED ? raw->column[PACKED_LENGTHS].starts[stored] : stored) != sequences)
        return bad_input(
            "%s: rows %lld to %lld hold another number of sequences than when the run began: the file "
            "changed",
            raw->shard->path, (long long)raw->first, (long long)(raw->first + stored - 1));
    block->token_starts = xcalloc((size_t)sequences + 1, sizeof *block->token_starts);
    block->mask_starts = xcalloc((size_t)sequences + 1, sizeof *block->mask_starts);
    block->nsp = xmalloc((size_t)sequences);
    /* room for the padding too, given back once it is known */
    block_resize(block, raw->limits, raw->column[INPUT_IDS].starts[stored],
                 raw->column[MASKED_POSITIONS].starts[stored]);
    for (int64_t row = 0; row < stored; row++)
        TRY(add_row(raw, row, block));
    block_resize(block, raw->limits, block->token_starts[sequences], block->mask_starts[sequences]);
    return OK;
}

status shard_read(const struct shard *shard, const struct extent *extent, const struct shard_limits *limits,
                  struct block *out) {
    struct raw raw = {.shard = shard, .limits = limits, .first = extent->first, .stored = extent->stored};
    *out = (struct block){0};
    status code = read_raw(&raw);
    if (code == OK)
        code = cut(&raw, extent->sequences, out);
    for (enum column c = 0; c < COLUMNS; c++)
        stored_rows_free(&raw.column[c]);
    if (code != OK)
        block_free(out);
    return code;
}

void block_free(struct block *block) {
    struct numbers *numbers[] = {&block->tokens, &block->positions, &block->labels};
    for (int i = 0; i < 3; i++) {
        free(numbers[i]->narrow);
        free(numbers[i]->wide);
    }
    free(block->token_starts);
    free(block->mask_starts);
    free(block->nsp);
    *block = (struct block){0};
}
