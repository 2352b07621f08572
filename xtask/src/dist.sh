#!/usr/bin/env bash
# Files of a release, for `cargo xtask dist`. It uploads nothing.
#
# dist.sh tarballs FLAGS [mpi]   target/dist: a tarball without MPI, built with these flags; with
#                                `mpi` also one with MPI; their checksums
# dist.sh crates [--no-verify]   target/package: the archives of the published crates
#
# In: the workspace; CARGO_TARGET_DIR; binutils, tar, python3.
# Invariant: the same commit and compiler give the same lists and file dates. The owners and dates
# in a tarball do not depend on this machine.
set -euo pipefail
# A failure within `$( )` ends the script.
shopt -s inherit_errexit
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
folder=$target/dist
# A published archive may have ten million bytes.
largest=10000000

fail() {
    echo "error: $*" >&2
    exit 1
}

# build FLAG...: builds the trainer without paths of this machine
build() {
    local home=${CARGO_HOME:-$HOME/.cargo} path
    # RUSTFLAGS would replace the flags of configuration files; this adds to them.
    cargo build --package trainer --profile dist "$@" --config \
        "build.rustflags=['--remap-path-prefix=$home=/cargo', '--remap-path-prefix=$PWD=/lockstep']"
    for path in "$home" "$PWD"; do
        ! grep -qF "$path" "$folder/trainer" ||
            fail "$folder/trainer: contains the path $path of this machine. Unset RUSTFLAGS, or search it by \`strings\`"
    done
}

# needs PROGRAM: names the glibc and the libraries that a program needs, not those of every system
needs() {
    local glibc libraries
    glibc=$(objdump -T "$1" | grep -o 'GLIBC_[0-9.]\+' | sort -uV | tail -n 1)
    libraries=$(objdump -p "$1" | awk '$1 == "NEEDED" && $2 !~ /^(lib(c|m|gcc_s|pthread|dl|rt)\.|ld-linux)/ { print $2 }')
    libraries=${libraries//$'\n'/, }
    echo "x86-64 Linux with glibc ${glibc#GLIBC_} or newer, and ${libraries:-no other library}."
}

# pack SUFFIX FLAG...: builds and packs a program; prints the name of the tarball
pack() {
    local name packed date
    name=lockstep-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)-x86_64-linux$1
    packed=$folder/$name
    shift
    build "$@" >&2
    mkdir -p "$packed/completions"
    cp "$folder/trainer" README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$packed"
    needs "$packed/trainer" | tee "$packed/NEEDS" >&2
    python3 xtask/src/licences.py "$packed" "$@" >&2
    "$packed/trainer" completions bash > "$packed/completions/trainer.bash"
    "$packed/trainer" completions zsh > "$packed/completions/_trainer"
    "$packed/trainer" completions fish > "$packed/completions/trainer.fish"
    "$packed/trainer" man "$packed/man/man1" >&2
    date=$(git log -1 --format=@%ct || echo @0)
    tar --directory "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" \
        --use-compress-program="gzip -9n" --create --file "$packed.tar.gz" "$name"
    rm -r "$packed"
    echo "$name.tar.gz"
}

tarballs() {
    local flags names
    read -ra flags <<< "$1"
    rm -rf "$folder"
    names=$(pack "" "${flags[@]}")
    [ -z "${2:-}" ] || names+=" $(pack -mpi)"
    (cd "$folder" && sha256sum $names | tee SHA256SUMS)
}

# One command for all crates, as no registry has them yet.
crates() {
    local published name packages=() archive bytes
    published=$(cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys
for package in json.load(sys.stdin)["packages"]:
    if package["publish"] is None: print(package["name"], package["version"])')
    [ -n "$published" ] || fail "dist --crates: expected members with \`publish = true\`, got none"
    while read -r name _; do packages+=(--package "$name"); done <<< "$published"
    cargo package --allow-dirty "${packages[@]}" "$@"
    while read -r archive; do
        archive=$target/package/${archive/ /-}.crate
        tar -tzf "$archive"
        bytes=$(stat -c %s "$archive")
        echo "$archive: $bytes bytes"
        [ "$bytes" -le $largest ] ||
            fail "$archive: expected at most $largest bytes, got $bytes. Exclude files in its manifest"
    done <<< "$published"
}

"$@"
