/* A HuggingFace model folder: config.json, model.safetensors, and, where there is a vocabulary, vocab.txt with the
 * files that make AutoTokenizer work (tokenizer_config.json, special_tokens_map.json, tokenizer.json). */
#ifndef BERTH_TRAIN_HF_FOLDER_H
#define BERTH_TRAIN_HF_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"
#include "data/wordpiece.h"
#include "graph/exec.h"
#include "model/bert.h"
#include "train/safetensors.h"

/* The vocabulary that a model goes with. The file's bytes are held from the start of a run, so that every checkpoint
 * has the same vocab.txt whatever happens to the original. */
struct hf_tokenizer {
    struct vocab *vocab; /* owned */
    struct text bytes;   /* vocab.txt as it was read */
    bool lower_case;     /* text is lower-cased and stripped of accents before it is split */
};
/* Reads the file twice (vocab_read, bytes). BAD_INPUT as vocab_read. */
status hf_tokenizer_read(const char *vocab_path, struct hf_tokenizer **out);
void hf_tokenizer_free(struct hf_tokenizer *tokenizer); /* NULL is fine */

/* What moves between device and files: the trainer fills it once. Nothing here is owned. */
struct hf_model {
    const struct bert_config *config;
    const struct graph *graph; /* weights move through its flat f32 tensor `master` */
    struct exec *exec;
    const struct hf_tokenizer *tokenizer; /* NULL: no vocabulary, no tokenizer files */
};

/* Writes every file of the folder, which must exist. Each file is flushed to disk. `step`: see safetensors_create. */
status hf_folder_write(const char *folder, const struct hf_model *model, int64_t step);

const char *hf_activation_name(enum activation activation); /* of `hidden_act`: "gelu", "gelu_new", "relu" */

/* Parts of it: config.json, and the four tokenizer files; `longest` is the longest input in tokens. */
status hf_config_write(const char *folder, const struct bert_config *config, int64_t pad_token_id);
status hf_tokenizer_write(const char *folder, const struct hf_tokenizer *tokenizer, int64_t longest);

/* config.json. Keys that are missing take BertConfig's defaults; `nsp` follows `architectures` (true for
 * BertForPreTraining and BertForNextSentencePrediction, and where the key is missing). BAD_INPUT for another
 * model_type, relative positions, an unknown hidden_act, or a value of the wrong type. */
status hf_folder_read_config(const char *folder, struct bert_config *out);

struct hf_changes {
    const struct vocab
        *old_vocab;      /* the folder's: embeddings go to the model's vocabulary by token; NULL: it is the same */
    bool tile_positions; /* position embeddings are repeated until there are enough */
};

/* Start from the weights of any HuggingFace BERT folder (setting `model.init`). Names are mapped: gamma and beta,
 * dense_act, "module." in front, "bert." missing in front. Heads that are missing (pooler, cls.*) are initialised from
 * `seed`; these and the tensors that were not used are logged, in one line each. BAD_INPUT when an embedding or encoder
 * tensor is missing, a shape differs, or the folder has only a pytorch_model.bin.
 * `changes`, or NULL: where the model is not to be that of the folder, see hf_remap.h.
 * Fills `master` only: the weights in the compute dtype are the caller's to refresh. Vocabulary padding becomes zero.
 */
status hf_folder_load(const char *folder, const struct hf_model *model, const struct hf_changes *changes,
                      uint64_t seed);

/* Shared with checkpoint.c: a parameter's slice of a flat tensor (master weights or moments) to and from a file,
 * without the vocabulary padding. `scratch` holds hf_scratch_count() floats. */
int64_t hf_scratch_count(const struct graph *graph); /* elements of the largest parameter */
void hf_entry(const struct parameter *parameter, const char *name, struct safetensors_entry *out);
/* Writes a whole file of slices, in the order of the list. */
struct hf_slice {
    const char *name; /* in the file */
    int tensor, parameter;
};
status hf_write_slices(const char *path, const struct hf_model *model, const struct hf_slice *slices, int64_t count,
                       int64_t step);
/* `name` in the file. BAD_INPUT if it is missing, not F32, F16 or BF16, or of another shape: hf_check_slice says so
 * without reading, and takes any number of rows from `old_rows` on, if that is not 0. */
status hf_check_slice(const struct hf_model *model, int parameter, const struct safetensors *file, const char *name,
                      int64_t old_rows);
status hf_read_slice(const struct hf_model *model, int tensor, int parameter, const struct safetensors *file,
                     const char *name, float *scratch);

#endif
