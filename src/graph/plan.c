#include "graph/plan.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

static int64_t tensor_bytes(const struct graph *graph, int tensor) {
    const struct tensor *t = &graph->tensors[tensor];
    int64_t bytes = tensor_padded(t, &graph->capacity) * (int64_t)dtype_size(t->dtype);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void touch(struct plan *plan, int tensor, int node) {
    if (plan->first[tensor] < 0)
        plan->first[tensor] = node;
    plan->last[tensor] = node;
}

/* --- tensors side by side --- */

enum { BESIDE = 3 };

static void bar(const struct graph *graph, const int *tensors, const struct operand_info *operands, int count,
                bool *barred) {
    for (int i = 0; i < count; i++)
        if (!operands[i].beside || graph->tensors[tensors[i]].kind != TENSOR_ACTIVATION)
            barred[tensors[i]] = true;
}

/* The first output of the node that begins a group, or -1. Columns are a multiple of what parameters are aligned to:
 * only then do the three weights stand side by side, too. */
static int group_of(const struct graph *graph, const struct node *node, const bool *barred) {
    const struct op_info *info = op_info(node->op);
    for (int i = 0; i + BESIDE <= info->outputs; i++) {
        const struct tensor *first = &graph->tensors[node->out[i]];
        bool group = first->rank == 2 && graph->capacity.n[first->dims[1]] % PARAMETER_ALIGNMENT == 0;
        for (int j = i; j < i + BESIDE && group; j++) {
            const struct tensor *tensor = &graph->tensors[node->out[j]];
            group = info->out[j].beside && !barred[node->out[j]] && tensor->dtype == first->dtype &&
                    tensor->rank == first->rank && memcmp(tensor->dims, first->dims, sizeof first->dims) == 0;
        }
        if (group)
            return i;
    }
    return -1;
}

/* The tensors of a group become one lifetime, that of the first; column[t] is where t begins in its rows, in bytes. */
static void place_beside(const struct graph *graph, struct plan *plan, int *owner, int64_t *column) {
    bool *barred = xcalloc((size_t)graph->tensor_count, sizeof *barred);
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->nodes[n];
        bar(graph, node->in, op_info(node->op)->in, op_info(node->op)->inputs, barred);
        bar(graph, node->out, op_info(node->op)->out, op_info(node->op)->outputs, barred);
    }
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->nodes[n];
        int group = group_of(graph, node, barred);
        for (int j = 0; j < BESIDE && group >= 0; j++) {
            int root = node->out[group], tensor = node->out[group + j];
            const struct tensor *t = &graph->tensors[tensor];
            owner[tensor] = root;
            column[tensor] = j * graph->capacity.n[t->dims[1]] * (int64_t)dtype_size(t->dtype);
            plan->beside[tensor] = BESIDE;
            if (plan->last[tensor] > plan->last[root])
                plan->last[root] = plan->last[tensor];
        }
    }
    free(barred);
}

/* An operator that may work in place takes over its input's memory when that input dies with it: the two tensors become
 * one lifetime. owner[t] is the tensor whose memory t uses. */
static void share_in_place(const struct graph *graph, struct plan *plan, int *owner) {
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->nodes[n];
        const struct op_info *info = op_info(node->op);
        if (info->in_place < 0)
            continue;
        int from = node->in[info->in_place], to = node->out[0];
        if (graph->tensors[from].kind != TENSOR_ACTIVATION || graph->tensors[to].kind != TENSOR_ACTIVATION ||
            plan->last[from] != n || tensor_bytes(graph, from) != tensor_bytes(graph, to) || plan->beside[from] > 1 ||
            plan->beside[to] > 1)
            continue;
        bool twice = false; /* the same tensor as another operand of the node would be read after it was overwritten */
        for (int i = 0; i < info->inputs; i++)
            twice |= i != info->in_place && node->in[i] == from;
        if (twice)
            continue;
        int root = owner[from];
        owner[to] = root;
        if (plan->last[to] > plan->last[root])
            plan->last[root] = plan->last[to];
    }
}

struct span {
    int tensor;
    int64_t bytes, offset;
};

static int largest_first(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->tensor - y->tensor;
}

static int by_offset(const void *a, const void *b) {
    const struct span *const *x = a, *const *y = b;
    return (*x)->offset < (*y)->offset ? -1 : (*x)->offset > (*y)->offset;
}

