#!/usr/bin/env python3
"""What ptxas said of each CUDA kernel: kernel_table.py NVCC PAGE LOG... prints a page with a table (docs/results/kernels.md).

Exit 1 if a kernel spills registers, or if PAGE is of the same release of nvcc and says something else. The logs are what the
Makefile keeps beside the objects (build/release/obj/kernels/cuda/*.log). A row is a kernel; its instances for several types and
sizes are counted, and the largest figure of them is shown."""
import collections
import os
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


def release(nvcc):
    """"13.0" """
    return re.search(r"release ([\d.]+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout)[1]


def page_of(nvcc, rows):
    names = base_names(sorted({row[0] for row in rows}))
    archs = sorted({row[1] for row in rows})
    table = collections.defaultdict(list)
    for name, arch, registers, spilled, shared in rows:
        table[names[name], arch].append((registers, spilled, shared))
    kernels = sum(len(instances) for instances in table.values())
    lines = ["# What ptxas made of the kernels", "",
             f"`make nvcc-check`, nvcc {release(nvcc)}: {kernels} kernels, "
             f"{sum(1 for row in rows if row[3])} of them spill registers. A row is a kernel: how many instances of it there are "
             "(types, sizes), and the most", "registers a thread, bytes of static shared memory and bytes spilled of any of them. "
             "Dynamic shared memory is asked for at launch and not in this table.", "",
             "| kernel | instances | " + " | ".join(f"sm_{arch}: registers, static shared, spilled" for arch in archs) + " |",
             "|---" * (2 + len(archs)) + "|"]
    for name in sorted({name for name, _ in table}):
        cells = [tuple(map(max, zip(*table[name, arch]))) if table[name, arch] else None for arch in archs]
        lines.append(f"| {name} | {max(len(table[name, arch]) for arch in archs)} | "
                     + " | ".join(f"{cell[0]}, {cell[2]}, {cell[1]}" if cell else "" for cell in cells) + " |")
    return "\n".join(lines) + "\n", sorted({f"{names[row[0]]} (sm_{row[1]})" for row in rows if row[3]})


def main():
    nvcc, page, *logs = sys.argv[1:]
    rows = [row for path in logs for row in read(path)]
    if not rows:
        sys.exit("kernel_table.py: no kernel in these logs: build with CUDA first")
    text, spilling = page_of(nvcc, rows)
    print(text, end="")
    if spilling:
        sys.exit("spills registers: " + ", ".join(spilling))
    if os.path.exists(page):
        with open(page, encoding="utf-8") as file:
            there = file.read()
        if f"nvcc {release(nvcc)}:" in there and there != text:
            sys.exit(f"{page} is of other kernels: what is printed here belongs there")


main()
