#!/bin/sh
# Finds what this machine can build berth with, by compiling and linking small programs. The Makefile calls it:
#     probe.sh FOLDER      writes FOLDER/features.mk (flags), features.txt (the summary), probe.log (what compilers said)
# From the environment: CC CPPFLAGS LDFLAGS; DEFLATE ZSTD ONEDNN OPENMP MPI CUDA NCCL (1: must be there, 0: leave out, empty: if it is
# there); HDF5_CFLAGS and HDF5_LIBS, or HDF5_HOME; CUDA_HOME, NCCL_HOME. MPI_SOURCES, CUDA_SOURCES, NCCL_SOURCES name the
# files of berth that would use the feature; empty: this version has none.
set -u
folder=$1
work=$folder/probe
log=$folder/probe.log
rm -rf "$work"
mkdir -p "$work"
: >"$log"
: >"$work/features.txt"
cflags= libs=

say() { printf '  %-10s %-4s %s\n' "$1" "$2" "$3" >>"$work/features.txt"; }
stop() {
    echo "berth: $1" >&2
    rm -f "$folder/features.mk"
    exit 1
}

# links CFLAGS LIBS < program: can it be compiled, linked, and does it start?
links() {
    cat >"$work/probe.c"
    echo "--- $CC $CPPFLAGS $1 probe.c $LDFLAGS $2" >>"$log"
    # shellcheck disable=SC2086
    $CC $CPPFLAGS $1 -o "$work/probe" "$work/probe.c" $LDFLAGS $2 >>"$log" 2>&1 && "$work/probe" >"$work/output" 2>>"$log"
}

# needed NAME PACKAGE: a library that berth cannot do without was not found
needed() { stop "$1 was not found: install the package $2 (Debian, Ubuntu)$3; what the compiler said: $log"; }

# optional NAME SWITCH VALUE FOUND NOTE: decides about a feature; true if it is to be used
optional() {
    if [ "$3" = 0 ]; then
        say "$1" off "$2=0"
        return 1
    fi
    [ "$4" = yes ] || [ "$3" != 1 ] || stop "$2=1, but $1 cannot be used: $5; what the compiler said: $log"
    say "$1" "$4" "$5"
    [ "$4" = yes ]
}

try_hdf5() { # CFLAGS LIBS
    links "$1" "$2" <<'C' || return 1
#include <hdf5.h>
#include <stdio.h>
int main(void) {
    unsigned a, b, c;
    if (H5open() < 0 || H5get_libversion(&a, &b, &c) < 0) return 1;
    printf("%u.%u.%u", a, b, c);
    return 0;
}
C
    hdf5_cflags=$1 hdf5_libs=$2
}

find_hdf5() {
    if [ -n "$HDF5_CFLAGS$HDF5_LIBS" ]; then
        try_hdf5 "$HDF5_CFLAGS" "${HDF5_LIBS:--lhdf5}"
        return
    fi
    if [ -n "$HDF5_HOME" ]; then
        try_hdf5 "-I$HDF5_HOME/include" "-L$HDF5_HOME/lib -Wl,-rpath,$HDF5_HOME/lib -lhdf5"
        return
    fi
    machine=$($CC -print-multiarch 2>/dev/null)
    for place in "/usr/lib/$machine/hdf5/serial" /usr/lib64/hdf5/serial; do
        [ -d "$place" ] && try_hdf5 -I/usr/include/hdf5/serial "-L$place -lhdf5" && return
    done
    try_hdf5 "" -lhdf5 && return
    for name in hdf5-serial hdf5; do
        try_hdf5 "$(pkg-config --cflags $name 2>/dev/null)" "$(pkg-config --libs $name 2>/dev/null)" && return
    done
    return 1
}

find_hdf5 || needed HDF5 libhdf5-dev ", or set HDF5_HOME, or HDF5_CFLAGS and HDF5_LIBS"
say HDF5 yes "$(cat "$work/output")${hdf5_cflags:+, $hdf5_cflags}"
cflags="$cflags $hdf5_cflags" libs="$libs $hdf5_libs"

links "" -lutf8proc <<'C' || needed utf8proc libutf8proc-dev ""
#include <stdio.h>
#include <utf8proc.h>
int main(void) { return printf("%s", utf8proc_version()) < 0; }
C
say utf8proc yes "$(cat "$work/output")"
links "" -lcjson <<'C' || needed cJSON libcjson-dev ""
#include <cjson/cJSON.h>
#include <stdio.h>
int main(void) { return printf("%s", cJSON_Version()) < 0; }
C
say cJSON yes "$(cat "$work/output")"
links "" -lz <<'C' || needed zlib zlib1g-dev ""
#include <stdio.h>
#include <zlib.h>
int main(void) { return printf("%s", zlibVersion()) < 0; }
C
say zlib yes "$(cat "$work/output")"
libs="$libs -lutf8proc -lcjson -lz"

found=no note="no <libdeflate.h> or library (package libdeflate-dev): compressed shards are read at half the speed"
links "" -ldeflate <<'C' && found=yes note="$(cat "$work/output")"
#include <libdeflate.h>
#include <stdio.h>
int main(void) {
    struct libdeflate_decompressor *d = libdeflate_alloc_decompressor();
    printf("%s", LIBDEFLATE_VERSION_STRING);
    libdeflate_free_decompressor(d);
    return !d || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__;
}
C
if optional libdeflate DEFLATE "$DEFLATE" "$found" "$note"; then
    cflags="$cflags -DBERTH_DEFLATE" libs="$libs -ldeflate"
fi

