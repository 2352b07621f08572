#!/usr/bin/env bash
# Prints the parameter hash after a few steps of every way to train, to compare before and after a
# change that keeps all bits.
#
# In: a program with flex, MPI and, for its line, ndarray (default: target/debug/trainer); mpirun.
# Out: lines `NAME HASH`, without asynchronous methods, whose bits depend on time. The hashes belong
# to the instruction set of a CPU; the last line names it.
#     xtask/hashes.sh > before; …; xtask/hashes.sh | diff before -
set -euo pipefail
program=$(realpath "${1:-target/debug/trainer}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# run NAME RANKS FLAG...: trains with these flags on ranks
run() {
    local name=$1 ranks=$2 launcher=()
    shift 2
    [ "$ranks" = 1 ] || launcher=(mpirun -n "$ranks" --oversubscribe --bind-to none)
    "${launcher[@]}" "$program" train --dataset shapes --shapes-train "${images:-240}" --shapes-test 60 --model resnet8 --global-batch-size 24 --epochs 2 \
        --threads 1 --warmup-epochs 0 --output-dir "$name" "$@" > "$name.log" 2>&1 || { tail -5 "$name.log" >&2; exit 1; }
    printf '%-24s %s\n' "$name" "$(grep -o 'parameters sha256 [0-9a-f]*' "$name.log" | tail -1 | cut -d' ' -f3)"
}

run f32 1
run f32-three-ranks 3
run stock 1 --kernels stock
run direct 1 --convolution direct
run shortcut-b 1 --shortcut b --zero-gamma
run bf16 1 --dtype bf16
run f16-loss-scale 1 --dtype f16 --loss-scale dynamic
run f16-two-ranks 2 --dtype f16 --loss-scale dynamic
run exact-one 1 --reduction exact --virtual-shards 3
run exact-three 3 --reduction exact --virtual-shards 3
run ring 3 --reduction ring
run sync-norm 3 --batch-norm sync
run powersgd 3 --compress powersgd:2 --compress-warmup-steps 5
run top-k 3 --compress topk:5 --compress-warmup-steps 5
run bf16-wire 2 --compress bf16
run servers-beside 3 --sync parameter-server --servers 2
run servers-own 3 --sync parameter-server --servers 1 --server-placement own
run local-sgd 3 --sync local-sgd --every 4
run post-local-sgd 2 --sync post-local-sgd --every 4 --from-step 6
run adamw 2 --optimizer adamw
run lars 2 --optimizer lars
run lamb 2 --optimizer lamb
run clipping 2 --clip-grad-norm 0.5
run accumulation 2 --grad-accum-steps 3
run device-update 1 --update device --input device
run device-update-clipping 1 --update device --clip-grad-norm 0.5 --grad-accum-steps 2
if "$program" bench --device ndarray --model resnet8 --batch-size-per-rank 1 --steps 1 --warmup-steps 0 > bench.log 2>&1; then
    images=48 run ndarray 1 --device ndarray
else
    echo "ndarray                  left out: $(tail -1 bench.log)"
fi
printf 'processor         %s\n' "$(sed -n '/^model name/{s/^.*: //p;q}' /proc/cpuinfo)"
