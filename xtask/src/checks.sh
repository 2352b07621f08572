#!/usr/bin/env bash
# Work of `cargo xtask` that only runs tools: stages of `test`, `gpu-check`, packages, folders.
#
# checks.sh STAGE, or another function below
#
# In: FEATURES, the flags of every build; MAY_INSTALL if rustup may add components;
# CARGO_TARGET_DIR.
# Out: exit code 0 (passed), 77 (skipped; the reason is in the file REASON) or another one (failed).
# A stage with other compiler flags has a separate target folder.
# In a pipe `grep -q` would end before its input does, which `pipefail` takes for a failure.
set -euo pipefail
# A failure within `$( )` ends the script.
shopt -s inherit_errexit
host=x86_64-unknown-linux-gnu
arm=aarch64-unknown-linux-gnu
target=${CARGO_TARGET_DIR:-target}
read -ra features <<< "${FEATURES:-}"

skip() {
    echo "$1" > "${REASON:-/dev/stderr}"
    exit 77
}

fail() {
    echo "error: $*" >&2
    exit 1
}

has() {
    command -v "$1" > /dev/null
}

# component NAME SUBCOMMAND
component() {
    cargo "$2" --version > /dev/null 2>&1 && return
    [ -n "${MAY_INSTALL:-}" ] && has rustup && rustup component add "$1" && return
    skip "no $1: \`rustup component add $1\`"
}

on_host() {
    rustc -vV | grep -x "host: $host" > /dev/null || skip "runs on $host only"
}

fmt() {
    component rustfmt fmt
    cargo fmt --all -- --check
}

clippy() {
    component clippy clippy
    cargo clippy --workspace "${features[@]}" --all-targets -- -D warnings
}

test() {
    cargo test --workspace "${features[@]}"
}

doc() {
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --workspace "${features[@]}"
}

deny() {
    has cargo-deny || skip "no cargo-deny: \`cargo install cargo-deny --locked\`"
    cargo deny --locked check --hide-inclusion-graph bans licenses sources
    cargo deny fetch db || skip "bans, licenses and sources passed; no list of advisories"
    cargo deny --locked check --hide-inclusion-graph advisories
}

