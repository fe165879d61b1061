/* A new vocabulary for an old model: which rows of its embedding each new entry starts from. */
#ifndef BERTH_TRAIN_HF_REMAP_H
#define BERTH_TRAIN_HF_REMAP_H

#include "train/hf_folder.h"

/* Entry e starts as the mean of the old rows rows[starts[e] … starts[e+1]): its own, if the old vocabulary has it; else
 * those of the pieces that the old vocabulary splits it into, or of [UNK]. */
struct vocab_map {
    int64_t *starts; /* [entries+1] */
    int32_t *rows;
    int64_t entries, kept, made; /* made: all that are not kept */
};
void vocab_map_make(const struct vocab *old, const struct vocab *new, struct vocab_map *out);
void vocab_map_free(struct vocab_map *map);

/* Does this parameter have a row for each entry of the vocabulary? */
bool hf_is_vocabulary(const struct parameter *parameter);
/* As hf_check_slice and hf_read_slice (into the master weights), for a tensor with `old_rows` or more rows in the file.
 */
status hf_check_mapped(const struct hf_model *model, int parameter, const struct safetensors *file, const char *name,
                       int64_t old_rows);
status hf_read_mapped(const struct hf_model *model, int parameter, const struct safetensors *file, const char *name,
                      const struct vocab_map *map, float *scratch);

#endif
