#include "kernels/cpu/panels.h"

#include <string.h>

#include "kernels/cpu/vector.h"

int64_t panel_columns(int64_t n) {
    int64_t panel = rows_kernel(F32)->columns;
    return (n + panel - 1) / panel * panel;
}

void panel_product(const struct rows_product *product) { rows_kernel(F32)->multiply_rows(product); }

void panels_of(const float *x, int64_t rows, int64_t columns, float *panels) {
    const int64_t panel = rows_kernel(F32)->columns;
    for (int64_t column = 0; column < columns; column += panel) {
        int64_t width = columns - column < panel ? columns - column : panel;
        for (int64_t r = 0; r < rows; r++, panels += panel) {
            const float *from = x + r * columns + column;
            for (int64_t i = 0; width == panel && i < panel; i++)
                panels[i] = from[i];
            for (int64_t i = 0; width < panel && i < panel; i++)
                panels[i] = i < width ? from[i] : 0;
        }
    }
}

void panels_of_transpose(const float *x, int64_t rows, int64_t columns, float *panels) {
    const int64_t panel = rows_kernel(F32)->columns;
    for (int64_t row = 0; row < rows; row += panel, panels += columns * panel) {
        int64_t height = rows - row < panel ? rows - row : panel, fours = height / 4 * 4, column = 0;
        const float *from = x + row * columns;
        if (height < panel)
            memset(panels, 0, (size_t)(columns * panel) * sizeof *panels);
        for (; column + 4 <= columns; column += 4)
            for (int64_t r = 0; r < fours; r += 4) {
                const float *first = from + r * columns;
                const float *const row[4] = {first, first + columns, first + 2 * columns, first + 3 * columns};
                transpose_four(row, column, panels + column * panel + r, panel);
            }
        for (int64_t r = 0; r < height; r++)
            for (int64_t c = r < fours ? column : 0; c < columns; c++)
                panels[c * panel + r] = from[r * columns + c];
    }
}
