/* Shards in, batches out.
 *
 * A data set is the checked list of shard files behind a setting like data.train: a file, a folder, a glob or a
 * comma-separated list of these; with weights behind the items of the list (a/:0.7,b/:0.3), samples are drawn from
 * each in just these shares, and each goes through epochs of its own. A shard has NVIDIA's datasets in integers of any
 * size: padded rows (input_mask may be missing), variable-length rows, or packed rows, whose sequences come out one by
 * one. A reader walks the sequences in the order fixed by (seed, epoch, list of shards) and fills a ring of steps ahead
 * of the trainer from one thread, which alone calls HDF5. */
#ifndef BERTH_DATA_READER_H
#define BERTH_DATA_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "data/batch.h"
#include "data/masking.h"

struct dataset;

/* Finds and opens every shard once, checks datasets, types and shapes, and keeps names, sizes and row counts.
 * `setting` names the key in messages ("data.train"). BAD_INPUT on anything wrong, with file and dataset; with
 * `skip_bad` a broken shard is left out with a warning instead, and so is, as it is read, a block (shard_read.h) with a
 * broken row: its sequences count as consumed, but no step holds them. */
status dataset_open(const char *setting, const char *paths, bool skip_bad, struct dataset **out);
void dataset_free(struct dataset *dataset);
int64_t dataset_rows(const struct dataset *dataset);
int64_t dataset_files(const struct dataset *dataset);
int64_t dataset_seq_len(const struct dataset *dataset);         /* the largest S of its shards */
int64_t dataset_max_predictions(const struct dataset *dataset); /* the largest P of its shards */
/* Blocks of rows that samples are drawn from at a time, at most: so many ranks can have sequences. */
int64_t dataset_open_blocks(const struct dataset *dataset);
void dataset_describe_sources(const struct dataset *dataset, struct text *out); /* "70 % a/, 30 % b/"; or nothing */
/* BAD_INPUT names the first shard that was made with a vocabulary of other than `entries` (0: unknown), or one larger
 * than the model's `vocab_size`. Foreign shards do not tell: their ids are checked as they are read. */
status dataset_check_vocab(const struct dataset *dataset, int64_t entries, int64_t vocab_size);

/* The manifest: a JSON array with an object per shard (name, bytes, rows), in order; what resume compares.
 * `dataset_compare` is BAD_INPUT, naming the first difference, when `manifest` (JSON text) is not that of `dataset`. */
void dataset_manifest(const struct dataset *dataset, struct text *json);
status dataset_compare(const struct dataset *dataset, const char *manifest);

struct reader_options {
    uint64_t seed;
    bool shuffle;         /* false: file order, row order (evaluation) */
    bool endless;         /* true: epoch after epoch, by weight; false: one pass, whose last step may be short */
    int64_t global_batch; /* sequences a step, all ranks together */
    int64_t batch_tokens; /* > 0: instead, a step ends with the sequence with which it holds so many tokens; every rank
                             reads all sequences then, to count them */
    int64_t micro_batch;  /* sequences a micro-batch, at most, of this rank */
    int64_t micro_tokens, micro_masked; /* tokens and masked tokens of it, at most; 0: any number */
    int rank, ranks;
    int64_t vocab_size; /* ids must lie below */
    int64_t seq_len;    /* longest sequence the model was planned for: a longer one is an error that names its row */
    int64_t max_predictions;
    int64_t start_epoch, start_consumed; /* where to start: epoch, and sequences of it already consumed */
    int64_t first_number;                /* sequence number of the first sequence handed out */
    const struct masking *masking;       /* masks drawn anew, from (seed, shards, epoch, sample); NULL: those stored */
    int ring;                            /* steps read ahead, at least 1 */
};

struct reader;
status reader_open(const struct dataset *dataset, const struct reader_options *options, struct reader **out);
/* The next step, valid until the next call; *out = NULL at the end of a pass that is not endless. Errors of the reader
 * thread (a bad row, a vanished file) come out here, at the step they belong to. */
status reader_next(struct reader *reader, const struct step_data **out);
/* The place after the last step handed out: what start_epoch and start_consumed must be to go on exactly there. */
void reader_position(const struct reader *reader, int64_t *epoch, int64_t *consumed);
void reader_close(struct reader *reader);

/* One pass over all rows in file order, each checked: `visit` gets micro-batches of at most 256 sequences. */
typedef void (*batch_visit)(void *ctx, const struct batch *batch);
status dataset_visit(const struct dataset *dataset, int64_t vocab_size, batch_visit visit, void *ctx);

#endif
