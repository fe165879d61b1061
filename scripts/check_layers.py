#!/usr/bin/env python3
"""Who may include whom: checks the #include lines of src/ against the table of folders in docs/architecture.md.

check_layers.py            checks src/; prints each line that breaks a rule; exit 1 if there is one
check_layers.py --self-test   plants includes that break each rule in a copy, and fails unless all are found"""
import pathlib
import re
import sys
import tempfile

# A folder may include itself, and what its row lists. "main" is src/main.c.
BELOW_CMD = ["base", "config", "graph", "kernels/cpu", "kernels/cuda", "dist", "model", "optim", "data", "train"]
MAY_INCLUDE = {
    "base": [],
    "config": ["base"],
    "graph": ["base"],
    "kernels/cpu": ["base", "graph"],
    "kernels/cuda": ["base", "graph"],
    "dist": ["base", "graph"],
    "model": ["base", "graph"],
    "optim": ["base", "graph"],
    "data": ["base"],
    "train": [folder for folder in BELOW_CMD if folder != "train"],
    "cmd": BELOW_CMD,
    "main": BELOW_CMD + ["cmd"],
}

# Headers of other projects, and the only places that may see them: folders, or files.
THIRD_PARTY = {
    r"cjson/|cJSON": ["base"],
    r"omp\.h": ["base"],
    r"hdf5|H5": ["data"],
    r"utf8proc": ["data"],
    r"zlib\.h|zstd|libdeflate": ["data"],
    r"dnnl|oneapi/dnnl": ["kernels/cpu"],
    r"mpi\.h": ["dist"],
    r"nccl": ["dist/nccl.c"],
    r"cuda|cublas|nv|mma\.h": ["kernels/cuda", "dist/nccl.c"],
}
C_AND_POSIX = set(
    "assert complex ctype errno float inttypes limits locale math setjmp signal stdalign stdarg stdatomic stdbool stddef stdint "
    "stdio stdlib stdnoreturn string tgmath time "
    "dirent dlfcn fcntl glob fnmatch poll pthread sched semaphore spawn strings syslog termios unistd "
    "arpa/inet netdb netinet/in netinet/tcp "
    "sys/file sys/ioctl sys/mman sys/resource sys/socket sys/stat sys/syscall sys/time sys/types sys/wait sys/sysinfo".split())
CUDA_CPP = {"type_traits"}  # C++ headers; kernels/cuda only
INTRINSICS = {"immintrin.h", "x86intrin.h", "arm_neon.h", "cpuid.h"}  # kernels/cpu only

INCLUDE = re.compile(r'^\s*#\s*include\s*(<[^>]+>|"[^"]+"|\S+)')


def folder_of(path):
    """'kernels/cpu' for kernels/cpu/gemm.c, 'data' for data/reader.h, 'main' for main.c; None if there is no such folder."""
    for folder in sorted(MAY_INCLUDE, key=len, reverse=True):
        if path.startswith(folder + "/") or (folder == "main" and "/" not in path):
            return folder
    return None


def fault(path, included, own):
    """What is wrong with this include, or None."""
    folder = folder_of(path)
    if not own:
        for pattern, places in THIRD_PARTY.items():
            if re.match(pattern, included):
                allowed = any(path == place or path.startswith(place + "/") for place in places)
                return None if allowed else f"<{included}> belongs to {' and '.join(places)}"
        if included in CUDA_CPP:
            return None if folder == "kernels/cuda" else f"<{included}> belongs to kernels/cuda"
        if included in INTRINSICS:
            return None if folder == "kernels/cpu" else f"<{included}> belongs to kernels/cpu"
        return None if included[:-2] in C_AND_POSIX else f"<{included}> is neither C, POSIX nor in this script's table"
    if ".." in included.split("/"):
        return "../ in an include: write it from src/"
    target = folder_of(included)
    if target is None or target == "main":
        return f'"{included}" does not start with a folder of src/'
    if target == folder or target in MAY_INCLUDE[folder]:
        return None
    return f'{folder} may not include {target}, only {", ".join(MAY_INCLUDE[folder]) or "libc"}'


def check(source):
    faults = []
    for file in sorted(source.rglob("*")):
        if file.suffix not in {".c", ".h", ".def", ".cu", ".cuh"}:
            continue
        path = file.relative_to(source).as_posix()
        if folder_of(path) is None:
            faults.append(f"src/{path}: its folder is not in the table")
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            written = match.group(1)
            if written[0] not in '<"':
                faults.append(f"src/{path}:{number}: {written}: an include through a macro cannot be checked")
                continue
            message = fault(path, written[1:-1], written[0] == '"')
            if message:
                faults.append(f"src/{path}:{number}: {message}")
    return faults


def self_test():
    planted = [
        ("base/a.c", '#include "graph/graph.h"', "base may not include graph"),
        ("model/a.c", '#include "kernels/cpu/cpu.h"', "model may not include kernels/cpu"),
        ("train/a.c", '#include "cmd/cmd.h"', "train may not include cmd"),
        ("data/a.c", '#include "../base/text.h"', "../ in an include"),
        ("data/a.c", '#include "reader.h"', "does not start with a folder"),
        ("train/a.c", "#  include <hdf5.h>", "belongs to data"),
        ("data/a.c", "#include <dnnl.h>", "belongs to kernels/cpu"),
        ("dist/mpi.c", "#include <nccl.h>", "belongs to dist/nccl.c"),
        ("graph/a.c", "#include <boost/any.hpp>", "neither C, POSIX nor"),
        ("extra/a.c", "", "its folder is not in the table"),
        ("data/a.c", '#include "base/text.h"\n#include <hdf5.h>\n#include <stdio.h>', None),
        ("main.c", '#include "cmd/cmd.h"', None),
    ]
    for path, text, expected in planted:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            faults = check(pathlib.Path(folder))
        found = len(faults) == 1 and expected in faults[0] if expected else not faults
        if not found:
            sys.exit(f"self-test: {path} with {text!r}: expected {expected or 'no fault'}, found {faults or 'none'}")
    print(f"layers: self-test, {len(planted)} cases as expected")


if sys.argv[1:] == ["--self-test"]:
    self_test()
else:
    found = check(pathlib.Path(__file__).resolve().parent.parent / "src")
    print("\n".join(found) if found else "layers: every include is one that docs/architecture.md allows")
    sys.exit(1 if found else 0)
