#include "optim/schedule.h"

#include <math.h>

static double nvidia_poly(const struct schedule *schedule, double progress, double share) {
    if (progress < share)
        return schedule->rate * progress / share;
    return schedule->rate * pow(1 - progress, schedule->power);
}

double schedule_rate(const struct schedule *schedule, int64_t t) {
    double total = (double)schedule->steps, now = (double)(t < schedule->steps ? t : schedule->steps);
    double warmup = schedule->warmup_steps ? (double)schedule->warmup_steps : schedule->warmup_share * total;
    if (schedule->kind == NVIDIA_POLY)
        return nvidia_poly(schedule, now / total, warmup / total);
    if (now <= warmup)
        return schedule->rate * now / warmup;
    double left = total > warmup ? (total - now) / (total - warmup) : 0; /* 1 at the end of the warm-up, 0 at T */
    switch (schedule->kind) {
        case POLY:
            return schedule->rate * pow(left, schedule->power);
        case LINEAR:
            return schedule->rate * left;
        case COSINE:
            return schedule->rate * (1 + cos(3.14159265358979323846 * (1 - left))) / 2;
        default:
            return schedule->rate;
    }
}
