/* Text into shards, in two passes over the disk, so that memory does not grow with the text. The first reads a part of
 * the text at a time, makes its instances (a random next sentence comes from the same part), and writes them to a file
 * in OUTPUT/unfinished in random order; the second draws from the parts at random and writes shards, after which that
 * folder is removed. What was done is noted there after each part and each shard: the same call after a crash goes on,
 * and ends with the same shards as a run without one. */
#ifndef BERTH_DATA_SHARD_MAKE_H
#define BERTH_DATA_SHARD_MAKE_H

#include "data/documents.h"
#include "data/shard_write.h"
#include "data/spill.h"

enum split_name { SPLIT_TRAIN, SPLIT_EVAL, SPLIT_COUNT };

/* What is written and counted apart, in folder OUTPUT/train and OUTPUT/eval. */
struct shard_split {
    int64_t documents, sentences, tokens;       /* of the text */
    int64_t instances, instance_tokens, masked; /* made of it */
    int64_t files;                              /* written */
    struct spill spill;
};
const char *split_folder(enum split_name split); /* "train" */

struct shard_job {
    struct instance_options instances;
    struct shard_shape shape;
    int64_t dupe_factor;    /* times over the text, with other cuts and masks each time */
    int64_t rows_per_shard; /* at most */
    int64_t part_tokens;    /* a part of the text ends behind so many tokens: memory is about 20 bytes a token */
    double held_out;        /* share of the documents that go to SPLIT_EVAL: at least one of two or more */
    bool sentence_a_line;
    const struct vocab *vocab;
    const struct wordpiece *wordpiece;
    struct document_source *source;
    struct text command; /* what the result depends on beside the above and the source, for the check of a crashed
                            run's work: lines, "strip_accents 1" */
    const char *output;  /* a folder: new, empty, or holding the unfinished work of the same call */
    /* results */
    struct shard_split splits[SPLIT_COUNT];
    int64_t parts, broken; /* parts of the text read; invalid UTF-8 sequences left out */
};

/* Zero-initialize the results, and free them with shard_job_free. BAD_INPUT where the output is not as above, the text
 * is damaged, or gives no instance: nothing is left behind then. FAILED on a full disk, say: the work is kept. */
status shards_make(struct shard_job *job);
void shard_job_free(struct shard_job *job);

#endif
