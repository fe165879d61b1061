#include "model/bert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/philox.h"

/* FNV-1a: a parameter's own random stream, whatever stands before it in the table. */
static uint64_t hash_name(const char *name) {
    uint64_t hash = 14695981039346656037u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 1099511628211u;
    return hash;
}

/* A normal number takes a block of the stream, and one beyond two deviations is left out. So that many threads can make
 * the numbers that one would make, runs of BLOCKS blocks are looked at for themselves, then what was kept of them is
 * joined in their order. */
enum { BLOCKS = 1024, RUNS = 64 };

struct normals {
    uint64_t seed, stream;
    uint32_t first; /* block */
    double deviation;
    float kept[RUNS][BLOCKS];
    int counts[RUNS];
};

static void make_runs(void *ctx, int64_t begin, int64_t end) {
    struct normals *normals = ctx;
    for (int64_t run = begin; run < end; run++) {
        struct random_stream random = random_open(normals->seed, RANDOM_INIT, normals->stream);
        random.block = normals->first + (uint32_t)run * BLOCKS;
        normals->counts[run] = 0;
        for (int i = 0; i < BLOCKS; i++) {
            double value = random_normal(&random);
            if (fabs(value) <= 2)
                normals->kept[run][normals->counts[run]++] = (float)(value * normals->deviation);
        }
    }
}

static void truncated_normals(uint64_t seed, uint64_t stream, double deviation, int64_t count, float *values) {
    struct normals *normals = xmalloc(sizeof *normals);
    *normals = (struct normals){.seed = seed, .stream = stream, .deviation = deviation};
    for (int64_t made = 0; made < count;) {
        int64_t runs = (count - made) / BLOCKS + 1;
        runs = runs < RUNS ? runs : RUNS;
        parallel_for(runs, 1, make_runs, normals);
        normals->first += (uint32_t)runs * BLOCKS;
        for (int64_t run = 0; run < runs && made < count; run++) {
            int64_t kept = normals->counts[run] < count - made ? normals->counts[run] : count - made;
            memcpy(values + made, normals->kept[run], (size_t)kept * sizeof *values);
            made += kept;
        }
    }
    free(normals);
}

void bert_init_parameter(const struct bert_config *config, const struct parameter *parameter, uint64_t seed,
                         float *values) {
    int64_t count = parameter->rows * parameter->columns, in_file = parameter->file_rows * parameter->columns;
    memset(values, 0, (size_t)count * sizeof *values);
    if (parameter->init != INIT_ZERO && parameter->init != INIT_ONE)
        truncated_normals(seed, hash_name(parameter->name), config->initializer_range, in_file, values);
    for (int64_t i = 0; i < in_file && parameter->init == INIT_ONE; i++)
        values[i] = 1;
}

double bert_flop(const struct bert_config *config, int64_t length, int64_t masked) {
    double i = (double)config->hidden_size, u = (double)config->intermediate_size, n = (double)length;
    double layers = (double)config->num_hidden_layers;
    double encoder = layers * (4 * i * i + 2 * i * u);
    double heads = (double)masked * (i * i + i * (double)config->vocab_size) + (config->nsp ? i * i + 2 * i : 0);
    return 6 * encoder * n + 12 * layers * i * n * n + 6 * heads;
}
