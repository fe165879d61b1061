#include "graph/graph.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sizes_set(struct sizes *sizes, enum dim dim, int64_t n) { sizes->n[dim] = sizes->padded[dim] = n; }

void sizes_set_ragged(struct sizes *sizes, enum dim dim, int64_t n) {
    int64_t multiple = dim == DIM_T ? 256 : dim == DIM_E ? 1 : 64;
    sizes->n[dim] = n;
    sizes->padded[dim] = (n + multiple - 1) / multiple * multiple;
}

struct graph *graph_new(enum dtype compute, const struct sizes *capacity) {
    struct graph *graph = xcalloc(1, sizeof *graph);
    graph->compute = compute;
    graph->capacity = *capacity;
    sizes_set(&graph->capacity, DIM_ONE, 1);
    sizes_set(&graph->capacity, DIM_S, 2);
    return graph;
}

void graph_free(struct graph *graph) {
    if (!graph)
        return;
    free(graph->tensors);
    free(graph->nodes);
    free(graph->parameters);
    free(graph->chunks);
    arena_free(&graph->arena);
    free(graph);
}

static enum dim dim_of_letter(char letter) {
    for (int dim = 0; dim < DIM_COUNT; dim++)
        if (dim_letter(dim) == letter)
            return dim;
    abort(); /* a builder's typing error */
}

static const char *format_name(struct graph *graph, const char *format, va_list args) {
    char name[256];
    vsnprintf(name, sizeof name, format, args);
    return arena_strdup(&graph->arena, name);
}

static int add_tensor(struct graph *graph, enum tensor_kind kind, enum dtype dtype, const char *letters,
                      const char *name) {
    GROW(graph->tensors, graph->tensor_count, graph->tensor_capacity);
    struct tensor *tensor = &graph->tensors[graph->tensor_count];
    *tensor =
        (struct tensor){.name = name, .dtype = dtype, .kind = kind, .rank = (int)strlen(letters), .parameter = -1};
    for (int i = 0; i < tensor->rank; i++)
        tensor->dims[i] = dim_of_letter(letters[i]);
    return graph->tensor_count++;
}

int graph_tensor(struct graph *graph, enum tensor_kind kind, enum dtype dtype, const char *letters, const char *name,
                 ...) {
    va_list args;
    va_start(args, name);
    const char *copy = format_name(graph, name, args);
    va_end(args);
    return add_tensor(graph, kind, dtype, letters, copy);
}

int graph_parameter(struct graph *graph, const char *letters, enum parameter_init init, bool decay, const char *name,
                    ...) {
    va_list args;
    va_start(args, name);
    const char *copy = format_name(graph, name, args);
    va_end(args);
    int rank = (int)strlen(letters);
    int weight = add_tensor(graph, TENSOR_WEIGHT, rank == 1 ? F32 : graph->compute, letters, copy);
    int gradient = add_tensor(graph, TENSOR_GRADIENT, F32, letters, arena_printf(&graph->arena, "grad.%s", copy));

    GROW(graph->parameters, graph->parameter_count, graph->parameter_capacity);
    int number = graph->parameter_count++;
    graph->tensors[weight].parameter = graph->tensors[gradient].parameter = number;
    struct parameter *parameter = &graph->parameters[number];
    *parameter = (struct parameter){.name = copy,
                                    .rank = rank,
                                    .init = init,
                                    .decay = decay,
                                    .weight = weight,
                                    .gradient = gradient,
                                    .offset = graph->flat_count,
                                    .columns = 1};
    for (int i = 0; i < rank; i++)
        parameter->dims[i] = graph->tensors[weight].dims[i];
    parameter->rows = parameter->file_rows = graph->capacity.n[parameter->dims[0]];
    if (rank == 2)
        parameter->columns = graph->capacity.n[parameter->dims[1]];
    graph->flat_count +=
        (parameter->rows * parameter->columns + PARAMETER_ALIGNMENT - 1) / PARAMETER_ALIGNMENT * PARAMETER_ALIGNMENT;
    return number;
}

void graph_close_parameters(struct graph *graph) {
    int64_t capacity = 0;
    for (int p = 0; p < graph->parameter_count; p++) {
        const struct parameter *parameter = &graph->parameters[p];
        int64_t count = parameter->rows * parameter->columns;
        for (int64_t begin = 0; begin < count; begin += CHUNK) {
            GROW(graph->chunks, graph->chunk_count, capacity);
            int64_t left = count - begin;
            graph->chunks[graph->chunk_count++] = (struct chunk){
                .offset = parameter->offset + begin, .count = (int32_t)(left < CHUNK ? left : CHUNK), .parameter = p};
        }
    }
    sizes_set(&graph->capacity, DIM_F, graph->flat_count);
    sizes_set(&graph->capacity, DIM_Z, graph->chunk_count);
    graph->master = graph_tensor(graph, TENSOR_STATE, F32, "f", "master");
    graph->weights =
        graph->compute == F32 ? graph->master : graph_tensor(graph, TENSOR_STATE, graph->compute, "f", "weights");
    graph->gradients = graph_tensor(graph, TENSOR_GRADIENT, F32, "f", "gradients");
    graph->tensors[graph->gradients].parameter = 0;
    graph->loss_scale = graph->compute == F16 ? graph_tensor(graph, TENSOR_STATE, F64, "s", "loss_scale") : -1;
}

int graph_find_parameter(const struct graph *graph, const char *name) {
    for (int p = 0; p < graph->parameter_count; p++)
        if (strcmp(graph->parameters[p].name, name) == 0)
            return p;
    return -1;
}

struct node *graph_node(struct graph *graph, enum op op, enum pass pass, int layer, const int *in, const int *out) {
    const struct op_info *info = op_info(op);
    GROW(graph->nodes, graph->node_count, graph->node_capacity);
    struct node *node = &graph->nodes[graph->node_count++];
    *node = (struct node){.op = op, .pass = pass, .layer = layer};
    memcpy(node->in, in, (size_t)info->inputs * sizeof *in);
    memcpy(node->out, out, (size_t)info->outputs * sizeof *out);
    return node;
}

static int64_t product(const struct tensor *tensor, const int64_t *sizes) {
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++)
        count *= sizes[tensor->dims[i]];
    return count;
}

int64_t tensor_count(const struct tensor *tensor, const struct sizes *sizes) { return product(tensor, sizes->n); }

int64_t tensor_padded(const struct tensor *tensor, const struct sizes *sizes) { return product(tensor, sizes->padded); }
