#include "graph/exec.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct exec {
    struct graph *graph;
    struct backend *backend;
    struct plan plan;
    uint64_t seed;
    struct sizes sizes; /* of the current micro-batch */
    void **data;        /* [tensors] device memory; activations at capacity offsets */
    void *arena;
    struct ragged ragged; /* device pointers */
    void *starts, *square_starts, *token_sequence, *sequence_numbers;
    int64_t *square_host;   /* [b+1] */
    int32_t *sequence_host; /* [t] */
    double *seconds;        /* [nodes] of the profile, the caller's; or NULL */
};

static status check_support(const struct exec *exec) {
    for (int n = 0; n < exec->graph->node_count; n++)
        if (!exec->backend->supports(exec->backend, exec->graph->nodes[n].op, exec->graph->compute))
            return failed("the %s backend has no operator %s in %s", exec->backend->name,
                          op_info(exec->graph->nodes[n].op)->name, dtype_name(exec->graph->compute));
    return OK;
}

static status new_memory(struct exec *exec, void **out, int64_t bytes, const char *what) {
    return exec->backend->memory_new(exec->backend, out, (size_t)bytes, what);
}

static bool has_own_memory(const struct graph *graph, int tensor) {
    enum tensor_kind kind = graph->tensors[tensor].kind;
    return kind == TENSOR_STATE || kind == TENSOR_INPUT || kind == TENSOR_RESULT || tensor == graph->gradients;
}

static status allocate(struct exec *exec) {
    const struct graph *graph = exec->graph;
    const struct sizes *capacity = &graph->capacity;
    TRY(new_memory(exec, &exec->arena, exec->plan.arena_bytes, "activations"));
    for (int t = 0; t < graph->tensor_count; t++) {
        const struct tensor *tensor = &graph->tensors[t];
        if (has_own_memory(graph, t))
            TRY(new_memory(exec, &exec->data[t], tensor_padded(tensor, capacity) * (int64_t)dtype_size(tensor->dtype),
                           tensor->name));
        else if (exec->plan.offset[t] >= 0)
            exec->data[t] = (char *)exec->arena + exec->plan.offset[t];
    }
    for (int t = 0; t < graph->tensor_count; t++) {
        const struct tensor *tensor = &graph->tensors[t];
        if (tensor->kind != TENSOR_WEIGHT && (tensor->kind != TENSOR_GRADIENT || t == graph->gradients))
            continue;
        int flat = tensor->kind == TENSOR_GRADIENT ? graph->gradients
                   : tensor->dtype == F32          ? graph->master
                                                   : graph->weights;
        exec->data[t] =
            (char *)exec->data[flat] + graph->parameters[tensor->parameter].offset * (int64_t)dtype_size(tensor->dtype);
    }
    int64_t b = capacity->padded[DIM_B], tokens = capacity->padded[DIM_T];
    TRY(new_memory(exec, &exec->starts, (b + 1) * 4, "sequence starts"));
    TRY(new_memory(exec, &exec->square_starts, (b + 1) * 8, "sequence starts"));
    TRY(new_memory(exec, &exec->sequence_numbers, b * 8, "sequence numbers"));
    TRY(new_memory(exec, &exec->token_sequence, tokens * 4, "token index"));
    exec->square_host = xcalloc((size_t)b + 1, sizeof *exec->square_host);
    exec->sequence_host = xcalloc((size_t)tokens, sizeof *exec->sequence_host);
    return OK;
}

static status check_memory(const struct exec *exec) {
    const struct plan *plan = &exec->plan;
    int64_t left = exec->backend->memory_left(exec->backend);
    int64_t need =
        plan->weight_bytes + plan->gradient_bytes + plan->state_bytes + plan->input_bytes + plan->arena_bytes;
    if (!left || need <= left)
        return OK;
    return bad_input(
        "the run needs %.2f GB (activations %.2f), but the %s device has %.2f GB left: lower "
        "train.micro_batch (berth analyze FILE.ini --memory %.2f says how far), or set "
        "train.activation_checkpointing=layer",
        1e-9 * (double)need, 1e-9 * (double)plan->arena_bytes, exec->backend->name, 1e-9 * (double)left,
        1e-9 * (double)left);
}

status exec_new(struct exec **out, struct graph *graph, struct backend *backend, uint64_t seed) {
    struct exec *exec = xcalloc(1, sizeof *exec);
    *exec = (struct exec){.graph = graph, .backend = backend, .seed = seed, .sizes = graph->capacity};
    exec->data = xcalloc((size_t)graph->tensor_count, sizeof *exec->data);
    status code = graph_verify(graph);
    if (code == OK)
        code = check_support(exec);
    if (code == OK)
        code = plan_make(graph, &exec->plan);
    if (code == OK)
        code = check_memory(exec);
    if (code == OK)
        code = allocate(exec);
    if (code != OK) {
        exec_free(exec);
        exec = NULL;
    }
    *out = exec;
    return code;
}

