# shellcheck shell=sh
# Unpacks packages of Debian's into folders. Nothing is installed, and no list of the system's apt is touched.
# To be sourced in the folder that has bin/; needs `set -eu`, and makes the folder $work, which is removed at the end.
#
# What does not come in three attempts is named in bin/.unanswered; the script that sources this then ends with 75.

# is_debian WHAT: this machine's apt can be asked; otherwise a sentence that says to install WHAT.
is_debian() {
    command -v apt-get > /dev/null && [ -r /etc/os-release ] || {
        echo "this is not Debian: install $1; the tests find them on PATH"
        return 1
    }
    # What the machine's own apt uses: the mirror, and the key that signs it.
    sources=/etc/apt/sources.list.d/debian.sources
    mirror=$(sed -n 's/^URIs: *//p' $sources 2> /dev/null | head -1)
    [ -n "$mirror" ] || {
        echo "$sources names no mirror: install $1; the tests find them on PATH"
        return 1
    }
    own=$(. /etc/os-release && echo "$VERSION_CODENAME")
}

# unpacked FOLDER SUITE PACKAGE...: bin/FOLDER has these packages of a suite. SUITE "machine" stands for what the
# machine's own apt uses, with all that the packages need and the machine has not.
unpacked() {
    folder=bin/$1 suite=$2
    shift 2
    [ ! -e "$folder/.complete" ] || return 0
    echo "unpacking $* of $suite"
    for pause in 5 15 0; do
        if downloaded "$suite" "$@"; then
            rm -rf "$folder"
            mkdir -p "$folder"
            for package in "$work/$suite.debs"/*.deb; do dpkg -x "$package" "$folder"; done
            touch "$folder/.complete"
            return 0
        fi
        sleep "$pause"
    done
    echo "$*: $mirror did not give them in three attempts" | tee -a bin/.unanswered >&2
}

downloaded() { # SUITE PACKAGE...
    suite=$1
    shift
    listed "$suite" || return 1
    rm -rf "$work/$suite.debs"
    mkdir -p "$work/$suite.debs/partial"
    case $suite in
    machine)
        apt machine -o "Dir::Cache::Archives=$work/machine.debs" install --download-only --yes --no-install-recommends "$@"
        ;;
    *) (cd "$work/$suite.debs" && apt "$suite" download "$@") ;;
    esac
}

listed() { # SUITE: its lists of packages are here
    [ ! -e "$work/$1.listed" ] || return 0
    mkdir -p "$work/$1/partial" "$work/$1.sources"
    case $1 in
    machine) cp $sources "$work/$1.sources/" ;;
    *) echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" > "$work/$1.sources/$1.list" ;;
    esac
    apt "$1" update && touch "$work/$1.listed"
}

apt() { # SUITE ARGUMENT...
    suite=$1
    shift
    apt-get -qq $(where "$suite") -o APT::Update::Error-Mode=any -o APT::Sandbox::User=root -o Debug::NoLocking=true "$@"
}

where() { # SUITE: options with which apt looks at its lists only
    for option in Dir::Etc::SourceList=/dev/null "Dir::Etc::SourceParts=$work/$1.sources" "Dir::State::Lists=$work/$1" \
        Dir::Cache::pkgcache= Dir::Cache::srcpkgcache=; do
        printf -- '-o %s ' "$option"
    done
}

# needed SUITE PACKAGE PATTERN: the first package that PACKAGE needs and whose name begins like PATTERN.
needed() {
    listed "$1" || return 1
    # shellcheck disable=SC2046 # a list
    apt-cache $(where "$1") depends "$2" | sed -n "s/^ *Depends: \($3\)$/\1/p" | head -1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p bin
rm -f bin/.unanswered
