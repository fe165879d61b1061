/* Saying what is wrong, and where: in words of the kernel's source. */
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "internal.h"

namespace emu {

/* --- lines --- */

static std::string formatted(const char *format, va_list arguments) {
    char line[1024];
    vsnprintf(line, sizeof line, format, arguments);
    return line;
}

std::string text(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::string made = formatted(format, arguments);
    va_end(arguments);
    return made;
}

void warn(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "berth emulator: %s\n", formatted(format, arguments).c_str());
    va_end(arguments);
}

void stop(const std::string &place, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::string line = "berth emulator: ", where = thread_name(running.block, running.thread);
    if (running.kernel)
        line += text("kernel %s, ", running.kernel);
    if (running.in_block)
        line += (running.in_thread ? where : where.substr(0, where.find(", thread"))) + ", ";
    if (!place.empty())
        line += place + ", ";
    line.replace(line.size() - 2, 2, ": ");
    line += formatted(format, arguments) + "\n";
    va_end(arguments);
    fflush(stdout);
    fputs(line.c_str(), stderr);
    _exit(FAULT); /* no destructors: this may be a fiber's stack */
}

static std::string index_name(unsigned number, dim3 size) {
    return text("(%u,%u,%u)", number % size.x, number / size.x % size.y, number / size.x / size.y);
}

std::string thread_name(unsigned block, unsigned thread) {
    return "block " + index_name(block, grid_dimension) + ", thread " + index_name(thread, block_dimension);
}

std::string memory_name(const void *p) {
    uintptr_t at = (uintptr_t)p;
    if (running.kernel && at + GUARD >= running.shared && at < running.shared_end + PAGE)
        return text("byte %td of %zu bytes of dynamic shared memory", (ptrdiff_t)(at - running.shared),
                    (size_t)(running.shared_end - running.shared));
    if (const variable *v = shared_variable_at(p))
        return text("byte %zu of shared %s", (size_t)(at - v->begin), v->name.c_str());
    if (const allocation *around = allocation_at(p))
        return text("byte %td of %zu bytes of device memory", (ptrdiff_t)(at - around->begin),
                    (size_t)(around->end - around->begin));
    bool between = at >= device_begin && at < device_end;
    return text("%p, %s", p, between ? "between allocations of device memory" : "not memory of the device");
}

/* --- what the tools of the compiler know of the program --- */

/* What addresses in the program's file have to be moved by. */
static uintptr_t program_base() {
    uintptr_t base = 0;
    auto first = [](struct dl_phdr_info *info, size_t, void *out) {
        *static_cast<uintptr_t *>(out) = info->dlpi_addr;
        return 1;
    };
    dl_iterate_phdr(first, &base);
    return base;
}

/* Calls `use` with each line that a command prints; PROGRAM in it is the program's file. False: the command failed. */
template <typename Use>
static bool for_lines_of(std::string command, Use use) {
    static char path[4096], line[64 << 10]; /* not on a fiber's stack */
    ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    command.replace(command.find("PROGRAM"), strlen("PROGRAM"),
                    "'" + std::string(path, std::max<ssize_t>(length, 0)) + "'");
    FILE *from = popen(command.c_str(), "r");
    while (from && fgets(line, sizeof line, from))
        use(line);
    return from && pclose(from) == 0;
}

/* Without the current folder before it. */
static std::string short_path(std::string path) {
    char folder[4096];
    if (getcwd(folder, sizeof folder) && path.compare(0, strlen(folder), folder) == 0 && path[strlen(folder)] == '/')
        path.erase(0, strlen(folder) + 1);
    return path;
}

std::string place_name(place where) { return short_path(where.file) + ":" + std::to_string(where.line); }

/* addr2line names the innermost inlined function first. A line of a .cu file says most; the header that it came through
 * stands behind it. */
std::string place_name(const void *return_address) {
    size_t address = (uintptr_t)return_address - 1 - program_base();
    std::string first, caller;
    for_lines_of(text("addr2line -i -e PROGRAM %#zx", address), [&](const char *line) {
        std::string found = short_path(std::string(line, strcspn(line, " \n")));
        if (found[0] == '?' || found.find("cudaemu.h:") != std::string::npos)
            return;
        if (first.empty())
            first = found;
        if (caller.empty() && found.find(".cuh:") == std::string::npos && found.find(".h:") == std::string::npos)
            caller = found;
    });
    return caller.empty() || caller == first ? first : caller + " (" + first + ")";
}

/* "0000000000012340 0000000000000080 b kernel(float*)::s[abi:berth_shared]" */
static std::vector<variable> read_variables() {
    std::vector<variable> found;
    bool read = for_lines_of("nm -C -S PROGRAM", [&](const char *line) {
        size_t at, size;
        const char *end = strstr(line, "[abi:berth_shared]");
        if (!end || sscanf(line, "%zx %zx", &at, &size) != 2)
            return;
        std::string name(line, end);
        at += program_base();
        found.push_back({at, at + size, name.substr(name.find_last_of(": ") + 1)});
    });
    if (!read)
        stop("", "the program's __shared__ variables are not known: nm of binutils failed");
    std::sort(found.begin(), found.end(), [](const variable &a, const variable &b) { return a.begin < b.begin; });
    return found;
}

const std::vector<variable> &shared_variables() {
    static const std::vector<variable> variables = read_variables();
    return variables;
}

const variable *shared_variable_at(const void *p) {
    const std::vector<variable> &all = shared_variables();
    auto after = [](uintptr_t at, const variable &v) { return at < v.begin; };
    auto next = std::upper_bound(all.begin(), all.end(), (uintptr_t)p, after);
    return next != all.begin() && (uintptr_t)p < next[-1].end ? &next[-1] : nullptr;
}

/* --- faults --- */

static void fault(int, siginfo_t *info, void *machine) {
    uintptr_t at = (uintptr_t)info->si_addr;
    if (!running.in_thread) {
        signal(SIGSEGV, SIG_DFL); /* comes again, and ends the process as it would have */
        return;
    }
    const auto *registers = static_cast<const ucontext_t *>(machine);
    std::string place = place_name((void *)(registers->uc_mcontext.gregs[REG_RIP] + 1));
    if (at < running.stack && at + 4096 >= running.stack)
        stop(place, "the thread's stack is full");
    stop(place, "invalid address: %s", memory_name(info->si_addr).c_str());
}

void catch_faults() {
    if (EMU_SANITIZED)
        return;
    static char memory[64 << 10];
    stack_t stack = {};
    stack.ss_sp = memory;
    stack.ss_size = sizeof memory;
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
}

}  // namespace emu
