#include "cmd/inspect_shard.h"

#include <stdio.h>

#include "data/reader.h"
#include "data/sampler.h"
#include "data/wordpiece.h"

struct totals {
    const struct vocab *vocab; /* NULL: ids */
    int64_t sequences, tokens, masked, random_next, shortest, longest, largest_id;
};

static void count_batch(const struct batch *batch, struct totals *totals) {
    for (int64_t s = 0; s < batch->sequences; s++) {
        int64_t length = batch->starts[s + 1] - batch->starts[s];
        totals->shortest = totals->sequences == 0 || length < totals->shortest ? length : totals->shortest;
        totals->longest = length > totals->longest ? length : totals->longest;
        totals->random_next += batch->nsp_labels[s];
        totals->sequences++;
    }
    for (int64_t i = 0; i < batch->tokens; i++)
        totals->largest_id = batch->ids[i] > totals->largest_id ? batch->ids[i] : totals->largest_id;
    for (int64_t i = 0; i < batch->masked; i++)
        totals->largest_id =
            batch->masked_labels[i] > totals->largest_id ? batch->masked_labels[i] : totals->largest_id;
    totals->tokens += batch->tokens;
    totals->masked += batch->masked;
}

static void print_token(const struct vocab *vocab, int32_t id) {
    if (vocab)
        printf(" %s", vocab_token(vocab, id));
    else
        printf(" %d", id);
}

/* The first sequence of a batch; a masked position shows what stands there and, in braces, what was there. */
static void print_sample(const struct batch *batch, const struct vocab *vocab) {
    int64_t mask = 0;
    printf("first     %s:", batch->nsp_labels[0] ? "B is random" : "B follows A");
    for (int32_t i = 0; i < batch->starts[1]; i++) {
        print_token(vocab, batch->ids[i]);
        if (mask < batch->masked && batch->masked_rows[mask] == i) {
            printf("{");
            print_token(vocab, batch->masked_labels[mask++]);
            printf(" }");
        }
    }
    printf("\n");
}

static void show_batch(void *ctx, const struct batch *batch) {
    struct totals *totals = ctx;
    if (totals->sequences == 0)
        print_sample(batch, totals->vocab);
    count_batch(batch, totals);
}

static void print_totals(const struct dataset *dataset, const struct totals *t) {
    double n = (double)t->sequences;
    printf("shards    %lld, planned for %lld tokens and %lld masked positions a sequence\n",
           (long long)dataset_files(dataset), (long long)dataset_seq_len(dataset),
           (long long)dataset_max_predictions(dataset));
    printf("sequences %lld, %.1f%% with a random B\n", (long long)t->sequences, 100 * (double)t->random_next / n);
    printf("tokens    %lld: %.1f a sequence, from %lld to %lld\n", (long long)t->tokens, (double)t->tokens / n,
           (long long)t->shortest, (long long)t->longest);
    printf("masked    %lld: %.1f%% of the tokens\n", (long long)t->masked, 100 * (double)t->masked / (double)t->tokens);
    printf("ids       up to %lld\n", (long long)t->largest_id);
}

status inspect_shard(const char *path, const char *vocab_path) {
    struct vocab *vocab = NULL;
    struct dataset *dataset = NULL;
    status code = vocab_path ? vocab_read(vocab_path, &vocab) : OK;
    struct totals totals = {.vocab = vocab};
    if (code == OK)
        code = dataset_open("inspect", path, false, &dataset);
    if (code == OK)
        code = dataset_visit(dataset, vocab ? vocab_size(vocab) : INT32_MAX, show_batch, &totals);
    if (code == OK)
        print_totals(dataset, &totals);
    dataset_free(dataset);
    if (vocab)
        vocab_free(vocab);
    return code;
}

static void print_draw(const struct dataset *view, int64_t sample) {
    int64_t shard = 0;
    for (; sample >= view->shards[shard].rows; shard++)
        sample -= view->shards[shard].rows;
    printf("%s %lld\n", view->shards[shard].path, (long long)sample);
}

status inspect_order(const char *path, int64_t count, uint64_t seed) {
    struct dataset *dataset;
    struct mixture mixture;
    struct draw draw;
    TRY(dataset_open("inspect", path, false, &dataset));
    mixture_open(&mixture, dataset, seed, true, true);
    mixture_seek(&mixture, 0, 0);
    for (; count > 0 && mixture_draw(&mixture, &draw); count--)
        print_draw(&mixture.views[draw.source], draw.sample);
    mixture_close(&mixture);
    dataset_free(dataset);
    return OK;
}
