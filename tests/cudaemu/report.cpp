/* Saying what is wrong, and where: in words of the kernel's source. */
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

std::string index_name(unsigned number, dim3 dimension) {
    return text("(%u,%u,%u)", number % dimension.x, number / dimension.x % dimension.y,
                number / dimension.x / dimension.y);
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
    std::string line = "berth emulator: ";
    if (running.kernel)
        line += text("kernel %s, ", running.kernel);
    if (running.in_block)
        line += "block " + index_name(running.block, grid_dimension) + ", ";
    if (running.in_thread)
        line += "thread " + index_name(running.thread, block_dimension) + ", ";
    if (!place.empty())
        line += place + ", ";
    line.replace(line.size() - 2, 2, ": ");
    line += formatted(format, arguments) + "\n";
    va_end(arguments);
    fflush(stdout);
    fputs(line.c_str(), stderr);
    _exit(FAULT); /* no destructors: this may be a fiber's stack */
}

/* --- places --- */

static uintptr_t program_base() {
    uintptr_t base = 0;
    auto first = [](struct dl_phdr_info *info, size_t, void *out) {
        *static_cast<uintptr_t *>(out) = info->dlpi_addr;
        return 1;
    };
    dl_iterate_phdr(first, &base);
    return base;
}

static std::string program_path() {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    return std::string(path, length > 0 ? length : 0);
}

/* Without the current folder before it. */
static std::string short_path(std::string path) {
    char folder[4096];
    if (getcwd(folder, sizeof folder) && path.compare(0, strlen(folder), folder) == 0 && path[strlen(folder)] == '/')
        path.erase(0, strlen(folder) + 1);
    return path;
}

std::string place_name(place where) { return short_path(where.file) + ":" + std::to_string(where.line); }

/* The lines that addr2line gives for an address: of the innermost inlined function first. */
static std::vector<std::string> lines_of(uintptr_t address) {
    std::vector<std::string> lines;
    std::string command = text("addr2line -i -e '%s' %#lx 2>/dev/null", program_path().c_str(),
                               (unsigned long)(address - program_base()));
    FILE *from = popen(command.c_str(), "r");
    char line[4096];
    while (from && fgets(line, sizeof line, from)) {
        std::string found(line, strcspn(line, " \n"));
        if (found[0] != '?' && found.find("cudaemu.h:") == std::string::npos)
            lines.push_back(short_path(found));
    }
    if (from)
        pclose(from);
    return lines;
}

std::string place_name(const void *return_address) {
    std::vector<std::string> lines = lines_of((uintptr_t)return_address - 1);
    if (lines.empty())
        return "";
    auto in_header = [](const std::string &line) {
        return line.find(".cuh:") != std::string::npos || line.find(".h:") != std::string::npos;
    };
    auto caller = std::find_if_not(lines.begin(), lines.end(), in_header);
    return caller == lines.begin() || caller == lines.end() ? lines[0] : *caller + " (" + lines[0] + ")";
}

/* --- the variables in shared memory, from the program's table of symbols --- */

/* "s" of the mangled "kernel(float*)::s[abi:berth_shared]" */
static std::string variable_name(const char *symbol) {
    int code;
    char *whole = abi::__cxa_demangle(symbol, nullptr, nullptr, &code);
    std::string name = code == 0 ? whole : symbol;
    free(whole);
    name = name.substr(0, name.rfind("[abi:"));
    size_t colons = name.rfind("::");
    return colons == std::string::npos ? name : name.substr(colons + 2);
}

static std::vector<variable> variables_of(const char *file) {
    std::vector<variable> found;
    const ElfW(Ehdr) *header = reinterpret_cast<const ElfW(Ehdr) *>(file);
    const ElfW(Shdr) *sections = reinterpret_cast<const ElfW(Shdr) *>(file + header->e_shoff);
    uintptr_t base = program_base();
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        const ElfW(Sym) *symbols = reinterpret_cast<const ElfW(Sym) *>(file + sections[i].sh_offset);
        const char *names = file + sections[sections[i].sh_link].sh_offset;
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++) {
            const char *name = names + symbols[s].st_name;
            if (strstr(name, "B12berth_shared") && symbols[s].st_shndx != SHN_UNDEF)
                found.push_back(
                    {base + symbols[s].st_value, base + symbols[s].st_value + symbols[s].st_size, variable_name(name)});
        }
    }
    auto before = [](const variable &a, const variable &b) { return a.begin < b.begin; };
    std::sort(found.begin(), found.end(), before);
    return found;
}

static std::vector<variable> read_variables() {
    std::vector<variable> found;
    struct stat status;
    int file = open("/proc/self/exe", O_RDONLY);
    if (file >= 0 && fstat(file, &status) == 0) {
        void *memory = mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        if (memory != MAP_FAILED) {
            found = variables_of(static_cast<const char *>(memory));
            munmap(memory, status.st_size);
        }
    }
    if (file >= 0)
        close(file);
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
    std::string place;
#if defined(__x86_64__)
    const ucontext_t *registers = static_cast<ucontext_t *>(machine);
    place = place_name((void *)(registers->uc_mcontext.gregs[REG_RIP] + 1));
#else
    (void)machine;
#endif
    if (at < running.stack && at + 4096 >= running.stack)
        stop(place, "the thread's stack is full");
    stop(place, "invalid address %p%s", info->si_addr,
         at >= device_begin && at < device_end ? ", between allocations of device memory" : "");
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
