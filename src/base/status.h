/* The result of everything that can fail: a code, and a message for the user.
 *
 * The codes are the program's exit codes. The message belongs to the calling thread and lives until that thread's
 * next failure. It is one line and names the file, key, row or value at fault, what was expected, and, where that
 * helps, what to do. A function that passes a failure on may put its own context in front (`status_context`). */
#ifndef BERTH_BASE_STATUS_H
#define BERTH_BASE_STATUS_H

typedef enum {
    OK = 0,
    FAILED = 1,    /* the run failed: disk full, out of memory, a device error */
    BAD_INPUT = 2, /* the user's input is wrong */
    STOPPED = 3,   /* a signal or a time limit asked the run to stop, and its state is saved */
} status;

/* Set the thread's message and return the code. */
status failed(const char *format, ...) __attribute__((format(printf, 1, 2), cold));
status bad_input(const char *format, ...) __attribute__((format(printf, 1, 2), cold));
status stopped(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

/* Put "context: " in front of the thread's message; returns `code` unchanged. */
status status_context(status code, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* The message of this thread's last failure; "" if there was none. */
const char *status_message(void);

/* Carry a failure from one thread to another: set this thread's message to a copy of `message`. */
status status_set(status code, const char *message);

#define TRY(call)                  \
    do {                           \
        status try_code_ = (call); \
        if (try_code_ != OK)       \
            return try_code_;      \
    } while (0)

/* As TRY, but to a label that frees what the function owns: the variable `code` must be in scope. */
#define TRY_GOTO(call, label) \
    do {                      \
        code = (call);        \
        if (code != OK)       \
            goto label;       \
    } while (0)

#endif
