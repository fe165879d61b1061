/* The kernel of bf16 operands with AMX, or with a stand-in for its tiles: amx_kernels.c includes this for each, with
 *   NAME(x)                           x with the name of the instruction set
 *   TILE_CONFIGURE(config), TILE_RELEASE(), TILE_ZERO(t), TILE_LOAD(t, from, stride), TILE_STORE(t, to, stride),
 *   TILE_MULTIPLY(c, a, b)            the instructions; t, c, a and b are numbers of tiles, strides are bytes
 * Tiles are 16 rows of 64 bytes: 0 to 3 are c, 4 and 5 a, 6 and 7 b. */

static void NAME(begin)(void) {
    struct tile_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.row_bytes[t] = TILE_LINES * sizeof(float);
        config.rows[t] = TILE_LINES;
    }
    TILE_CONFIGURE(&config);
}

static void NAME(end)(void) { TILE_RELEASE(); }

#define square NAME(square)

/* c[32, 32] = or += a b. `a`: tiles [16 lines][32 of k], their lines `a_line` bytes apart, the second 16 `a_low` bytes
 * behind the first, the next 32 of k `a_step`; b: packed tiles, the second 16 columns `b_right` bytes behind the first.
 */
INLINE void square(int64_t depth, const char *a, int64_t a_line, int64_t a_low, int64_t a_step, const char *b,
                   int64_t b_right, float *c, int64_t stride_c, bool add, const char *next,
                   struct interlude *interlude) {
    const int64_t stride = stride_c * (int64_t)sizeof *c;
    float *low = c + TILE_LINES * stride_c;
    if (add) {
        TILE_LOAD(0, c, stride);
        TILE_LOAD(1, c + TILE_LINES, stride);
        TILE_LOAD(2, low, stride);
        TILE_LOAD(3, low + TILE_LINES, stride);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t k = 0; k < depth; k += STEP, a += a_step, b += TILE_BYTES) {
        TILE_LOAD(6, b, STEP * sizeof(bf16));
        TILE_LOAD(4, a, a_line);
        TILE_MULTIPLY(0, 4, 6);
        TILE_LOAD(7, b + b_right, STEP * sizeof(bf16));
        TILE_MULTIPLY(1, 4, 7);
        for (int line = 0; next && line < FETCH; line++, next += 64)
            __builtin_prefetch(next, 0, 2);
        interlude_step(interlude);
        TILE_LOAD(5, a + a_low, a_line);
        TILE_MULTIPLY(2, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
    }
    TILE_STORE(0, c, stride);
    TILE_STORE(1, c + TILE_LINES, stride);
    TILE_STORE(2, low, stride);
    TILE_STORE(3, low + TILE_LINES, stride);
}

static void NAME(multiply)(int64_t depth, const void *a_sliver, const void *b_panel, float *c, int64_t stride_c,
                           bool add, const char *next, struct interlude *interlude) {
    square(depth, a_sliver, STEP * sizeof(bf16), LINE_OF_TILES, TILE_BYTES, b_panel, LINE_OF_TILES, c, stride_c, add,
           next, interlude);
}

static void NAME(multiply_rows)(const struct rows_product *p) {
    const bf16 *a = p->a, *b = p->b;
    const int64_t a_line = p->a_row * (int64_t)sizeof *a, b_panel = p->k * TILE_LINES;
    for (int64_t column = 0; column < p->n; column += 2 * TILE_LINES)
        for (int64_t row = 0; row < p->m; row += 2 * TILE_LINES)
            square(p->k, (const char *)(a + row * p->a_row), a_line, TILE_LINES * a_line, STEP * sizeof *a,
                   (const char *)(b + column / TILE_LINES * b_panel), b_panel * (int64_t)sizeof *b,
                   p->c + row * p->c_row + column, p->c_row, p->add, NULL, NULL);
}

static void NAME(pack_a)(const struct matrix *a, const struct piece *piece, void *block, float *sums) {
    pack_tiles(a, piece, true, block);
    if (sums)
        sum_rows(block, piece, sums);
}

static void NAME(pack_b)(const struct matrix *b, const struct piece *piece, void *panels) {
    pack_tiles(b, piece, false, panels);
}

const struct kernel NAME(kernel) = {.rows = 2 * TILE_LINES,
                                    .columns = 2 * TILE_LINES,
                                    .depth = DEPTH,
                                    .block_rows = BLOCK_ROWS,
                                    .a_block = BLOCK_ROWS / TILE_LINES * LINE_OF_TILES,
                                    .b_panel = 2 * LINE_OF_TILES,
                                    .fetched = DEPTH / STEP * FETCH * 64,
                                    .pack_a = NAME(pack_a),
                                    .pack_b = NAME(pack_b),
                                    .multiply = NAME(multiply),
                                    .step_depth = STEP,
                                    .multiply_rows = NAME(multiply_rows),
                                    .begin = NAME(begin),
                                    .end = NAME(end)};
#undef square
#undef NAME
#undef TILE_CONFIGURE
#undef TILE_RELEASE
#undef TILE_ZERO
#undef TILE_LOAD
#undef TILE_STORE
#undef TILE_MULTIPLY
