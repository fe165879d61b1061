/* Finds the patterns of fuse.def in a graph and puts their results in their place. */
#include "graph/fuse.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 16, MOST_NAMES = 48, NAME_SIZE = 12 };

#define LEVEL_PAPER (1u << FUSION_PAPER)
#define LEVEL_FULL (1u << FUSION_FULL)
#define LEVEL_AGAIN (1u << FUSION_COUNT) /* full, and activations made again */

static const struct {
    const char *name;
    unsigned levels;
    const char *pattern, *result;
} rules[] = {
#define RULE(name, level, pattern, result, saves) {#name, LEVEL_##level, pattern, result},
#include "graph/fuse.def"
#undef RULE
};
enum { RULES = sizeof rules / sizeof *rules };

const char *fusion_name(enum fusion level) {
    static const char *const names[FUSION_COUNT] = {"none", "paper", "full"};
    return names[level];
}

const char *fusion_rule(int number) { return number < RULES ? rules[number].name : NULL; }

bool fusion_uses(enum fusion level, bool again, int number) {
    unsigned levels = 1u << level | (again && level == FUSION_FULL ? LEVEL_AGAIN : 0);
    return rules[number].levels & levels;
}

/* --- a rule, parsed --- */

/* One operator of a pattern or a result; operands are numbers of names. */
struct step {
    enum op op;
    int in[MAX_OPERANDS], out[MAX_OPERANDS];
};

struct rule {
    const char *name;
    struct step pattern[MOST_STEPS], result[MOST_STEPS];
    int pattern_steps, result_steps;
    char names[MOST_NAMES][NAME_SIZE];
    int name_count;
};

static int name_number(struct rule *rule, const char *name, size_t length) {
    for (int i = 0; i < rule->name_count; i++)
        if (strlen(rule->names[i]) == length && memcmp(rule->names[i], name, length) == 0)
            return i;
    memcpy(rule->names[rule->name_count], name, length);
    return rule->name_count++;
}

static status rule_fails(const struct rule *rule, const char *at, const char *expected) {
    return failed("fuse.def: rule %s: expected %s at \"%.40s\"", rule->name, expected, at);
}

/* A list of names up to one of the characters `stop`. */
static status parse_names(struct rule *rule, const char **at, const char *stop, int *numbers, int wanted) {
    int count = 0;
    while (!strchr(stop, **at)) {
        size_t length = strcspn(*at, ",() =;");
        if (length == 0 || length >= NAME_SIZE || count == wanted || rule->name_count == MOST_NAMES)
            return rule_fails(rule, *at, "as many short names as the operator has operands");
        numbers[count++] = name_number(rule, *at, length);
        *at += length;
        *at += strspn(*at, ", ");
    }
    return count == wanted ? OK : rule_fails(rule, *at, "as many names as the operator has operands");
}

static status find_op(struct rule *rule, const char *at, size_t length, enum op *op) {
    for (int i = 0; i < OP_COUNT; i++)
        if (strlen(op_info(i)->name) == length && memcmp(op_info(i)->name, at, length) == 0) {
            *op = i;
            return OK;
        }
    return rule_fails(rule, at, "an operator of op.def");
}

static status parse_steps(struct rule *rule, const char *text, struct step *steps, int *count) {
    for (const char *at = text; *at;) {
        struct step *step = &steps[*count];
        const char *name = strchr(at, '='), *end = name ? strchr(name, '(') : NULL;
        if (*count == MOST_STEPS || !end)
            return rule_fails(rule, at, "outputs = operator(inputs)");
        name += strspn(name, "= ");
        TRY(find_op(rule, name, (size_t)(end - name), &step->op));
        TRY(parse_names(rule, &at, "=", step->out, op_info(step->op)->outputs));
        at = end + 1;
        TRY(parse_names(rule, &at, ")", step->in, op_info(step->op)->inputs));
        at += 1 + strspn(at + 1, "; ");
        ++*count;
    }
    return OK;
}

static status parse_rule(int number, struct rule *rule) {
    *rule = (struct rule){.name = rules[number].name};
    TRY(parse_steps(rule, rules[number].pattern, rule->pattern, &rule->pattern_steps));
    return parse_steps(rule, rules[number].result, rule->result, &rule->result_steps);
}

/* --- matching --- */

struct match {
    int node[MOST_STEPS];   /* of each step of the pattern */
    int tensor[MOST_NAMES]; /* -1: not bound yet */
};

struct matcher {
    struct graph *graph;
    const struct rule *rule;
    bool *taken;        /* [nodes] by an earlier match of the rule */
    int *first, *next;  /* [OP_COUNT], [nodes]: the nodes of an operator, in order */
    int *readers;       /* [tensors] how many operands read it */
    struct node *added; /* new nodes */
    int *added_at;      /* and the old node that each stands in for */
    int added_count, added_capacity, at_capacity;
};