void exec_free(struct exec *exec) {
    if (!exec)
        return;
    for (int t = 0; t < exec->graph->tensor_count; t++)
        if (has_own_memory(exec->graph, t))
            exec->backend->memory_free(exec->backend, exec->data[t]);
    void *others[] = {exec->arena, exec->starts, exec->square_starts, exec->token_sequence, exec->sequence_numbers};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        exec->backend->memory_free(exec->backend, others[i]);
    free(exec->data);
    free(exec->square_host);
    free(exec->sequence_host);
    plan_free(&exec->plan);
    free(exec);
}

static status set_ragged_dim(struct exec *exec, enum dim dim, int64_t n, const char *what) {
    if (n > exec->graph->capacity.n[dim])
        return bad_input("a micro-batch has %lld %s, more than the %lld it was planned for", (long long)n, what,
                         (long long)exec->graph->capacity.n[dim]);
    sizes_set_ragged(&exec->sizes, dim, n);
    return OK;
}

status exec_set_ragged(struct exec *exec, int64_t sequences, const int32_t *starts, const int64_t *sequence_numbers,
                       int64_t masked) {
    struct backend *backend = exec->backend;
    int64_t tokens = starts[sequences], longest = 0;
    TRY(set_ragged_dim(exec, DIM_B, sequences, "sequences"));
    TRY(set_ragged_dim(exec, DIM_T, tokens, "tokens"));
    TRY(set_ragged_dim(exec, DIM_M, masked, "masked positions"));
    for (int64_t s = 0; s < sequences; s++) {
        int64_t length = starts[s + 1] - starts[s];
        longest = length > longest ? length : longest;
        exec->square_host[s + 1] = exec->square_host[s] + length * length;
        for (int64_t token = starts[s]; token < starts[s + 1]; token++)
            exec->sequence_host[token] = (int32_t)s;
    }
    TRY(set_ragged_dim(exec, DIM_E, exec->square_host[sequences], "attention entries"));
    TRY(backend->upload(backend, exec->starts, starts, (size_t)(sequences + 1) * sizeof *starts));
    TRY(backend->upload(backend, exec->square_starts, exec->square_host, (size_t)(sequences + 1) * 8));
    TRY(backend->upload(backend, exec->token_sequence, exec->sequence_host, (size_t)tokens * 4));
    TRY(backend->upload(backend, exec->sequence_numbers, sequence_numbers, (size_t)sequences * 8));
    exec->ragged = (struct ragged){.sequences = sequences,
                                   .tokens = tokens,
                                   .longest = longest,
                                   .starts = exec->starts,
                                   .square_starts = exec->square_starts,
                                   .token_sequence = exec->token_sequence,
                                   .sequence_numbers = exec->sequence_numbers};
    return OK;
}

status exec_upload(struct exec *exec, int tensor, const void *host, int64_t count) {
    size_t bytes = (size_t)count * dtype_size(exec->graph->tensors[tensor].dtype);
    return exec->backend->upload(exec->backend, exec->data[tensor], host, bytes);
}

status exec_download(struct exec *exec, int tensor, void *host, int64_t count) {
    size_t bytes = (size_t)count * dtype_size(exec->graph->tensors[tensor].dtype);
    return exec->backend->download(exec->backend, host, exec->data[tensor], bytes);
}

status exec_download_later(struct exec *exec, int tensor, void *host, int64_t count) {
    size_t bytes = (size_t)count * dtype_size(exec->graph->tensors[tensor].dtype);
    return exec->backend->download_later(exec->backend, host, exec->data[tensor], bytes);
}

static void *slice(struct exec *exec, int tensor, int parameter, size_t *bytes) {
    const struct parameter *p = &exec->graph->parameters[parameter];
    size_t size = dtype_size(exec->graph->tensors[tensor].dtype);
    *bytes = (size_t)(p->rows * p->columns) * size;
    return (char *)exec->data[tensor] + p->offset * (int64_t)size;
}

status exec_upload_slice(struct exec *exec, int tensor, int parameter, const void *host) {
    size_t bytes;
    void *to = slice(exec, tensor, parameter, &bytes);
    return exec->backend->upload(exec->backend, to, host, bytes);
}

status exec_download_slice(struct exec *exec, int tensor, int parameter, void *host) {
    size_t bytes;
    const void *from = slice(exec, tensor, parameter, &bytes);
    return exec->backend->download(exec->backend, host, from, bytes);
}