nccl() {
    component clippy clippy
    cargo clippy --workspace "${features[@]}" --features nccl --lib --test nccl -- -D warnings
    # One package: the tests of all others would be compiled again for this feature.
    local with=mpi,nccl
    [ ${#features[@]} = 0 ] || with=nccl
    cargo test -p lockstep-distributed --features $with --lib -- nccl::
    cargo test -p lockstep-distributed --features $with --test nccl
    [ $with = nccl ] || cargo test -p lockstep-distributed --features $with --test mpi_faults -- nccl nccl-kill-unnoticed
}

corpus() {
    LOCKSTEP_FUZZ_CHANGES=200 cargo test --workspace "${features[@]}" --test corpus
}

# AddressSanitizer fails on a read or write out of bounds. Its flag is unstable; the variable makes
# the stable compiler, which has the runtime, accept it.
memory() {
    on_host
    ls "$(rustc --print target-libdir)" | grep _rt.asan > /dev/null ||
        skip "this Rust has no AddressSanitizer; rustup's Rust has it"
    local profile=profile.dev.package.lockstep-kernels
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address \
        cargo test -p lockstep-kernels --lib --target $host --target-dir "$target/sanitized" \
        --config=$profile.debug-assertions=true --config=$profile.overflow-checks=true
}

# Prints the name of an emulator, if one is installed.
emulator() {
    command -v "qemu-$1" || command -v "qemu-$1-static" || true
}

arm() {
    { rustup target list --installed | grep -x $arm > /dev/null; } 2> /dev/null ||
        skip "no target $arm: \`rustup target add $arm\`"
    local linker=aarch64-linux-gnu-gcc qemu
    qemu=$(emulator aarch64)
    local words=(-p lockstep-kernels --lib --target $arm --target-dir "$target/arm")
    if [ -z "$qemu" ] || ! has $linker; then
        echo "no qemu-aarch64 with $linker: the tests are compiled but not run"
        cargo check "${words[@]}" --tests
        return
    fi
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$linker \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -L /usr/aarch64-linux-gnu" \
        cargo test "${words[@]}"
}

# bits_under RUNNER: the constants in the test judge
bits_under() {
    echo "under $1:"
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$1 cargo test -p trainer --test it "${features[@]}" -- \
        --exact same_bits::exact_runs_of_a_named_instruction_set_have_these_bits_on_every_processor
}

bits() {
    on_host
    local folder=$target/inexact-math qemu
    mkdir -p "$folder"
    folder=$(realpath "$folder")
    # A C library each of whose results is the next larger number.
    cat > "$folder/math.c" << 'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#define OWN(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ONE(name) double name(double x) { return nextafter(OWN(name)(x), INFINITY); } \
    float name##f(float x) { return nextafterf(OWN(name##f)(x), INFINITY); }
#define TWO(name) double name(double x, double y) { return nextafter(OWN(name)(x, y), INFINITY); } \
    float name##f(float x, float y) { return nextafterf(OWN(name##f)(x, y), INFINITY); }
ONE(sin) ONE(cos) ONE(exp) ONE(log) ONE(log1p) TWO(pow) TWO(hypot)
void sincos(double x, double *s, double *c) { *s = sin(x); *c = cos(x); }
void sincosf(float x, float *s, float *c) { *s = sinf(x); *c = cosf(x); }
END
    cc -shared -fPIC -fno-builtin -o "$folder/libinexact.so" "$folder/math.c" -lm
    bits_under "env LD_PRELOAD=$folder/libinexact.so"
    qemu=$(emulator x86_64)
    [ -n "$qemu" ] || skip "no qemu-x86_64 (package qemu-user); with another C library it passed"
    # AVX2 with FMA, without AVX-512, and without what the emulator lacks.
    bits_under "$qemu -cpu Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid"
}

# begin_folder FOLDER [PACKAGE]: makes a target folder with the results of the usual one, without a
# package. Libraries and metadata are hard links, as a copy would take gigabytes: rustc renames a
# new file to its name, and so never writes into a file of another folder.
begin_folder() {
    local new=$1.unfinished deps=$1.unfinished/debug/deps
    if [ -e "$1" ] || ! [ -e "$target/debug/.fingerprint" ]; then
        return
    fi
    rm -rf "$new"
    mkdir -p "$deps"
    cp -a "$target/debug/.fingerprint" "$target/debug/build" "$new/debug"
    find "$target/debug/deps" -maxdepth 1 -type f '(' -name '*.rlib' -o -name '*.rmeta' ')' -exec cp -al -t "$deps" {} +
    find "$target/debug/deps" -maxdepth 1 -type f '(' -name '*.so' -o -name '*.d' ')' -exec cp -a -t "$deps" {} +
    [ -z "${2:-}" ] || CARGO_TARGET_DIR=$new cargo clean --package "$2"
    mv "$new" "$1"
}

# external SELECTION...: lists the external crates that a selection of packages compiles
external() {
    cargo tree --locked --edges normal,dev --prefix none --format '{p} {f}' "$@" |
        grep -vF "$PWD" | sed 's/ (\*)$//' | sort -u
}

# Features that need other features of the crates below them, in a folder where burn is compiled
# once more. No unit tests: their programs take minutes to compile.
features() {
    local packages=(lockstep-burn-train trainer lockstep-burn-resnet lockstep-datasets lockstep-layers)
    local package again shared
    shared=$(external --workspace)
    for package in "${packages[@]}" lockstep-distributed; do
        again=$(external -p "$package")
        again=$(comm -23 <(echo "$again") <(echo "$shared"))
        [ -z "$again" ] || fail "cargo test -p $package compiles again: $again. Add the missing features" \
            "to xtask/workspace-hack/Cargo.toml"
    done
    begin_folder "$target/features"
    export CARGO_TARGET_DIR=$target/features
    local words=("${packages[@]/#/--package=}" "${features[@]}")
    words+=(--features lockstep-burn-train/burn-train,trainer/parquet,trainer/ndarray)
    words+=(--features lockstep-burn-resnet/ndarray,lockstep-layers/ndarray)
    cargo test "${words[@]}" --test it -- second_opinion parquet
    cargo test "${words[@]}" --test burn_loop
    cargo test "${words[@]}" --test corpus -- inputs
    cargo build "${words[@]}" --example burn_loop --example own_loop
    cargo check -p lockstep-layers -p trainer "${features[@]}" \
        --features lockstep-layers/wgpu,trainer/wgpu --all-targets
    loops "$CARGO_TARGET_DIR/debug/examples"
}

# GPU kernels, networks and captured steps on any Vulkan. A separate folder, since with this feature
# burn's default device is a GPU.
wgpu() {
    begin_folder "$target/wgpu"
    export CARGO_TARGET_DIR=$target/wgpu
    local words=(-p lockstep-gpu -p lockstep-layers -p trainer "${features[@]}")
    words+=(--features lockstep-layers/wgpu,trainer/wgpu)
    cargo test "${words[@]}" --lib -- --nocapture cube 2>&1 | tee "$CARGO_TARGET_DIR/found.txt"
    cargo test "${words[@]}" --test it -- --nocapture captured gpu_backend 2>&1 | tee -a "$CARGO_TARGET_DIR/found.txt"
    ! grep "for want of an adapter" "$CARGO_TARGET_DIR/found.txt" || skip "no Vulkan adapter"
}

# on_ranks RANKS PROGRAM...
on_ranks() {
    local ranks=$1 flags=()
    shift
    if mpirun --version | grep "Open MPI" > /dev/null; then
        flags=(--oversubscribe --bind-to none)
    fi
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 300 mpirun -n "$ranks" "${flags[@]}" "$@"
}

# The examples of burn's loop and of a custom loop under mpirun. They compare the bits of the ranks
# themselves. The custom loop is killed, stopped by a signal to one rank, and resumed to the bits of
# an undisturbed one.
loops() {
    local folder ranks losses signal launcher process old saved hashes code
    has mpirun && [ ${#features[@]} = 0 ] || skip "no mpirun with an MPI to build with; on threads it passed"
    folder=$(mktemp -d)
    for ranks in 1 2; do
        # Each epoch is one step over all samples, so that one and two ranks see the same batches.
        on_ranks $ranks "$1/burn_loop" "$folder/$ranks" 97 97 8 2>&1 | tee "$folder/$ranks.txt"
        [ "$(grep -c 'training ended\.' "$folder/$ranks.txt")" = 1 ] || fail "burn_loop: not only root prints"
        # Rounding may choose another best epoch, whose checkpoint stays.
        (cd "$folder/$ranks" && find . -type f ! -path './checkpoint*' | sort) > "$folder/$ranks.files"
    done
    [ -s "$folder/1.files" ] && diff "$folder/1.files" "$folder/2.files" || fail "burn_loop: files of one and two ranks differ"
    losses=$(sed -n 's/^loss \([^,]*\),.*/\1/p' "$folder/1.txt" "$folder/2.txt" | tr '\n' ' ')
    awk '{ exit !(NF == 2 && ($1 - $2) ^ 2 <= (1e-5 * $1) ^ 2) }' <<< "$losses" ||
        fail "burn_loop: losses of one and two ranks differ: $losses"
    for signal in KILL TERM; do
        old=$(cat "$folder/own/.lock" 2> /dev/null || true)
        saved=$(ls -d "$folder/own/checkpoints"/step-???????? 2> /dev/null || true)
        on_ranks 2 "$1/own_loop" --output-dir "$folder/own" --resume --epochs 1000 > "$folder/own.txt" 2>&1 &
        launcher=$!
        until [ "$(ls -d "$folder/own/checkpoints"/step-???????? 2> /dev/null)" != "$saved" ] && [ "$(cat "$folder/own/.lock")" != "$old" ]; do
            sleep 0.1
            kill -0 $launcher || fail "own_loop: $(cat "$folder/own.txt")"
        done
        process=$(sed -n 's/^process \([0-9]*\) on .*/\1/p' "$folder/own/.lock")
        kill -s $signal "$process"
        code=0
        wait $launcher || code=$?
        [ $signal = KILL ] || [ $code = 0 ] || fail "own_loop: exit code $code after SIGTERM: $(cat "$folder/own.txt")"
    done
    ranks=$(($(wc -l < "$folder/own/metrics.jsonl") + 1))
    on_ranks 2 "$1/own_loop" --output-dir "$folder/own" --resume --epochs $ranks | tee "$folder/own.txt"
    on_ranks 2 "$1/own_loop" --epochs $ranks | tee -a "$folder/own.txt"
    hashes=$(sed -n 's/^parameters sha256 //p' "$folder/own.txt" | sort | uniq -c | awk '{ print $1 }')
    [ "$hashes" = 2 ] || fail "own_loop: a resumed loop and an undisturbed one differ"
    losses=$(sed -n 's/^epoch .* | train loss \([^ ]*\) .*/\1/p' "$folder/own.txt" | tr '\n' ' ')
    awk '{ exit !(NF >= 2 && $NF < $2) }' <<< "$losses" ||
        fail "own_loop: expected decreasing losses from root, got $losses"
    rm -rf "$folder"
}

# Makes a Python with TensorBoard in the target folder.
tensorboard() {
    local python=$target/tensorboard/bin/python
    "$python" -c "import PIL, tensorboard.backend.event_processing.event_accumulator" 2> /dev/null && return
    [ -n "${MAY_INSTALL:-}" ] || skip "no TensorBoard; --all and --only report install it if allowed"
    has python3 || skip "no python3"
    python3 -m venv "$target/tensorboard"
    "$python" -m pip install --quiet --disable-pip-version-check tensorboard==2.21.0 pillow==13.0.0
}

# Makes a Python with the modules of the guide's blocks in the target folder. PyTorch is too large
# to install: without it, the blocks that import it are skipped.
guide_python() {
    has python3 || skip "no python3"
    local folder=$target/guide-python packages="matplotlib==3.11.2 pandas==3.1.1"
    python3 -c "import torch" 2> /dev/null &&
        packages+=" safetensors==0.8.0 onnxscript==0.7.2 onnxruntime==1.32.0"
    [ "$(cat "$folder/packages" 2> /dev/null)" = "$packages" ] && return
    [ -n "${MAY_INSTALL:-}" ] || skip "no matplotlib; --all and --only book install it if allowed"
    python3 -m venv --system-site-packages "$folder"
    local words
    read -ra words <<< "$packages"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "${words[@]}"
    echo "$packages" > "$folder/packages"
}

# install PACKAGE...: installs with apt-get, as root or by sudo without a password, and without
# starting daemons, which would outlive xtask without a configuration: Debian asks policy-rc.d. An
# existing one stays. Another apt-get may run on a machine that has just started.
install() {
    policy=/usr/sbin/policy-rc.d
    root=()
    [ "$(id -u)" = 0 ] || root=(sudo -n)
    local package missing=
    local apt_get=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    if ! [ -e $policy ]; then
        trap '"${root[@]}" rm -f $policy' EXIT
        "${root[@]}" sh -c "printf '#!/bin/sh\nexit 101\n' > $policy && chmod 755 $policy"
    fi
    for package; do
        [ -n "$(apt-cache show --no-all-versions "$package" 2> /dev/null)" ] || missing=$package
    done
    [ -z "$missing" ] || "${apt_get[@]}" update
    # Old lists name versions that the servers no longer have.
    set -- "${apt_get[@]}" install --yes --no-install-recommends "$@"
    "$@" || { "${apt_get[@]}" update && "$@"; }
}

# cuda_build FLAG...: builds the trainer for CUDA where burn's compiler cannot download its LLVM
# bundle. Sets `trainer` and `stubs`. The feature cuda-nvrtc compiles kernels by NVRTC at run time,
# so LLVM is linked by name only: its symbols stay undefined in the program, and a library of stubs
# defines them at start. A call of a stub ends the program, and so shows a use of LLVM. Only for
# checks: with a network, build with plain `--features cuda`.
cuda_build() {
    local folder=$target/cuda profile=debug
    [[ " $* " != *" --release "* ]] || profile=release
    begin_folder "$folder"
    # The build scripts that download LLVM return at once for documentation of docs.rs.
    DOCS_RS=1 cargo rustc -p trainer --bin trainer "${features[@]}" --features cuda-nvrtc "$@" \
        --target-dir "$folder" -- -C link-arg=-Wl,--unresolved-symbols=ignore-all
    trainer=$(realpath "$folder/$profile/trainer")
    stubs=$(realpath "$folder")/libllvm-absent.so
    {
        printf '#include <%s.h>\n' stdio stdlib
        echo 'static void end(const char *name) { fprintf(stderr, "absent: %s\n", name); abort(); }'
        # A library of the system defines a symbol with a version.
        nm -D --undefined-only "$trainer" |
            sed -nE 's/^ *[A-Za-z] ((LLVM|cubecl_)[^@]*)$/void \1(void) { end("\1"); }/p' | sort -u
    } > "$folder/llvm-absent.c"
    cc -shared -fPIC -w -O0 -o "$stubs" "$folder/llvm-absent.c"
    echo "$(grep -c ^void "$folder/llvm-absent.c") stubs of LLVM in $stubs"
}

has_gpu() {
    [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ]
}

# nvrtc: installs the compiler of CUDA 12.9, which knows sm_70 to sm_90, in target/nvrtc.
nvrtc() {
    local folder=target/nvrtc wheels
    [ -e $folder/include/crt ] && return
    [ -n "${MAY_INSTALL:-}" ] && has python3 || skip "no NVRTC; it is installed if allowed"
    python3 -m venv $folder/python
    $folder/python/bin/python -m pip install --quiet --disable-pip-version-check nvidia-cuda-nvrtc-cu12==12.9.86 \
        nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-cccl-cu12==12.9.27 nvidia-cuda-nvcc-cu12==12.9.86
    wheels=$(echo "$PWD"/$folder/python/lib/python3*/site-packages/nvidia)
    mkdir -p $folder/include $folder/lib
    ln -sf "$wheels"/cuda_nvrtc/lib/* $folder/lib
    cp -rs "$wheels"/cuda_{runtime,cccl,nvcc}/include/* $folder/include
}

# recorded MODEL BATCH: compiles each kernel of a training step for a V100, an A100 and an H100,
# against a driver that records launches and refuses those beyond the limits of the GPU.
recorded() {
    local folder=$PWD/target/recorded cuda=$PWD/target/nvrtc sm dtype run text code what
    mkdir -p "$folder"
    cc -O1 -shared -fPIC -pthread -o "$folder/libcuda.so" distributed/tests/fake/cuda.c
    for sm in 70 80 90; do
        for dtype in f32 bf16 f16; do
            what="$1 in $dtype on sm_$sm"
            run=$folder/$1-$sm-$dtype
            rm -rf "$run"
            mkdir -p "$run"
            printf '[autotune.decisions]\nfile = "%s"\n' "$run/decisions" > "$run/cubecl.toml"
            code=0
            text=$(cd "$run" && FAKE_CUDA_SM=$sm FAKE_CUDA_LOG=$run/calls CUDA_PATH=$cuda XDG_CACHE_HOME=$run/cache \
                LD_LIBRARY_PATH=$folder:$cuda/lib LD_PRELOAD=$stubs:$folder/libcuda.so timeout 1500 "$trainer" bench \
                --device cuda --model "$1" --dtype $dtype --batch-size-per-rank "$2" --steps 6 --warmup-steps 1 2>&1) || code=$?
            [ $code = 0 ] || fail "$what: exit code $code: $text"
            ! grep '^refused' "$run/calls" || fail "$what: launches beyond the limits of the GPU"
            ! [ -s "$run/decisions" ] || fail "$what: burn tuned kernels: $(cat "$run/decisions")"
            text=$(sed -n 's/.*further steps.* in \(.*\) launches.*/\1/p' <<< "$text")
            echo "recorded $what: $(grep -c '^function' "$run/calls") kernels, $text launches a step"
        done
    done
}

# emulated_gpu COMMAND...: runs a command with an emulated GPU per rank of a node.
emulated_gpu() {
    FAKE_CUDA_DEVICES=2 CUDA_PATH=$emulated XDG_CACHE_HOME=$emulated/cache LD_LIBRARY_PATH=$emulated \
        LD_PRELOAD=$stubs:$emulated/libcuda.so "$@"
}

# emulated: `verify` for three generations of GPUs, with kernels that g++ compiles for the CPU.
emulated() {
    local name gpu text
    has g++ || skip "no g++ to compile kernels for the CPU"
    mkdir -p "$emulated"
    for name in cuda.so nvrtc.so nccl.so.2; do
        cc -O1 -shared -fPIC -pthread -o "$emulated/lib$name" distributed/tests/fake/${name%%.*}.c
    done
    cp distributed/tests/fake/emulated.h "$emulated"
    for gpu in "70 f32" "70 f16" "80 f32" "90 f32" "90 bf16" "90 f16"; do
        text=$(FAKE_CUDA_SM=${gpu% *} emulated_gpu "$trainer" verify --device cuda --dtype "${gpu#* }" --quick \
            --only golden,nccl --data-dir burn-resnet/tests/golden 2>&1) || fail "verify on sm_$gpu: $text"
        echo "$text"
        ! grep skipped <<< "$text" || fail "verify on sm_$gpu: a check was skipped"
    done
}

# emulated_ranks NAME FLAG...: a training by two processes with an emulated GPU each. Writes calls
# of the driver and process numbers to $emulated/ranks/NAME.*.
emulated_ranks() {
    local files=$emulated/ranks/$1
    shift
    emulated_gpu on_ranks 2 sh -c 'echo $$ > $0.process-$OMPI_COMM_WORLD_RANK
        FAKE_CUDA_LOG=$0.calls-$OMPI_COMM_WORLD_RANK exec "$@"' "$files" "$trainer" train --device cuda --model resnet8 \
        --augment none --global-batch-size 4 --limit-train 24 --limit-test 4 --output-dir "$files" "$@"
}

# nccl_ranks: sums by the fake NCCL, the default, give the bits of sums through main memory.
# Between the sums the host reads scores, a loss and four numbers. A stopped rank ends the job.
nccl_ranks() {
    local run=$emulated/ranks found launcher code=0
    has mpirun && [ ${#features[@]} = 0 ] || skip "no mpirun with an MPI to build with; with one rank it passed"
    rm -rf "$run"
    mkdir -p "$run"
    emulated_ranks nccl --epochs 1 | tee "$run/nccl.txt"
    emulated_ranks mpi --epochs 1 --reduction mpi | tee "$run/mpi.txt"
    found=$(sed -n 's/^parameters sha256 //p' "$run/nccl.txt" "$run/mpi.txt" | uniq -c | awk '{ print $1 }')
    [ "$found" = 2 ] || fail "NCCL: expected the parameters of --reduction mpi"
    found=$(awk '$1 == "call" { sums++; largest = most } $1 == "download" && sums && $4 > most { most = $4 }
        END { print sums, largest }' "$run/nccl.calls-0")
    [ "$found" = "6 80" ] || fail "NCCL: expected 6 sums and between them 80 bytes for the host, got $found"
    emulated_ranks stopped --epochs 100 --timeout 30 --log-every-steps 1 > "$run/stopped.txt" 2>&1 &
    launcher=$!
    until grep "^epoch 1 step 4" "$run/stopped.txt"; do
        sleep 0.2
        kill -0 $launcher || fail "NCCL: $(cat "$run/stopped.txt")"
    done
    kill -STOP "$(cat "$run/stopped.process-1")"
    wait $launcher || code=$?
    [ $code != 0 ] && grep ncclAllReduce "$run/stopped.txt" ||
        fail "NCCL: expected an end by the watchdog in ncclAllReduce, got exit code $code: $(cat "$run/stopped.txt")"
}

cuda() {
    local emulated=$PWD/target/emulated trainer stubs text code=0
    cuda_build
    LD_PRELOAD=$stubs timeout 60 "$trainer" --version
    # The first steps on a GPU compile and tune every kernel.
    text=$(LD_PRELOAD=$stubs timeout 900 "$trainer" bench --model resnet20 --device cuda --batch-size-per-rank 8 \
        --steps 2 --warmup-steps 1 2>&1) || code=$?
    echo "$text"
    if has_gpu; then
        [ $code = 0 ] || fail "bench on a GPU: expected exit code 0, got $code"
        return
    fi
    # Without a GPU the program ends by its own error, neither by a panic nor by a signal.
    [ $code = 1 ] || [ $code = 2 ] || fail "bench without a GPU: expected exit code 1 or 2, got $code"
    grep -i cuda <<< "$text" > /dev/null || fail "bench without a GPU: expected a message about cuda"
    nvrtc
    recorded resnet20 8
    emulated
    nccl_ranks
}

# pack_mpi FOLDER PROGRAM: copies Open MPI's launcher, its components for one machine, and the
# libraries of both and of PROGRAM, except those of the C compiler. place.py names them to Open MPI.
pack_mpi() {
    local folder=$1/openmpi paths kinds='ucx|ofi|psm|openib|flux|slurm|monitoring|gridengine|vprotocol'
    paths=$(ompi_info --parsable --path all)
    mkdir -p "$folder"/{bin,lib,components}
    cp "$(command -v mpirun)" "$(command -v orted)" "$folder/bin"
    cp -r "$(sed -n 's/^path:pkgdatadir://p' <<< "$paths")" "$folder/data"
    find "$(sed -n 's/^path:pkglibdir://p' <<< "$paths")" -name 'mca_*.so' | grep -Ev "$kinds" | xargs cp -t "$folder/components"
    ldd "$2" "$folder"/bin/* "$folder"/components/* | awk '$3 ~ "^/" { print $3 }' |
        grep -Ev '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s)\.so' | sort -u | xargs cp -Lt "$folder/lib"
}

# gpu_check DATA FLAG...: packs the trainer for CUDA with its checks into target/gpu-check, and
# runs them if there is a GPU. DATA is empty, or a folder with the files of the check known-answer.
gpu_check() {
    local data=$1 folder=target/gpu-check images file trainer stubs glibc
    shift
    if [ -n "$data" ]; then
        images=$data/cifar-10-batches-bin/test_batch.bin
        [ -f "$images" ] || images=$data/test_batch.bin
        for file in "$data/resnet20-12fca82f.th" "$images"; do
            [ -f "$file" ] && continue
            echo "error: --data-dir: no file $file. Name another folder, or remove --data-dir and with it the check known-answer" >&2
            exit 2
        done
    fi
    local with=kernel-cache,flex
    # Open MPI is packed, for machines without MPI.
    [ ${#features[@]} != 0 ] || ! has ompi_info || with+=,mpi
    cuda_build --release --no-default-features --features $with
    rm -rf $folder
    mkdir -p $folder/data
    cp lab/peers/gpu/*.{sh,py} lab/peers/{architecture,job,pytorch_imagenet,resnet}.py "$stubs" $folder
    rm $folder/test_*.py
    # PyTorch's numbers for the check golden.
    cp burn-resnet/tests/golden/resnet8.safetensors $folder/data
    if [ -n "$data" ]; then
        cp "$data/resnet20-12fca82f.th" $folder/data
        # The known answer is that of 1,017 records of a label and 3,072 pixels.
        head -c $((1017 * 3073)) "$images" > $folder/data/test_batch.bin
    fi
    if ldd "$trainer" | grep libmpi > /dev/null && has ompi_info; then
        pack_mpi $folder "$trainer"
    fi
    strip -o $folder/trainer "$trainer"
    xz -T0 -6 $folder/trainer
    glibc=$(objdump -T "$trainer" | grep -o 'GLIBC_[0-9.]\+' | sort -V | tail -n 1)
    echo "$folder packed; the program needs glibc $glibc or newer"
    if has_gpu; then
        cd $folder
        exec ./gpu-check.sh "$@"
    fi
    echo "no GPU here: copy the folder to a machine with one and run ./gpu-check.sh there"
}

"$@"
