/* `berth analyze --dot`: one encoder layer as Graphviz, unfused and fused. Boxes are operators, coloured by class; an
 * edge is a tensor with its volume; ellipses are what comes from outside the layer or leaves it. */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/memory.h"
#include "cmd/analyze.h"

struct drawing {
    struct text out;
    const struct analysis *analysis;
    const struct graph *graph;
    enum fusion level;
    int *producer; /* [tensors] node of the layer, or -1 */
    bool *used;    /* [tensors] read inside the layer */
    bool *shown;   /* [tensors] drawn as an ellipse */
};

static void add_quoted(struct text *out, const char *name) {
    text_add(out, "\"");
    for (; *name; name++) {
        if (*name == '"' || *name == '\\')
            text_add(out, "\\");
        text_append(out, name, 1);
    }
    text_add(out, "\"");
}

/* The name of an operator's or a tensor's node: unique over both drawings. */
static char *node_id(const struct drawing *drawing, const char *kind, int number) {
    return xasprintf("%s %s %d", fusion_name(drawing->level), kind, number);
}

static double tensor_units(const struct drawing *drawing, int tensor) {
    const struct tensor *t = &drawing->graph->tensors[tensor];
    return (double)(tensor_count(t, &drawing->graph->capacity) * (int64_t)dtype_size(t->dtype)) /
           drawing->analysis->unit;
}

static void find_tensors(struct drawing *drawing) {
    const struct graph *graph = drawing->graph;
    for (int t = 0; t < graph->tensor_count; t++)
        drawing->producer[t] = -1;
    for (int n = 0; n < graph->node_count; n++) {
        const struct node *node = &graph->nodes[n];
        if (node->layer != 0)
            continue;
        for (int i = 0; i < op_info(node->op)->inputs; i++)
            drawing->used[node->in[i]] = true;
        for (int i = 0; i < op_info(node->op)->outputs; i++)
            drawing->producer[node->out[i]] = n;
    }
}

static void add_operator(struct drawing *drawing, int number) {
    const struct node *node = &drawing->graph->nodes[number];
    const struct op_info *info = op_info(node->op);
    double in, out;
    node_bytes(drawing->graph, node, &drawing->graph->capacity, &in, &out);
    char *id = node_id(drawing, "node", number);
    char *label = xasprintf("%s  %.1ft", info->name, (in + out) / drawing->analysis->unit);
    text_add(&drawing->out, "    ");
    add_quoted(&drawing->out, id);
    text_add(&drawing->out, " [shape=box, style=filled, fontcolor=white, label=");
    add_quoted(&drawing->out, label);
    text_printf(&drawing->out, ", fillcolor=\"%s\"];\n", class_color(info->kind));
    free(label);
    free(id);
}

/* What crosses the border of the layer. Its ellipse is made when it is first needed. */
static char *outside(struct drawing *drawing, int tensor) {
    char *id = node_id(drawing, "tensor", tensor);
    if (!drawing->shown[tensor]) {
        text_add(&drawing->out, "    ");
        add_quoted(&drawing->out, id);
        text_add(&drawing->out, " [shape=ellipse, color=\"#999999\", label=");
        add_quoted(&drawing->out, drawing->graph->tensors[tensor].name);
        text_add(&drawing->out, "];\n");
        drawing->shown[tensor] = true;
    }
    return id;
}

/* Takes both names over. A tensor with a name of its own at one end is named there, otherwise on the edge. */
static void add_edge(struct drawing *drawing, char *from, char *to, int tensor) {
    char *label = drawing->shown[tensor]
                      ? xasprintf("%.2ft", tensor_units(drawing, tensor))
                      : xasprintf("%s  %.2ft", drawing->graph->tensors[tensor].name, tensor_units(drawing, tensor));
    text_add(&drawing->out, "    ");
    add_quoted(&drawing->out, from);
    text_add(&drawing->out, " -> ");
    add_quoted(&drawing->out, to);
    text_add(&drawing->out, " [label=");
    add_quoted(&drawing->out, label);
    text_add(&drawing->out, "];\n");
    free(label);
    free(from);
    free(to);
}

static void add_edges(struct drawing *drawing, int number) {
    const struct node *node = &drawing->graph->nodes[number];
    for (int i = 0; i < op_info(node->op)->inputs; i++) {
        int tensor = node->in[i], producer = drawing->producer[tensor];
        /* an operator that updates its input in place has it as output too */
        bool inside = producer >= 0 && producer != number;
        char *from = inside ? node_id(drawing, "node", producer) : outside(drawing, tensor);
        add_edge(drawing, from, node_id(drawing, "node", number), tensor);
    }
    for (int i = 0; i < op_info(node->op)->outputs; i++)
        if (!drawing->used[node->out[i]]) {
            char *to = outside(drawing, node->out[i]);
            add_edge(drawing, node_id(drawing, "node", number), to, node->out[i]);
        }
}

static void draw_level(struct drawing *drawing, const char *title, enum fusion level) {
    const struct graph *graph = drawing->analysis->levels[level].graph;
    size_t tensors = (size_t)graph->tensor_count;
    drawing->graph = graph;
    drawing->level = level;
    drawing->producer = xmalloc(tensors * sizeof *drawing->producer);
    drawing->used = xcalloc(tensors, sizeof *drawing->used);
    drawing->shown = xcalloc(tensors, sizeof *drawing->shown);
    find_tensors(drawing);
    text_printf(&drawing->out, "  subgraph \"cluster_%s\" {\n    label=\"%s: level %s\";\n", title, title,
                fusion_name(level));
    for (int n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].layer == 0)
            add_operator(drawing, n);
    for (int n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].layer == 0)
            add_edges(drawing, n);
    text_add(&drawing->out, "  }\n");
    free(drawing->producer);
    free(drawing->used);
    free(drawing->shown);
}

status analysis_write_dot(const struct analysis *analysis, const char *path) {
    struct drawing drawing = {.analysis = analysis};
    text_add(&drawing.out,
             "digraph \"encoder layer\" {\n  node [fontname=\"Helvetica\", fontsize=11];\n"
             "  edge [fontname=\"Helvetica\", fontsize=9];\n");
    draw_level(&drawing, "before", FUSION_NONE);
    if (analysis->shown != FUSION_NONE)
        draw_level(&drawing, "after", analysis->shown);
    text_add(&drawing.out, "}\n");
    status code = file_write_all(path, drawing.out.data, drawing.out.length);
    text_free(&drawing.out);
    return code;
}