/* Largest first, each at the lowest offset that is free for its whole lifetime. */
static void place(struct plan *plan, struct span *spans, int count) {
    const struct span **busy = xmalloc((size_t)(count + 1) * sizeof *busy);
    for (int s = 0; s < count; s++) {
        struct span *span = &spans[s];
        int busy_count = 0;
        for (int other = 0; other < s; other++)
            if (plan->first[spans[other].tensor] <= plan->last[span->tensor] &&
                plan->first[span->tensor] <= plan->last[spans[other].tensor])
                busy[busy_count++] = &spans[other];
        qsort(busy, (size_t)busy_count, sizeof *busy, by_offset);
        int64_t offset = 0;
        for (int b = 0; b < busy_count && busy[b]->offset - offset < span->bytes; b++)
            if (busy[b]->offset + busy[b]->bytes > offset)
                offset = busy[b]->offset + busy[b]->bytes;
        span->offset = offset;
        plan->offset[span->tensor] = offset;
        if (offset + span->bytes > plan->arena_bytes)
            plan->arena_bytes = offset + span->bytes;
    }
    free(busy);
}

static int64_t largest_live_set(const struct graph *graph, const struct plan *plan, const struct span *spans,
                                int count) {
    int64_t *change = xcalloc((size_t)graph->node_count + 2, sizeof *change), live = 0, most = 0;
    for (int s = 0; s < count; s++) {
        change[plan->first[spans[s].tensor]] += spans[s].bytes;
        change[plan->last[spans[s].tensor] + 1] -= spans[s].bytes;
    }
    for (int n = 0; n <= graph->node_count; n++) {
        live += change[n];
        most = live > most ? live : most;
    }
    free(change);
    return most;
}

static void plan_activations(const struct graph *graph, struct plan *plan) {
    int *owner = xmalloc((size_t)graph->tensor_count * sizeof *owner), count = 0;
    struct span *spans = xmalloc((size_t)graph->tensor_count * sizeof *spans);
    int64_t *column = xcalloc((size_t)graph->tensor_count, sizeof *column);
    for (int t = 0; t < graph->tensor_count; t++)
        owner[t] = t;
    place_beside(graph, plan, owner, column);
    share_in_place(graph, plan, owner);
    for (int t = 0; t < graph->tensor_count; t++)
        if (graph->tensors[t].kind == TENSOR_ACTIVATION && plan->first[t] >= 0 && owner[t] == t)
            spans[count++] = (struct span){.tensor = t, .bytes = plan->beside[t] * tensor_bytes(graph, t)};
    plan->live_bytes = largest_live_set(graph, plan, spans, count);
    qsort(spans, (size_t)count, sizeof *spans, largest_first);
    place(plan, spans, count);
    for (int t = 0; t < graph->tensor_count; t++)
        plan->offset[t] = plan->offset[owner[t]] < 0 ? -1 : plan->offset[owner[t]] + column[t];
    free(column);
    free(spans);
    free(owner);
}

static void add_other_memory(const struct graph *graph, struct plan *plan) {
    for (int t = 0; t < graph->tensor_count; t++) {
        int64_t bytes = tensor_bytes(graph, t);
        switch (graph->tensors[t].kind) {
            case TENSOR_STATE:
                *(t == graph->master || t == graph->weights ? &plan->weight_bytes : &plan->state_bytes) += bytes;
                break;
            case TENSOR_INPUT:
            case TENSOR_RESULT:
                plan->input_bytes += bytes;
                break;
            case TENSOR_GRADIENT:
                plan->gradient_bytes += t == graph->gradients ? bytes : 0;
                break;
            case TENSOR_WEIGHT:
            case TENSOR_ACTIVATION:
                break; /* inside the flat buffers; in the arena */
        }
    }
}

status plan_make(const struct graph *graph, struct plan *plan) {
    size_t tensors = (size_t)graph->tensor_count;
    *plan = (struct plan){.offset = xmalloc(tensors * sizeof *plan->offset),
                          .beside = xmalloc(tensors * sizeof *plan->beside),
                          .first = xmalloc(tensors * sizeof *plan->first),
                          .last = xmalloc(tensors * sizeof *plan->last)};
    for (size_t t = 0; t < tensors; t++) {
        plan->offset[t] = -1;
        plan->beside[t] = 1;
        plan->first[t] = plan->last[t] = -1;
    }
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->nodes[n];
        const struct op_info *info = op_info(node->op);
        for (int i = 0; i < info->inputs; i++)
            touch(plan, node->in[i], n);
        for (int i = 0; i < info->outputs; i++)
            touch(plan, node->out[i], n);
    }
    plan_activations(graph, plan);
    add_other_memory(graph, plan);
    return OK;
}

void plan_free(struct plan *plan) {
    free(plan->offset);
    free(plan->beside);
    free(plan->first);
    free(plan->last);
    *plan = (struct plan){0};
}
