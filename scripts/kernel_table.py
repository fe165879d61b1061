#!/usr/bin/env python3
"""What ptxas said of each CUDA kernel: kernel_table.py LOG... prints a Markdown table; exit 1 if a kernel spills registers.

The logs are what the Makefile keeps beside the objects (build/release/obj/kernels/cuda/*.log). A row is a kernel; its instances
for several types and sizes are counted, and the largest figure of them is shown."""
import collections
import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)a?'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def read(path):
    """(mangled name, architecture, registers, spilled bytes, static shared bytes) of each kernel in a log."""
    name = arch = None
    spilled = 0
    for line in open(path, encoding="utf-8"):
        if match := ENTRY.search(line):
            name, arch, spilled = match[1], int(match[2]), 0
        elif (match := SPILLS.search(line)) and name:
            spilled = int(match[1]) + int(match[2])
        elif (match := USED.search(line)) and name:
            shared = SHARED.search(line)
            yield name, arch, int(match[1]), spilled, int(shared[1]) if shared else 0
            name = None


def base_names(mangled):
    """{"_Z10add_kernelI…": "add_kernel"}; without binutils the mangled names stay."""
    try:
        lines = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        lines = list(mangled)
    return {name: re.sub(r"^(void|[\w: ]+\s)\s*", "", re.split(r"[<(]", line.replace("(anonymous namespace)::", ""))[0]).split("::")[-1].strip() or name
            for name, line in zip(mangled, lines)}


def main():
    rows = [row for path in sys.argv[1:] for row in read(path)]
    if not rows:
        sys.exit("kernel_table.py: no kernel in these logs: build with CUDA first")
    names = base_names(sorted({row[0] for row in rows}))
    archs = sorted({row[1] for row in rows})
    table = collections.defaultdict(list)
    for name, arch, registers, spilled, shared in rows:
        table[names[name], arch].append((registers, spilled, shared))
    print("| kernel | instances | " + " | ".join(f"sm_{arch}: registers, static shared, spilled" for arch in archs) + " |")
    print("|---" * (2 + len(archs)) + "|")
    for name in sorted({name for name, _ in table}):
        cells = [tuple(map(max, zip(*table[name, arch]))) if table[name, arch] else None for arch in archs]
        print(f"| {name} | {max(len(table[name, arch]) for arch in archs)} | "
              + " | ".join(f"{cell[0]}, {cell[2]}, {cell[1]}" if cell else "" for cell in cells) + " |")
    spilling = sorted({f"{names[row[0]]} (sm_{row[1]})" for row in rows if row[3]})
    if spilling:
        sys.exit("spills registers: " + ", ".join(spilling))


main()