static struct operand bind_operand(const struct exec *exec, int number) {
    const struct tensor *tensor = &exec->graph->tensors[number];
    const struct sizes *sizes = &exec->sizes;
    struct operand operand = {.data = exec->data[number],
                              .dtype = tensor->dtype,
                              .columns = 1,
                              .rows = sizes->n[tensor->dims[0]],
                              .padded_rows = sizes->padded[tensor->dims[0]]};
    for (int i = 1; i < tensor->rank; i++)
        operand.columns *= sizes->n[tensor->dims[i]];
    operand.stride = operand.columns * exec->plan.beside[number];
    return operand;
}

static status run_node(struct exec *exec, const struct node *node, bool first, bool evaluate) {
    const struct graph *graph = exec->graph;
    const struct op_info *info = op_info(node->op);
    struct op_call call = {.op = node->op,
                           .attr = &node->attr,
                           .accumulate = !first || node->attr.add_always,
                           .evaluate = evaluate,
                           .seed = exec->seed,
                           .heads = graph->capacity.n[DIM_H],
                           .longest_position = graph->capacity.n[DIM_L],
                           .hidden = graph->capacity.n[DIM_I],
                           .ragged = &exec->ragged,
                           .master = exec->data[graph->master],
                           .weights = exec->data[graph->weights],
                           .chunks = graph->chunks,
                           .chunk_count = graph->chunk_count,
                           .parameters = graph->parameters,
                           .parameter_count = graph->parameter_count};
    for (int i = 0; i < info->inputs; i++)
        call.in[i] = bind_operand(exec, node->in[i]);
    for (int i = 0; i < info->outputs; i++)
        call.out[i] = bind_operand(exec, node->out[i]);
    return exec->backend->run(exec->backend, &call);
}

struct walk {
    struct exec *exec;
    int passes;
    bool first, evaluate;
};

static status run_nodes(void *ctx) {
    const struct walk *walk = ctx;
    struct exec *exec = walk->exec;
    for (int n = 0; n < exec->graph->node_count; n++) {
        if (!(exec->graph->nodes[n].pass & walk->passes))
            continue;
        double began = exec->seconds ? clock_seconds() : 0;
        TRY(run_node(exec, &exec->graph->nodes[n], walk->first, walk->evaluate));
        if (exec->seconds) {
            TRY(exec->backend->wait(exec->backend));
            exec->seconds[n] += clock_seconds() - began;
        }
    }
    return OK;
}

/* The update has no ragged operand, so that it is the same series whatever the micro-batch. */
static struct series series_of(const struct walk *walk) {
    const struct exec *exec = walk->exec;
    const struct sizes *sizes = &exec->sizes;
    struct series series = {.rounded = {.owner = (int64_t)(intptr_t)exec,
                                        .passes = walk->passes,
                                        .first = walk->first,
                                        .evaluate = walk->evaluate}};
    if (walk->passes == PASS_UPDATE)
        return series;
    series.rounded.tokens = sizes->padded[DIM_T];
    series.rounded.masked = sizes->padded[DIM_M];
    series.rounded.sequences = sizes->padded[DIM_B];
    series.tokens = sizes->n[DIM_T];
    series.masked = sizes->n[DIM_M];
    series.sequences = sizes->n[DIM_B];
    series.entries = sizes->n[DIM_E];
    series.longest = exec->ragged.longest;
    return series;
}

status exec_run(struct exec *exec, int passes, bool first, bool evaluate) {
    struct walk walk = {.exec = exec, .passes = passes, .first = first, .evaluate = evaluate};
    struct series series = series_of(&walk);
    if (!exec->backend->run_series || exec->seconds)
        return run_nodes(&walk);
    return exec->backend->run_series(exec->backend, &series, run_nodes, &walk);
}

float *exec_gradients(const struct exec *exec) { return exec->data[exec->graph->gradients]; }

status exec_clear(struct exec *exec) {
    const struct graph *graph = exec->graph;
    for (int t = 0; t < graph->tensor_count; t++) {
        const struct tensor *tensor = &graph->tensors[t];
        if (tensor->kind != TENSOR_RESULT && t != graph->gradients)
            continue;
        int64_t bytes = tensor_padded(tensor, &graph->capacity) * (int64_t)dtype_size(tensor->dtype);
        TRY(exec->backend->clear(exec->backend, exec->data[t], (size_t)bytes));
    }
    return OK;
}

void exec_profile(struct exec *exec, double *seconds) { exec->seconds = seconds; }

const struct plan *exec_plan(const struct exec *exec) { return &exec->plan; }

struct backend *exec_backend(const struct exec *exec) {
    return exec->backend;
}
