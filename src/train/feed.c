#include "train/feed.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

struct feed {
    struct exec *exec;
    struct bert_config config;
    struct bert_tensors io;
    int32_t *order;  /* [t] */
    int32_t *places; /* [largest table + 1] where each table row's run begins */
};

static int64_t largest(int64_t a, int64_t b) { return a > b ? a : b; }

struct feed *feed_new(struct exec *exec, const struct graph *graph, const struct bert_config *config,
                      const struct bert_tensors *io) {
    struct feed *feed = xcalloc(1, sizeof *feed);
    *feed = (struct feed){.exec = exec, .config = *config, .io = *io};
    int64_t table = largest(config->vocab_size, largest(config->max_position_embeddings, config->type_vocab_size));
    feed->order = xcalloc((size_t)graph->capacity.padded[DIM_T], sizeof *feed->order);
    feed->places = xcalloc((size_t)table + 1, sizeof *feed->places);
    return feed;
}

void feed_free(struct feed *feed) {
    if (!feed)
        return;
    free(feed->order);
    free(feed->places);
    free(feed);
}

/* Counting sort, stable: order[0..n) lists the rows by ascending index. index: [n] in [0, table). */
static status upload_order(struct feed *feed, int tensor, const int32_t *index, int64_t n, int64_t table) {
    int32_t *places = feed->places;
    memset(places, 0, ((size_t)table + 1) * sizeof *places);
    for (int64_t row = 0; row < n; row++)
        places[index[row] + 1]++;
    for (int64_t entry = 0; entry < table; entry++)
        places[entry + 1] += places[entry];
    for (int64_t row = 0; row < n; row++)
        feed->order[places[index[row]]++] = (int32_t)row;
    return exec_upload(feed->exec, tensor, feed->order, n);
}

status feed_batch(struct feed *feed, const struct batch *batch) {
    struct exec *exec = feed->exec;
    const struct bert_tensors *io = &feed->io;
    const struct bert_config *config = &feed->config;
    int64_t t = batch->tokens;
    TRY(exec_set_ragged(exec, batch->sequences, batch->starts, batch->sequence_numbers, batch->masked));
    TRY(exec_upload(exec, io->ids, batch->ids, t));
    TRY(exec_upload(exec, io->positions, batch->positions, t));
    TRY(exec_upload(exec, io->types, batch->types, t));
    TRY(upload_order(feed, io->word_order, batch->ids, t, config->vocab_size));
    TRY(upload_order(feed, io->position_order, batch->positions, t, config->max_position_embeddings));
    TRY(upload_order(feed, io->type_order, batch->types, t, config->type_vocab_size));
    TRY(exec_upload(exec, io->masked_rows, batch->masked_rows, batch->masked));
    TRY(exec_upload(exec, io->masked_labels, batch->masked_labels, batch->masked));
    if (!config->nsp)
        return OK;
    TRY(exec_upload(exec, io->first_rows, batch->starts, batch->sequences));
    return exec_upload(exec, io->nsp_labels, batch->nsp_labels, batch->sequences);
}

static status upload_inverse(struct feed *feed, int tensor, int64_t count) {
    float inverse = count ? (float)(1.0 / (double)count) : 0;
    return exec_upload(feed->exec, tensor, &inverse, 1);
}

status feed_scales(struct feed *feed, int64_t masked, int64_t sequences) {
    TRY(upload_inverse(feed, feed->io.mlm_scale, masked));
    return feed->config.nsp ? upload_inverse(feed, feed->io.nsp_scale, sequences) : OK;
}
