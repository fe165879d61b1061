/* From settings to everything a run needs. The only place that knows both the settings and the parts they describe. */
#ifndef BERTH_TRAIN_SETUP_H
#define BERTH_TRAIN_SETUP_H

#include "config/settings.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/network.h"
#include "train/progress.h"
#include "train/run_folder.h"

struct training {
    const struct settings *settings;
    struct comm *comm;                      /* the caller's */
    struct hf_tokenizer *tokenizer;         /* NULL without a vocabulary */
    struct vocab *old_vocab;                /* of model.init, where model.vocab_remap replaces it; else NULL */
    struct dataset *train_data, *eval_data; /* eval_data NULL without data.eval */
    struct masking *masking;                /* NULL: the masks of the shards */
    struct network network;
    struct run_folder run;
    struct metrics metrics;
    struct reader *reader;
    struct trainer_state state; /* where the run stands; its strings are those of the checkpoint it came from */
    bool resumed;
    float *lr_table;   /* [train.steps] */
    double peak_flops; /* of all devices together for the compute dtype; 0: unknown */
};

/* Checks settings, vocabulary and data against each other, then opens the run folder, builds the network, and loads or
 * makes its weights. BAD_INPUT before anything is written where the settings, the data or an initial model are wrong.
 * `settings` must outlive the training; keys not given in it take the value of the run that is resumed. All ranks of
 * `comm` call this, and all get the same answer; only rank 0 touches the run folder. */
status training_open(struct training *training, struct settings *settings, struct comm *comm);
void training_close(struct training *training);

struct checkpoint_model training_checkpoint_model(const struct training *training);

/* For tools that train nothing: what training_open would take from the settings. */
struct model_setup {
    struct bert_config config; /* vocab_size 0 where neither settings, vocabulary nor initial model tell it */
    struct optim_config optim;
    struct network_form form;
};
status setup_model(const struct settings *settings, struct model_setup *out);

/* A trained model for evaluation: `folder` is a run, a checkpoint or any HuggingFace BERT folder. Takes sizes from its
 * config.json, precision, device and micro-batch from the settings; planned for sequences of `seq_len`. */
status network_open_trained(struct network *network, const char *folder, const struct settings *settings,
                            int64_t seq_len, int64_t max_predictions, struct comm *comm);

#endif
