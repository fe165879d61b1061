/* The operator table: parses the rows of op.def once, and counts flop and bytes from them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/graph.h"

char dim_letter(enum dim dim) {
    static const char letter[DIM_COUNT] = {
#define DIM(id, letter, ragged, meaning) letter,
#include "graph/dim.def"
#undef DIM
    };
    return letter[dim];
}

struct row {
    const char *name, *inputs, *outputs, *space, *meaning;
    enum op_class class;
    double flop;
    int in_place;
};

static const struct row rows[OP_COUNT] = {
#define OP(name, class, inputs, outputs, space, flop, in_place, meaning) \
    {#name, inputs, outputs, space, meaning, class, flop, in_place},
#include "graph/op.def"
#undef OP
};

static struct op_info table[OP_COUNT];

static enum dtype parse_dtype(const char *text) {
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        if (strcmp(text, dtype_name(dtype)) == 0)
            return dtype;
    fprintf(stderr, "op.def: unknown dtype %s\n", text);
    abort(); /* a fault of the table, not of a user */
}

/* One operand: [+~?|]name:[n]letters[/dtype] */
static struct operand_info parse_operand(const char *text, size_t length) {
    struct operand_info operand = {0};
    char word[64], letters[16], *cut;
    snprintf(word, sizeof word, "%.*s", (int)length, text);
    char *name = word;
    operand.updated = *name == '+';
    operand.accumulated = *name == '~';
    operand.scratch = *name == '?';
    operand.beside = *name == '|';
    name += operand.updated || operand.accumulated || operand.scratch || operand.beside;
    char *colon = strchr(name, ':');
    *colon = 0;
    snprintf(operand.name, sizeof operand.name, "%s", name);
    snprintf(letters, sizeof letters, "%s", colon + 1);
    if ((cut = strchr(letters, '/'))) {
        *cut = 0;
        operand.fixed_dtype = true;
        operand.dtype = parse_dtype(strchr(colon + 1, '/') + 1);
    }
    operand.rows_only = letters[0] == '[';
    for (char *from = letters, *to = operand.letters; *from; from++)
        if (*from != '[' && *from != ']')
            *to++ = *from;
    return operand;
}

static int parse_operands(const char *text, struct operand_info *operands) {
    int count = 0;
    while (*text) {
        size_t length = strcspn(text, " ");
        operands[count++] = parse_operand(text, length);
        text += length + (text[length] == ' ');
    }
    return count;
}

static void parse_table(void) {
    for (int op = 0; op < OP_COUNT; op++) {
        const struct row *row = &rows[op];
        struct op_info *info = &table[op];
        *info = (struct op_info){.name = row->name,
                                 .meaning = row->meaning,
                                 .kind = row->class,
                                 .space = row->space,
                                 .flop = row->flop,
                                 .in_place = row->in_place};
        info->inputs = parse_operands(row->inputs, info->in);
        info->outputs = parse_operands(row->outputs, info->out);
    }
}

const struct op_info *op_info(enum op op) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, parse_table);
    return &table[op];
}

/* The dim that a letter of the row is bound to by the node's operands; DIM_ONE if no operand has it. */
static enum dim bound_dim(const struct graph *graph, const struct node *node, char letter) {
    const struct op_info *info = op_info(node->op);
    for (int i = 0; i < info->inputs + info->outputs; i++) {
        bool input = i < info->inputs;
        const struct operand_info *operand = input ? &info->in[i] : &info->out[i - info->inputs];
        const char *place = strchr(operand->letters, letter);
        if (place)
            return graph->tensors[input ? node->in[i] : node->out[i - info->inputs]].dims[place - operand->letters];
    }
    if (letter == 'e') /* contractions of ragged attention iterate over [e,c] */
        return DIM_E;
    return DIM_ONE;
}

double node_flop(const struct graph *graph, const struct node *node, const struct sizes *sizes) {
    const struct op_info *info = op_info(node->op);
    double points = 1;
    for (const char *letter = info->space; *letter; letter++)
        points *= (double)sizes->n[bound_dim(graph, node, *letter)];
    return points * info->flop;
}

static double operand_bytes(const struct graph *graph, const struct node *node, const struct operand_info *operand,
                            int tensor, const struct sizes *sizes) {
    const struct tensor *t = &graph->tensors[tensor];
    double count = (double)tensor_count(t, sizes);
    if (operand->rows_only) { /* as many rows as the index has entries */
        enum dim index = bound_dim(graph, node, 'r');
        count = (double)sizes->n[index] * (double)sizes->n[t->dims[t->rank - 1]];
    }
    return count * (double)dtype_size(t->dtype);
}

/* Of an update in f32, the weights that contractions read are the master weights: written once. */
static bool is_earlier_output(const struct node *node, int output) {
    for (int i = 0; i < output; i++)
        if (node->out[i] == node->out[output])
            return true;
    return false;
}

void node_bytes(const struct graph *graph, const struct node *node, const struct sizes *sizes, double *in,
                double *out) {
    const struct op_info *info = op_info(node->op);
    *in = *out = 0;
    for (int i = 0; i < info->inputs; i++)
        *in += operand_bytes(graph, node, &info->in[i], node->in[i], sizes);
    for (int i = 0; i < info->outputs; i++) {
        if (is_earlier_output(node, i))
            continue;
        double bytes = operand_bytes(graph, node, &info->out[i], node->out[i], sizes);
        *out += bytes;
        if (info->out[i].updated || (info->out[i].accumulated && node->attr.add_always))
            *in += bytes;
    }
}
