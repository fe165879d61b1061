/* Threads that only change hands when they say so: each has a stack, and a switch takes a few nanoseconds. */
#ifndef BERTH_TESTS_CUDAEMU_FIBER_H
#define BERTH_TESTS_CUDAEMU_FIBER_H

#include <stddef.h>

/* Where there is no switch of our own, or EMU_UCONTEXT is given, that of the C library is taken. */
#if !defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_UCONTEXT
#endif
#if defined(EMU_UCONTEXT)
#include <ucontext.h>
#endif

namespace emu {

/* Where a fiber, or the host's own stack, stands while another one runs. */
struct context {
#if defined(EMU_UCONTEXT)
    ucontext_t saved;
#else
    void *stack_pointer;
#endif
    const void *stack; /* the lowest address of the stack */
    size_t stack_bytes;
    void *sanitizer; /* the address sanitizer's record */
};

/* A context that begins at `entry`, which must never return. */
void context_make(context *made, void *stack, size_t bytes, void (*entry)());

/* Goes on in `to`; returns when something switches back to `from`. `ends`: nothing will. */
void context_switch(context *from, context *to, bool ends);

/* The first thing that an entry does. */
void context_entered();

}  // namespace emu

#endif