found=no note="no <zstd.h> or libzstd that links (package libzstd-dev): .zst files cannot be read"
links "" -lzstd <<'C' && found=yes note="$(cat "$work/output")"
#include <stdio.h>
#include <zstd.h>
int main(void) { return printf("%s", ZSTD_versionString()) < 0; }
C
if optional zstd ZSTD "$ZSTD" "$found" "$note"; then
    cflags="$cflags -DBERTH_ZSTD" libs="$libs -lzstd"
fi

found=no note="no <dnnl.h> or libdnnl that links (package libdnnl-dev): contractions will be plain C, correct and slow"
links "" -ldnnl <<'C' && found=yes note="$(cat "$work/output")"
#include <dnnl.h>
#include <stdio.h>
int main(void) {
    const dnnl_version_t *v = dnnl_version();
    printf("%d.%d.%d", v->major, v->minor, v->patch);
    return 0;
}
C
if optional oneDNN ONEDNN "$ONEDNN" "$found" "$note"; then
    cflags="$cflags -DBERTH_ONEDNN" libs="$libs -ldnnl"
fi

found=no note="$CC does not link with -fopenmp: one thread"
links -fopenmp -fopenmp <<'C' && found=yes note="-fopenmp"
#include <omp.h>
int main(void) {
    int sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 4; i++) sum += i;
    return sum != 6 || omp_get_max_threads() < 1;
}
C
if optional OpenMP OPENMP "$OPENMP" "$found" "$note"; then
    cflags="$cflags -fopenmp -DBERTH_OPENMP" libs="$libs -fopenmp"
fi

# --- features of the machine that berth may have no code for: say both ---
absent() { # what is missing in this version of berth
    found=no note="$note; this version of berth has no $1 yet"
}

found=no note="no mpicc that compiles and links (package libopenmpi-dev): one process only"
mpi_cflags=$(mpicc --showme:compile 2>/dev/null || mpicc -compile_info 2>/dev/null | cut -d' ' -f2-)
mpi_libs=$(mpicc --showme:link 2>/dev/null || mpicc -link_info 2>/dev/null | cut -d' ' -f2-)
if command -v mpicc >/dev/null 2>&1 && links "$mpi_cflags" "$mpi_libs" <<'C'
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int version, subversion;
    MPI_Get_version(&version, &subversion);
    printf("MPI %d.%d", version, subversion);
    return argc > 9 ? MPI_Init(&argc, &argv) : 0;
}
C
then
    found=yes note="$(cat "$work/output") found"
fi
[ -n "$MPI_SOURCES" ] || absent "communicator between processes"
if optional MPI MPI "$MPI" "$found" "$note"; then
    # only programs that have a communicator load the library
    cflags="$cflags -DBERTH_MPI" libs="$libs -Wl,--push-state,--as-needed $mpi_libs -Wl,--pop-state"
    printf 'HAVE_MPI = 1\nMPI_CFLAGS = %s\n' "$mpi_cflags" >>"$work/features.mk"
fi

nvcc=$CUDA_HOME/bin/nvcc
found=no note="no nvcc (looked in the PATH and $CUDA_HOME/bin; set CUDA_HOME)"
if [ -x "$nvcc" ]; then
    release=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    note="nvcc $release does not compile and link a program with <cublasLt.h>"
    cat >"$work/probe.cu" <<'C'
#include <cublasLt.h>
__global__ void kernel(float *x) { x[threadIdx.x] = 1; }
int main() {
    kernel<<<1, 1>>>(nullptr);
    return cudaGetLastError() == cudaSuccess;
}
C
    "$nvcc" -o "$work/probe" "$work/probe.cu" >>"$log" 2>&1 && found=yes note="nvcc $release found"
fi
[ -n "$CUDA_SOURCES" ] || absent "CUDA backend"
if optional CUDA CUDA "$CUDA" "$found" "$note"; then
    known=$("$nvcc" --list-gpu-arch | sed -n 's/^compute_\(80\|90\|100\)$/\1/p' | tr '\n' ' ')
    printf 'HAVE_CUDA = 1\nSM_KNOWN = %s\n' "${known% }" >>"$work/features.mk"
fi

found=no note="no <nccl.h> and libnccl that link (set NCCL_HOME): one GPU only"
nccl_cflags="${NCCL_HOME:+-I$NCCL_HOME/include} -I$CUDA_HOME/include"
nccl_libs="${NCCL_HOME:+-L$NCCL_HOME/lib -Wl,-rpath,$NCCL_HOME/lib} -L$CUDA_HOME/lib64 -Wl,-rpath,$CUDA_HOME/lib64 -lnccl"
links "$nccl_cflags" "$nccl_libs" <<'C' && found=yes note="NCCL $(cat "$work/output") found"
#include <nccl.h>
#include <stdio.h>
int main(void) {
    int version;
    if (ncclGetVersion(&version) != ncclSuccess) return 1;
    printf("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return 0;
}
C
[ -n "$NCCL_SOURCES" ] || absent "NCCL communicator"
# it is loaded at run time: only nvcc-check links it
if optional NCCL NCCL "$NCCL" "$found" "$note"; then
    printf 'HAVE_NCCL = 1\nNCCL_CFLAGS = %s\nNCCL_LIBS = %s\n' "$nccl_cflags" "$nccl_libs" >>"$work/features.mk"
fi

{
    echo "FEATURE_CFLAGS =$cflags"
    echo "FEATURE_LIBS =$libs"
    cat "$work/features.mk" 2>/dev/null
} >"$folder/features.mk"
mv "$work/features.txt" "$folder/features.txt"
rm -rf "$work"
echo "Features of this build ($folder; remove it to look again):"
cat "$folder/features.txt"
