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

/* Every token but the first ([CLS]) and those equal to the last ([SEP]) of its sequence; masked ones as they were. */
static void count_tokens(void *ctx, const struct batch *batch) {
    struct counts *counts = ctx;
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

static void add_losses(void *ctx, const struct batch *batch) {
    struct counts *counts = ctx;
    for (int64_t m = 0; m < batch->masked; m++)
        counts->loss -= log((counts->of[batch->masked_labels[m]] + 1) / (counts->total + (double)counts->vocab_size));
    counts->masked += batch->masked;
}

status unigram_loss(const struct dataset *train, const struct dataset *eval, int64_t vocab_size, double *loss) {
    struct counts counts = {.of = xcalloc((size_t)vocab_size, sizeof *counts.of), .vocab_size = vocab_size};
    status code = dataset_visit(train, vocab_size, count_tokens, &counts);
    if (code == OK)
        code = dataset_visit(eval, vocab_size, add_losses, &counts);
    *loss = counts.masked ? counts.loss / (double)counts.masked : NAN;
    free(counts.of);
    return code;
}
