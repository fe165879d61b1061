/* `berth analyze --svg`: what one layer moves, a bar a level, a piece an operator, grouped by class. */
#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "cmd/analyze.h"

/* pixels */
enum { WIDTH = 1200, LEFT = 70, BAR = 960, THICK = 108, PITCH = 132, TOP = 100, LINE = 13 };

const char *class_color(enum op_class class) {
    static const char *const colors[] = {
        [CONTRACTION] = "#3b6ea8", [NORMALIZATION] = "#d98324", [ELEMENTWISE] = "#4f8f5b", [UPDATE] = "#7d6ba0"};
    return colors[class];
}

/* A level's bar; `eager` is level none without the operators that an eager framework runs inside its contractions. */
struct bar {
    const char *name;
    const struct account *account;
    bool eager;
};

static double bar_bytes(const struct bar *bar) {
    struct account_row all = account_total(bar->account, ACCOUNT_ALL);
    return bar->eager ? account_eager_bytes(bar->account) : row_bytes(&all);
}

static void add_label(struct text *out, double x, double y, int size, const char *anchor, const char *fill,
                      const char *label) {
    text_printf(out, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%d\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", x, y,
                size, anchor, fill, label);
}

/* Upwards, its middle at (x, y). */
static void add_upright(struct text *out, double x, double y, const char *label) {
    text_printf(out,
                "<text transform=\"translate(%.1f %.1f) rotate(-90)\" font-size=\"10.5\" text-anchor=\"middle\" "
                "fill=\"white\">%s</text>\n",
                x, y, label);
}

/* The operator's name and its multiple of t stand in its piece where they fit; a browser shows them on hovering. */
static void add_piece(struct text *out, const struct analysis *analysis, const struct account_row *row, double x,
                      double y, double width) {
    const struct op_info *info = op_info(row->op);
    char multiple[32];
    text_printf(out,
                "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\" stroke=\"white\">"
                "<title>%s (%s, %s): %.1f MB = %.1f t</title></rect>\n",
                x, y, width, THICK, class_color(info->kind), info->name, op_class_name(info->kind),
                pass_name(row->pass), 1e-6 * row_bytes(row), row_bytes(row) / analysis->unit);
    bool two = width >= 2 * LINE + 2;
    double middle = x + width / 2 + 4;
    if (width >= LINE)
        add_upright(out, two ? middle - LINE / 2.0 : middle, y + THICK / 2, info->name);
    snprintf(multiple, sizeof multiple, "%.1f t", row_bytes(row) / analysis->unit);
    if (two)
        add_upright(out, middle + LINE / 2.0, y + THICK / 2, multiple);
}

static void add_bar(struct text *out, const struct analysis *analysis, const struct bar *bar, double y, double most) {
    double x = LEFT, bytes = bar_bytes(bar);
    char total[96];
    add_label(out, LEFT - 10, y + THICK / 2 + 5, 14, "end", "#222", bar->name);
    for (int class = CONTRACTION; class <= UPDATE; class ++)
        for (int r = 0; r < bar->account->count; r++) {
            const struct account_row *row = &bar->account->rows[r];
            if ((int)op_info(row->op)->kind != class || (bar->eager && account_in_contraction(row)))
                continue;
            double width = row_bytes(row) / most * BAR;
            add_piece(out, analysis, row, x, y, width);
            x += width;
        }
    snprintf(total, sizeof total, "%.0f t, %.0f MB", bytes / analysis->unit, 1e-6 * bytes);
    add_label(out, x + 8, y + THICK / 2 - 2, 13, "start", "#222", total);
    double more = 100 * (bytes / analysis->eager_layer - 1);
    snprintf(total, sizeof total, "%.1f %% %s than eager", fabs(more), more < 0 ? "less" : "more");
    if (!bar->eager)
        add_label(out, x + 8, y + THICK / 2 + 15, 12, "start", "#666", total);
}

static void add_head(struct text *out, const struct analysis *analysis, int height) {
    char line[200];
    text_printf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                "font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" "
                "fill=\"white\"/>\n",
                WIDTH, height, WIDTH, height);
    add_label(out, LEFT, 30, 18, "start", "#222", "Bytes moved by one encoder layer, forward and backward");
    snprintf(line, sizeof line,
             "%lld sequences of %lld tokens, hidden %lld, %s; t = tokens x hidden 16-bit words = %.2f MB",
             (long long)analysis->shape.sequences, (long long)analysis->shape.seq_len,
             (long long)analysis->model.hidden_size, precision_name(analysis->form.compute), 1e-6 * analysis->unit);
    add_label(out, LEFT, 50, 13, "start", "#666", line);
    for (int class = CONTRACTION; class < UPDATE; class ++) {
        double x = LEFT + 150 * class;
        text_printf(out, "<rect x=\"%.1f\" y=\"66\" width=\"14\" height=\"14\" fill=\"%s\"/>\n", x, class_color(class));
        add_label(out, x + 20, 78, 13, "start", "#222", op_class_name(class));
    }
}

/* Grid lines at 1, 2 or 5 times a power of ten of t, at most eight of them. */
static void add_axis(struct text *out, const struct analysis *analysis, double most, double bottom) {
    static const double factors[] = {2, 2.5, 2};
    double all = most / analysis->unit, step = 1;
    char mark[32];
    for (int i = 0; all / step > 8; i++)
        step *= factors[i % 3];
    for (double at = 0; at <= all; at += step) {
        double x = LEFT + at / all * BAR;
        text_printf(out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x, TOP - 6, x,
                    bottom);
        snprintf(mark, sizeof mark, "%g t", at);
        add_label(out, x, bottom + 16, 12, "middle", "#666", mark);
    }
}

status analysis_write_svg(const struct analysis *analysis, const char *path) {
    enum { BARS = FUSION_COUNT + 1 };
    struct bar bars[BARS] = {{"eager", &analysis->levels[FUSION_NONE].layer, true}};
    double most = bar_bytes(&bars[0]), bottom = TOP + BARS * PITCH - (PITCH - THICK) + 6;
    for (int level = 0; level < FUSION_COUNT; level++) {
        bars[level + 1] = (struct bar){fusion_name(level), &analysis->levels[level].layer, false};
        double bytes = bar_bytes(&bars[level + 1]);
        most = bytes > most ? bytes : most;
    }
    struct text out = {0};
    add_head(&out, analysis, (int)bottom + 34);
    add_axis(&out, analysis, most, bottom);
    for (int b = 0; b < BARS; b++)
        add_bar(&out, analysis, &bars[b], TOP + b * PITCH, most);
    text_add(&out, "</svg>\n");
    status code = file_write_all(path, out.data, out.length);
    text_free(&out);
    return code;
}
