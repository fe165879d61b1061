#include "train/unigram.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

struct counts {
    double *of; /* [vocab] occurrences */
    double total;
    int64_t vocab_size;
    double loss; /* sum over masked tokens */
    int64_t masked;
};

typedef void (*visit)(struct counts *counts, const struct batch *batch);

/* Every token but the first ([CLS]) and those equal to the last ([SEP]) of its sequence; masked ones as they were. */
static void count_tokens(struct counts *counts, const struct batch *batch) {
    int64_t masked = 0;
    for (int64_t s = 0; s < batch->sequences; s++) {
        int32_t separator = batch->ids[batch->starts[s + 1] - 1];
        for (int64_t row = batch->starts[s]; row < batch->starts[s + 1]; row++) {
            bool is_masked = masked < batch->masked && batch->masked_rows[masked] == row;
            int32_t id = is_masked ? batch->masked_labels[masked++] : batch->ids[row];
            if (row == batch->starts[s] || (!is_masked && id == separator))
                continue;
            counts->of[id]++;
            counts->total++;
        }
    }
}

static void add_losses(struct counts *counts, const struct batch *batch) {
    for (int64_t m = 0; m < batch->masked; m++)
        counts->loss -= log((counts->of[batch->masked_labels[m]] + 1) / (counts->total + (double)counts->vocab_size));
    counts->masked += batch->masked;
}

static status visit_all(const struct dataset *dataset, struct counts *counts, visit visit) {
    struct reader_options options = {.global_batch = 256,
                                     .micro_batch = 256,
                                     .ranks = 1,
                                     .vocab_size = counts->vocab_size,
                                     .seq_len = dataset_seq_len(dataset),
                                     .max_predictions = dataset_max_predictions(dataset),
                                     .ring = 2};
    struct reader *reader;
    TRY(reader_open(dataset, &options, &reader));
    const struct step_data *data;
    status code;
    while ((code = reader_next(reader, &data)) == OK && data)
        for (int64_t micro = 0; micro < data->micro_batches; micro++)
            visit(counts, &data->batches[micro]);
    reader_close(reader);
    return code;
}

status unigram_loss(const struct dataset *train, const struct dataset *eval, int64_t vocab_size, double *loss) {
    struct counts counts = {.of = xcalloc((size_t)vocab_size, sizeof *counts.of), .vocab_size = vocab_size};
    status code = visit_all(train, &counts, count_tokens);
    if (code == OK)
        code = visit_all(eval, &counts, add_losses);
    *loss = counts.masked ? counts.loss / (double)counts.masked : NAN;
    free(counts.of);
    return code;
}
