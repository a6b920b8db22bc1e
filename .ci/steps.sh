# shellcheck shell=bash
# What `.ci/run` and `.ci/verify` share. To be sourced at the root of the repository: installs what a new machine lacks,
# and prints the table of the steps' times at the end, also if one of them failed. Needs root and Go.
set -euo pipefail
export CI=true DEBIAN_FRONTEND=noninteractive
exec </dev/null

# What the tests of a node and those on hardware need besides is unpacked by their targets, not installed.
packages=()
command -v make >/dev/null || packages+=(make)
command -v git >/dev/null || packages+=(git)
sh scripts/python.sh >/dev/null 2>&1 || packages+=(python3 python3-venv)
command -v ip >/dev/null || packages+=(iproute2)
command -v gcc >/dev/null || packages+=(gcc libc6-dev)
command -v nsenter >/dev/null && command -v setpriv >/dev/null || packages+=(util-linux)
command -v useradd >/dev/null || packages+=(passwd)
command -v pkill >/dev/null || packages+=(procps)
command -v xz >/dev/null || packages+=(xz-utils)
if [ ${#packages[@]} -gt 0 ]; then
    apt=(apt-get --quiet -o Acquire::Retries=2)
    "${apt[@]}" update
    "${apt[@]}" install --yes --no-install-recommends "${packages[@]}"
fi

# The names of the tests that failed beside others and passed alone. An ordinary user's tests write here, too.
again=$(mktemp -d)
chmod 755 "$again"
install -m 666 /dev/null "$again/flaky"
export FLAKY_TESTS=$again/flaky

times=()
table() {
    local status=$?
    cat "$FLAKY_TESTS"
    [ ${#times[@]} = 0 ] || printf '%s\n' "${times[@]}"
    printf '%6d s  in all\n' "$SECONDS"
    rm -rf "$again"
    exit "$status"
}
trap table EXIT

# step NAME COMMAND...
step() {
    local name=$1 began=$SECONDS status=0 end=
    shift
    echo "== $name"
    "$@" || status=$?
    [ "$status" = 0 ] || end=": FAILED"
    times+=("$(printf '%6d s  %s%s' $((SECONDS - began)) "$name" "$end")")
    echo "== $name: exit $status after $((SECONDS - began)) s"
    return "$status"
}

# target NAME [VARIABLE=VALUE...]: a target of the Makefile
target() { step "make $1" make --no-print-directory "$@"; }

# node_tools [VARIABLE=VALUE...]: a source of packages that did not answer three times is the only reason for which a test
# of a node may be skipped.
node_tools() {
    rm -f tests/node/bin/.unanswered
    target node-tools "$@" || [ -s tests/node/bin/.unanswered ]
}