/* Binds names to a node's tensors where they are free; false where they are bound to others. */
static bool bind(const int *names, const int *tensors, int count, int *bound) {
    for (int i = 0; i < count; i++) {
        if (bound[names[i]] >= 0 && bound[names[i]] != tensors[i])
            return false;
        bound[names[i]] = tensors[i];
    }
    return true;
}

static bool is_matched(const struct match *match, int steps, int node) {
    for (int s = 0; s < steps; s++)
        if (match->node[s] == node)
            return true;
    return false;
}

static bool produced_by(const struct step *steps, int count, int name) {
    for (int s = 0; s < count; s++)
        for (int i = 0; i < op_info(steps[s].op)->outputs; i++)
            if (steps[s].out[i] == name)
                return true;
    return false;
}

static int reads_in(const struct step *steps, int count, int name) {
    int reads = 0;
    for (int s = 0; s < count; s++)
        for (int i = 0; i < op_info(steps[s].op)->inputs; i++)
            reads += steps[s].in[i] == name;
    return reads;
}

/* What will not be stored any more is an activation that only the pattern reads. */
static bool nothing_is_lost(const struct matcher *matcher, const struct match *match) {
    const struct rule *rule = matcher->rule;
    for (int name = 0; name < rule->name_count; name++) {
        if (!produced_by(rule->pattern, rule->pattern_steps, name) ||
            produced_by(rule->result, rule->result_steps, name))
            continue;
        int tensor = match->tensor[name];
        if (matcher->graph->tensors[tensor].kind != TENSOR_ACTIVATION ||
            matcher->readers[tensor] != reads_in(rule->pattern, rule->pattern_steps, name))
            return false;
    }
    return true;
}

/* Matches step `step` and all behind it, trying every node of its operator. */
static bool match_from(const struct matcher *matcher, struct match *match, int step) {
    if (step == matcher->rule->pattern_steps)
        return nothing_is_lost(matcher, match);
    const struct step *wanted = &matcher->rule->pattern[step];
    const struct op_info *info = op_info(wanted->op);
    for (int n = matcher->first[wanted->op]; n >= 0; n = matcher->next[n]) {
        const struct node *node = &matcher->graph->nodes[n];
        struct match tried = *match;
        if (matcher->taken[n] || is_matched(match, step, n) ||
            !bind(wanted->in, node->in, info->inputs, tried.tensor) ||
            !bind(wanted->out, node->out, info->outputs, tried.tensor))
            continue;
        tried.node[step] = n;
        if (match_from(matcher, &tried, step + 1)) {
            *match = tried;
            return true;
        }
    }
    return false;
}

/* --- replacing --- */

/* All that the matched nodes say: each leaves what is not its own at zero. */
static struct attr merged_attributes(const struct matcher *matcher, const struct match *match) {
    struct attr all = {0};
    for (int s = 0; s < matcher->rule->pattern_steps; s++) {
        const struct attr *attr = &matcher->graph->nodes[match->node[s]].attr;
        all.probability = attr->probability != 0 ? attr->probability : all.probability;
        all.site = attr->site ? attr->site : all.site;
        all.act = attr->act > all.act ? attr->act : all.act;
        all.epsilon = attr->epsilon != 0 ? attr->epsilon : all.epsilon;
        all.scale = attr->scale != 0 ? attr->scale : all.scale;
        all.classes = attr->classes ? attr->classes : all.classes;
        all.add_always |= attr->add_always;
    }
    return all;
}

/* The dim of a letter in a new output: that of the same letter in another operand, or the dim of that name. */
static enum dim new_dim(const struct graph *graph, const struct node *node, char letter) {
    const struct op_info *info = op_info(node->op);
    for (int i = 0; i < info->inputs; i++) {
        const char *place = strchr(info->in[i].letters, letter);
        if (place)
            return graph->tensors[node->in[i]].dims[place - info->in[i].letters];
    }
    for (int dim = 0; dim < DIM_COUNT; dim++)
        if (dim_letter(dim) == letter)
            return dim;
    return DIM_ONE;
}

static int new_tensor(struct graph *graph, const struct node *node, int output, const char *base, const char *name) {
    const struct operand_info *operand = &op_info(node->op)->out[output];
    char letters[sizeof operand->letters] = {0};
    for (int i = 0; operand->letters[i]; i++)
        letters[i] = dim_letter(new_dim(graph, node, operand->letters[i]));
    return graph_tensor(graph, TENSOR_ACTIVATION, operand->fixed_dtype ? operand->dtype : graph->compute, letters,
                        "%s.%s", base, name);
}

/* The last of the matched nodes that produce an output of the step. */
static int place_of(const struct matcher *matcher, const struct match *match, const struct step *step) {
    int place = -1;
    for (int s = 0; s < matcher->rule->pattern_steps; s++)
        for (int i = 0; i < op_info(step->op)->outputs; i++)
            if (produced_by(&matcher->rule->pattern[s], 1, step->out[i]) && match->node[s] > place)
                place = match->node[s];
    return place;
}

