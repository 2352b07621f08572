#!/bin/bash
# Makes pictures of the book: `cargo xtask book --pictures`, in an empty folder.
# Variables: ROOT of the repository, TRAINER, BROWSER with its flags, PYTHON with TensorBoard.
set -euo pipefail
figures=$ROOT/docs/figures
results=$ROOT/docs/results/2026-11-24-xeon-amx

figure() { # STUDY FIGURE NAME
    "$TRAINER" report "$1" --output "report-$3"
    cp "report-$3/figures/$2" "$figures/$3"
}

photograph() { # PAGE NAME SIZE FLAG…
    # shellcheck disable=SC2086
    $BROWSER "${@:4}" --window-size="$3" --screenshot="$figures/$2" "$1" 2>/dev/null
    if [ "$(stat -c %s "$figures/$2")" -gt 150000 ]; then
        echo "$2: more than 150,000 bytes. Use a smaller window." >&2
        exit 1
    fi
}

tar xzf "$results/two-hosts.tar.gz"
tar xzf "$results/buckets.tar.gz"
figure "$results/accuracy" comparison-accuracy-by-time.svg accuracy.svg
figure two-hosts side-by-side.svg two-hosts.svg
figure buckets side-by-side.svg buckets.svg

# A short run, but with a curve.
"$TRAINER" launch -n 2 -- train --model resnet8 --shapes-train 4000 --shapes-test 500 --epochs 8 \
    --global-batch-size 64 --threads 1 --log-every-steps 10 --seed 1 \
    --output-dir run --tensorboard run/events --trace trace.json
"$TRAINER" report run trace.json --output report
photograph "file://$PWD/report/index.html" report.png 1280,1150
"$PYTHON" "$ROOT/xtask/src/book/trace.py" trace.json 100 >"$figures/trace.svg"

{
    # Braille of DejaVu Sans is wider than a cell of DejaVu Sans Mono.
    echo '<meta charset="utf-8"><style>
        @font-face { font-family: dots; src: local("DejaVu Sans"); unicode-range: U+2800-28FF; size-adjust: 82.2%; }
        body { margin: 12px; background: #1E222A; color: #D8DEE9; }
        pre { margin: 0; font: 13px/16px dots, "DejaVu Sans Mono", monospace; }
        </style><pre>'
    "$TRAINER" watch run --once | sed 's/&/\&amp;/g; s/</\&lt;/g'
} >watch.html
photograph "file://$PWD/watch.html" watch.png 960,660

port=$("$PYTHON" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$PYTHON" -m tensorboard.main --host 127.0.0.1 --port "$port" --logdir run/events >/dev/null 2>&1 &
trap 'kill %1' EXIT
for _ in {1..300}; do
    (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
    sleep 0.2
done
photograph "http://127.0.0.1:$port/#scalars&tagFilter=loss|accuracy" tensorboard.png 1040,640 \
    --virtual-time-budget=30000
