/* Other rows for the embeddings of an old model: a new vocabulary, more positions. */
#ifndef BERTH_TRAIN_HF_REMAP_H
#define BERTH_TRAIN_HF_REMAP_H

#include "train/hf_folder.h"

/* New row e starts as the mean of the old rows rows[starts[e] … starts[e+1]). */
struct row_map {
    int64_t *starts; /* [entries+1] */
    int32_t *rows;
    int64_t entries, kept, made; /* made: all that are not kept */
};
/* An entry's own row, if the old vocabulary has it; else those of the pieces that the old vocabulary splits it into, or
 * of [UNK]. */
void row_map_of_vocab(const struct vocab *old, const struct vocab *new, struct row_map *out);
void row_map_tiled(int64_t old_rows, int64_t rows, struct row_map *out); /* row e is old row e mod old_rows */
void row_map_free(struct row_map *map);

/* Does this parameter have a row for each entry of the vocabulary, or for each position? */
bool hf_is_vocabulary(const struct parameter *parameter);
bool hf_is_positions(const struct parameter *parameter);
/* As hf_read_slice, into the master weights, for a tensor whose rows hf_check_slice found to be enough. */
status hf_read_mapped(const struct hf_model *model, int parameter, const struct safetensors *file, const char *name,
                      const struct row_map *map, float *scratch);

#endif
