#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "cmd/cmd.h"
#include "dist/dist.h"
#include "train/setup.h"
#include "train/unigram.h"

static const char usage[] =
    "usage: berth eval FOLDER data.eval=SHARDS [data.train=SHARDS] [section.key=value ...] [--json]\n"
    "\n"
    "Evaluates a model on held-out shards, dropout off, every sequence once. FOLDER is a run folder (its latest\n"
    "checkpoint), a checkpoint, or any HuggingFace BERT folder. Losses are in nats: means over all masked tokens and "
    "all\n"
    "sequences. With data.train, also the loss of a predictor that knows only the token frequencies of those shards.\n"
    "Of the settings, train.micro_batch, train.precision, train.eval_sequences and device.* matter.\n";

struct figures {
    const char *folder;
    struct evaluation evaluation;
    double unigram;
};

static void print_json(const struct figures *figures) {
    const struct evaluation *e = &figures->evaluation;
    const struct {
        const char *key;
        double value;
    } rows[] = {{"mlm_loss", e->mlm_loss},
                {"mlm_accuracy", e->mlm_accuracy},
                {"nsp_loss", e->nsp_loss},
                {"nsp_accuracy", e->nsp_accuracy},
                {"unigram_loss", figures->unigram},
                {"sequences", (double)e->sequences},
                {"masked_tokens", (double)e->masked_tokens}};
    struct text out = {0};
    text_add(&out, "{\"folder\": ");
    json_add_string(&out, figures->folder);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (isnan(rows[i].value))
            continue;
        text_printf(&out, ", \"%s\": ", rows[i].key);
        json_add_double(&out, rows[i].value);
    }
    printf("%s}\n", out.data);
    text_free(&out);
}

static void print_lines(const struct figures *figures) {
    const struct evaluation *e = &figures->evaluation;
    printf("model          %s\n", figures->folder);
    printf("mlm_loss       %.4f\nmlm_accuracy   %.4f\n", e->mlm_loss, e->mlm_accuracy);
    if (!isnan(e->nsp_loss))
        printf("nsp_loss       %.4f\nnsp_accuracy   %.4f\n", e->nsp_loss, e->nsp_accuracy);
    if (!isnan(figures->unigram))
        printf("unigram_loss   %.4f\n", figures->unigram);
    printf("sequences      %lld\nmasked_tokens  %lld\n", (long long)e->sequences, (long long)e->masked_tokens);
}

static status evaluate(const struct settings *settings, struct figures *figures, const struct dataset *eval,
                       const struct dataset *train, struct comm *comm) {
    struct network network;
    TRY(network_open_trained(&network, figures->folder, settings, dataset_seq_len(eval), dataset_max_predictions(eval),
                             comm));
    status code = network_evaluate(&network, eval, settings->train.micro_batch, settings->train.eval_sequences,
                                   &figures->evaluation);
    if (code == OK && train)
        code = comm_agree(comm, unigram_loss(train, eval, network.config.vocab_size, &figures->unigram));
    network_free(&network);
    return code;
}

static status run(const struct settings *settings, const char *path, bool as_json, struct comm *comm) {
    struct dataset *eval = NULL, *train = NULL;
    char *folder = NULL;
    struct figures figures = {.unigram = NAN};
    status code = *settings->data.eval ? checkpoint_resolve(path, &folder)
                                       : bad_input("eval: data.eval is not set, expected data.eval=SHARDS");
    if (code == OK)
        code = dataset_open("data.eval", settings->data.eval, false, &eval);
    if (code == OK && *settings->data.train)
        code = dataset_open("data.train", settings->data.train, false, &train);
    figures.folder = folder;
    code = comm_agree(comm, code);
    if (code == OK)
        code = evaluate(settings, &figures, eval, train, comm);
    if (code == OK && comm->rank == 0)
        (as_json ? print_json : print_lines)(&figures);
    dataset_free(eval);
    dataset_free(train);
    free(folder);
    return code;
}

struct request {
    const char *folder;
    int overrides; /* they are moved to the front of argv */
    bool as_json, help;
};

static status parse(int argc, char **argv, struct request *request) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            request->help = true;
        else if (strcmp(argv[i], "--json") == 0)
            request->as_json = true;
        else if (starts_with(argv[i], "--"))
            return bad_input("eval: unknown option %s, expected --json or --help", argv[i]);
        else if (!request->folder && !strchr(argv[i], '='))
            request->folder = argv[i];
        else
            argv[request->overrides++] = argv[i];
    }
    return request->folder || request->help
               ? OK
               : bad_input("eval: no model given, expected: berth eval FOLDER data.eval=SHARDS");
}

static status eval(struct comm *comm, int argc, char **argv) {
    struct request request = {0};
    struct settings settings;
    TRY(comm_agree(comm, parse(argc, argv, &request)));
    if (request.help) {
        if (comm->rank == 0)
            fputs(usage, stdout);
        return OK;
    }
    status loaded = settings_load(&settings, NULL, argv, request.overrides), code = comm_agree(comm, loaded);
    if (code == OK)
        code = run(&settings, request.folder, request.as_json, comm);
    if (loaded == OK)
        settings_free(&settings);
    return code;
}

status cmd_eval(int argc, char **argv) { return with_processes(eval, argc, argv); }
