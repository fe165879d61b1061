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

static void NAME(multiply)(const struct square *square) {
    const char *a = square->a, *b = square->b, *next = square->next;
    const int64_t a_line = square->a_line, a_low = square->a_low, c_row = square->c_row * (int64_t)sizeof(float);
    float *low = square->c + TILE_LINES * square->c_row;
    if (square->add) {
        TILE_LOAD(0, square->c, c_row);
        TILE_LOAD(1, square->c + TILE_LINES, c_row);
        TILE_LOAD(2, low, c_row);
        TILE_LOAD(3, low + TILE_LINES, c_row);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t step = 0; step < square->steps; step++, a += square->a_step, b += square->b_step) {
        TILE_LOAD(6, b, TILE_LINE);
        TILE_LOAD(4, a, a_line);
        TILE_MULTIPLY(0, 4, 6);
        TILE_LOAD(7, b + square->b_right, TILE_LINE);
        TILE_MULTIPLY(1, 4, 7);
        for (int line = 0; line < square->lines; line++, next += TILE_LINE)
            __builtin_prefetch(next, 0, 2);
        interlude_step(square->interlude);
        TILE_LOAD(5, a + a_low, a_line);
        TILE_MULTIPLY(2, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
    }
    TILE_STORE(0, square->c, c_row);
    TILE_STORE(1, square->c + TILE_LINES, c_row);
    TILE_STORE(2, low, c_row);
    TILE_STORE(3, low + TILE_LINES, c_row);
}

static void NAME(multiply_rows)(const struct rows_product *p) {
    const bf16 *a = p->a, *b = p->b;
    const int64_t a_line = p->a_row * (int64_t)sizeof *a, b_panel = p->k * TILE_LINES;
    struct interlude nothing = {0};
    struct square square = {.steps = p->k / SIDE,
                            .a_line = a_line,
                            .a_low = TILE_LINES * a_line,
                            .a_step = TILE_LINE,
                            .b_right = b_panel * (int64_t)sizeof *b,
                            .b_step = TILE_BYTES,
                            .c_row = p->c_row,
                            .add = p->add,
                            .interlude = &nothing};
    for (int64_t column = 0; column < p->n; column += SIDE)
        for (int64_t row = 0; row < p->m; row += SIDE) {
            square.a = (const char *)(a + row * p->a_row);
            square.b = (const char *)(b + column / TILE_LINES * b_panel);
            square.c = p->c + row * p->c_row + column;
            NAME(multiply)(&square);
        }
}

static void NAME(pack_square)(const struct matrix *m, const struct piece *piece, bool left, void *to) {
    pack_square(m, piece, left, to);
}

static void NAME(sum_square)(const void *packed, float lanes[SIDE][SUM_LANES]) { sum_square(packed, lanes); }

const struct kernel NAME(kernel) = {.square = NAME(multiply),
                                    .pack_square = NAME(pack_square),
                                    .sum_square = NAME(sum_square),
                                    .multiply_rows = NAME(multiply_rows),
                                    .begin = NAME(begin),
                                    .end = NAME(end)};
#undef NAME
#undef TILE_CONFIGURE
#undef TILE_RELEASE
#undef TILE_ZERO
#undef TILE_LOAD
#undef TILE_STORE
#undef TILE_MULTIPLY
