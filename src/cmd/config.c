#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "config/settings.h"
#include "dist/dist.h"
#include "train/device.h"

static const char usage[] =
    "usage: berth config                                   every key: default, range, meaning; the devices here\n"
    "       berth config FILE.ini [section.key=value ...]  the effective values, and where each came from\n";

static status describe_all(const struct comm *comm, struct text *out) {
    settings_describe(out);
    text_printf(out, "\nprocesses: %s\n\ndevices of this machine:\n", comm->name);
    return devices_describe(out);
}

static status list(int argc, char **argv, struct text *out) {
    struct settings settings;
    TRY(settings_load(&settings, argv[1], argv + 2, argc - 2));
    settings_list(&settings, out);
    settings_free(&settings);
    return OK;
}

static status config(struct comm *comm, int argc, char **argv) {
    struct text out = {0};
    bool help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    if (help)
        text_add(&out, usage);
    status code = help ? OK : argc < 2 ? describe_all(comm, &out) : list(argc, argv, &out);
    code = comm_agree(comm, code);
    if (code == OK && comm->rank == 0)
        fputs(out.data, stdout);
    text_free(&out);
    return code;
}

status cmd_config(int argc, char **argv) { return with_processes(config, argc, argv); }
