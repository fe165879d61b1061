#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "config/settings.h"
#include "train/device.h"

static const char usage[] =
    "usage: berth config                                   every key: default, range, meaning; the devices here\n"
    "       berth config FILE.ini [section.key=value ...]  the effective values, and where each came from\n";

status cmd_config(int argc, char **argv) {
    struct text out = {0};
    struct settings settings;
    if (argc < 2) {
        settings_describe(&out);
        text_add(&out, "\ndevices of this machine:\n");
        status code = devices_describe(&out);
        if (code != OK) {
            text_free(&out);
            return code;
        }
    } else if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        text_add(&out, usage);
    } else {
        TRY(settings_load(&settings, argv[1], argv + 2, argc - 2));
        settings_list(&settings, &out);
        settings_free(&settings);
    }
    fputs(out.data, stdout);
    text_free(&out);
    return OK;
}
