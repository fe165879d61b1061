#include "fiber.h"

#include <stdint.h>

#include "internal.h"

#if !defined(__x86_64__)
#error "the switch from one stack to another is written for x86-64 only"
#endif

namespace emu {

/* Only what a called function must keep is saved: to the compiler a switch is a call. */
extern "C" void berth_emu_switch(void **save, void *stack_pointer);
asm(R"(
    .text
    .globl berth_emu_switch
    .type berth_emu_switch, @function
berth_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size berth_emu_switch, . - berth_emu_switch
)");

void context_make(context *made, size_t stack_bytes, void (*entry)()) {
    ASAN_UNPOISON_MEMORY_REGION(made->stack, stack_bytes); /* what a fiber before this one never returned from */
    void **top = reinterpret_cast<void **>(((uintptr_t)made->stack + stack_bytes) & ~(uintptr_t)15);
    *--top = nullptr; /* entry's return address, and with it the alignment that a called function expects */
    *--top = reinterpret_cast<void *>(entry);
    for (int saved = 0; saved < 6; saved++)
        *--top = nullptr;
    made->stack_pointer = top;
    made->stack_bytes = stack_bytes;
    made->sanitizer = nullptr;
}

#if defined(__SANITIZE_ADDRESS__)

/* The sanitizer has to know which stack is in use. It tells where the one that was left lies, which for the host's own
 * stack nobody else knows. */
static context *left;

void context_entered() { __sanitizer_finish_switch_fiber(nullptr, &left->stack, &left->stack_bytes); }

void context_switch(context *from, context *to, bool ends) {
    left = from;
    __sanitizer_start_switch_fiber(ends ? nullptr : &from->sanitizer, to->stack, to->stack_bytes);
    berth_emu_switch(&from->stack_pointer, to->stack_pointer);
    __sanitizer_finish_switch_fiber(from->sanitizer, &left->stack, &left->stack_bytes);
}

#else

void context_entered() {}

void context_switch(context *from, context *to, bool) { berth_emu_switch(&from->stack_pointer, to->stack_pointer); }

#endif

}  // namespace emu
