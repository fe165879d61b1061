# Which packages berth needs on Debian and Ubuntu, and how to get those that are missing. Sourced by other scripts.
BUILD_PACKAGES="gcc make git libhdf5-dev libutf8proc-dev libcjson-dev zlib1g-dev libzstd-dev libdeflate-dev libdnnl-dev"
TEST_PACKAGES="libcmocka-dev clang-format python3 python3-venv"
# Several processes: without them berth trains in one, and their tests are skipped.
RANKS_PACKAGES="libopenmpi-dev openmpi-bin"
# Not in every release: without them the checks against PyTorch are skipped, or slow (Debian's torch multiplies by the BLAS it finds).
PARITY_PACKAGES="python3-torch libopenblas0-pthread"

# need_packages NAME...: installs those that are not there; says what it does
need_packages() {
    missing=
    for package; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    echo "installing:$missing"
    $sudo apt-get update -qq >/dev/null
    # shellcheck disable=SC2086
    if ! DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null; then
        echo "could not install:$missing" >&2
        return 1
    fi
    rm -f build/*/features.mk # the build looks again for what is there
}