static status add_result(struct matcher *matcher, struct match *match, const struct step *step,
                         const struct attr *attr) {
    struct graph *graph = matcher->graph;
    const struct op_info *info = op_info(step->op);
    int place = place_of(matcher, match, step);
    if (place < 0)
        return failed("fuse.def: rule %s: no output of %s is one of the pattern's", matcher->rule->name, info->name);
    struct node node = {
        .op = step->op, .pass = graph->nodes[place].pass, .layer = graph->nodes[place].layer, .attr = *attr};
    for (int i = 0; i < info->inputs; i++)
        node.in[i] = match->tensor[step->in[i]];
    for (int i = 0; i < info->outputs; i++) {
        int *tensor = &match->tensor[step->out[i]];
        if (*tensor < 0)
            *tensor = new_tensor(graph, &node, i, graph->tensors[match->tensor[step->out[0]]].name,
                                 matcher->rule->names[step->out[i]]);
        node.out[i] = *tensor;
    }
    GROW(matcher->added_at, matcher->added_count, matcher->at_capacity);
    matcher->added_at[matcher->added_count] = place;
    GROW(matcher->added, matcher->added_count, matcher->added_capacity);
    matcher->added[matcher->added_count++] = node;
    return OK;
}

/* The old nodes that were not taken, and the new ones where they belong. */
static status rebuild(struct matcher *matcher) {
    struct graph *graph = matcher->graph;
    struct node *nodes = xmalloc((size_t)(graph->node_count + matcher->added_count + 1) * sizeof *nodes);
    int *new_at = xmalloc((size_t)(graph->node_count + 1) * sizeof *new_at), count = 0;
    for (int n = 0; n < graph->node_count; n++)
        new_at[n] = -1;
    status code = OK;
    for (int a = 0; a < matcher->added_count; a++) {
        if (new_at[matcher->added_at[a]] >= 0)
            code = failed("fuse.def: rule %s: two results stand in the same place", matcher->rule->name);
        new_at[matcher->added_at[a]] = a;
    }
    for (int n = 0; n < graph->node_count; n++) {
        if (!matcher->taken[n])
            nodes[count++] = graph->nodes[n];
        else if (new_at[n] >= 0)
            nodes[count++] = matcher->added[new_at[n]];
    }
    free(new_at);
    free(graph->nodes);
    graph->nodes = nodes;
    graph->node_count = count;
    graph->node_capacity = count + 1;
    return code;
}

static struct matcher matcher_new(struct graph *graph, const struct rule *rule) {
    struct matcher matcher = {.graph = graph, .rule = rule};
    matcher.taken = xcalloc((size_t)graph->node_count + 1, sizeof *matcher.taken);
    matcher.first = xmalloc(OP_COUNT * sizeof *matcher.first);
    matcher.next = xmalloc(((size_t)graph->node_count + 1) * sizeof *matcher.next);
    matcher.readers = xcalloc((size_t)graph->tensor_count + 1, sizeof *matcher.readers);
    for (int op = 0; op < OP_COUNT; op++)
        matcher.first[op] = -1;
    for (int n = graph->node_count - 1; n >= 0; n--) {
        const struct node *node = &graph->nodes[n];
        matcher.next[n] = matcher.first[node->op];
        matcher.first[node->op] = n;
        for (int i = 0; i < op_info(node->op)->inputs; i++)
            matcher.readers[node->in[i]]++;
    }
    return matcher;
}

static void matcher_free(struct matcher *matcher) {
    free(matcher->taken);
    free(matcher->first);
    free(matcher->next);
    free(matcher->readers);
    free(matcher->added);
    free(matcher->added_at);
}

static status apply_rule(struct graph *graph, const struct rule *rule) {
    struct matcher matcher = matcher_new(graph, rule);
    status code = OK;
    for (;;) {
        struct match match;
        memset(&match, -1, sizeof match);
        if (code != OK || !match_from(&matcher, &match, 0))
            break;
        struct attr attr = merged_attributes(&matcher, &match);
        for (int s = 0; s < rule->pattern_steps; s++)
            matcher.taken[match.node[s]] = true;
        for (int s = 0; s < rule->result_steps && code == OK; s++)
            code = add_result(&matcher, &match, &rule->result[s], &attr);
    }
    if (code == OK)
        code = rebuild(&matcher);
    matcher_free(&matcher);
    return code;
}

status graph_fuse(struct graph *graph, enum fusion level, bool again, const char *without) {
    struct rule rule;
    for (int i = 0; i < RULES; i++) {
        if (!fusion_uses(level, again, i) || (without && strcmp(without, rules[i].name) == 0))
            continue;
        TRY(parse_rule(i, &rule));
        TRY(apply_rule(graph, &rule));
    }
    return OK;
}
