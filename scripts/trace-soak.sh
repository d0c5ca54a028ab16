#!/usr/bin/env bash
# Records a trace of a mount under load for a time, and prints how much memory the
# mount and the recorder have had meanwhile; then what it takes to read the trace.
# With TRACED=no the same without a recorder, to compare.
#
#   scripts/trace-soak.sh [MINUTES [DIR [EVERY]]]
#
# The load unpacks this repository, asks git for its status, greps, compiles a
# small C program with make and removes all again, a round every EVERY seconds
# (default 10). DIR (default: a temporary directory) must lie outside of any mount
# of cffs; it takes some 2 GB. Needs root or /dev/fuse, git, tar, make and a C
# compiler. The memory is the resident set in KiB (VmRSS), and the peak (VmHWM).
set -euo pipefail

minutes=${1:-60}
dir=${2:-$(mktemp -d)}
every=${3:-10}
cd "$(dirname "$0")/.."
cffs=${CFFS:-${CARGO_TARGET_DIR:-target}/release/cffs}
for program in "$cffs" git tar make cc grep; do
    command -v "$program" >/dev/null || { echo "trace-soak: $program is not there" >&2; exit 1; }
done
mnt=$dir/mnt
mkdir -p "$mnt"

tracer=
mount=
clean_up() {
    if [ -n "$tracer" ]; then kill "$tracer" 2>/dev/null || true; fi
    if mountpoint -q "$mnt"; then "$cffs" umount "$mnt" || umount -l "$mnt"; fi
    if [ -n "$mount" ]; then wait "$mount" 2>/dev/null || true; fi
}
trap clean_up EXIT

git archive --prefix=tree/ HEAD | cat >"$dir/tree.tar"
rm -f "$dir/image"
"$cffs" mkfs --size 2G "$dir/image" >/dev/null
"$cffs" mount -f -o cache=128M "$dir/image" "$mnt" &
mount=$!
for _ in $(seq 100); do
    if mountpoint -q "$mnt"; then break; fi
    sleep 0.1
done
mountpoint -q "$mnt" || { echo "trace-soak: the mount has not come" >&2; exit 1; }

traced=${TRACED:-yes}
if [ "$traced" = yes ]; then
    "$cffs" trace -o "$dir/trace" "$mnt" &
    tracer=$!
fi

memory() { # PID
    sed -n 's/^Vm\(RSS\|HWM\):[^0-9]*\([0-9]*\) kB/\2/p' "/proc/$1/status" | tr '\n' ' '
}

round() {
    local at=$mnt/work
    mkdir "$at"
    tar -C "$at" -xf "$dir/tree.tar"
    git -C "$at/tree" init -q
    git -C "$at/tree" add -A
    git -C "$at/tree" status --short >/dev/null
    grep -r no_such_word "$at" >/dev/null || true
    mkdir "$at/c"
    printf 'int main(void) { return 0; }\n' >"$at/c/a.c"
    printf 'a: a.o\n\tcc -o a a.o\na.o: a.c\n\tcc -c a.c\n' >"$at/c/Makefile"
    make -s -C "$at/c"
    "$at/c/a"
    rm -r "$at"
    sync -f "$mnt"
}

echo 'minute  mount RSS  (peak)  recorder RSS  (peak)  trace MB  rounds   [KiB]'
start=$SECONDS
rounds=0
sampled=-1
while [ $((SECONDS - start)) -lt $((minutes * 60)) ]; do
    began=$SECONDS
    round
    rounds=$((rounds + 1))
    if [ -n "$tracer" ] && ! kill -0 "$tracer" 2>/dev/null; then
        echo "trace-soak: the recorder has ended" >&2
        exit 1
    fi
    minute=$(((SECONDS - start) / 60))
    if [ "$minute" -ne "$sampled" ]; then
        sampled=$minute
        read -r mount_peak mount_rss <<<"$(memory "$mount")"
        own_peak=- own_rss=- size=-
        if [ -n "$tracer" ]; then
            read -r own_peak own_rss <<<"$(memory "$tracer")"
            size=$(($(stat -c %s "$dir/trace") / 1000000))
        fi
        echo "$minute $mount_rss $mount_peak $own_rss $own_peak $size $rounds"
    fi
    left=$((every - (SECONDS - began)))
    if [ "$left" -gt 0 ]; then sleep "$left"; fi
done
if [ -n "$tracer" ]; then
    kill -INT "$tracer"
    wait "$tracer" || true
    tracer=
fi
"$cffs" umount "$mnt"
wait "$mount" || true
mount=

if [ "$traced" != yes ]; then exit 0; fi

# What reading takes: the peak of the resident set, and the time.
python3 - "$cffs" "$dir/trace" <<'END'
import resource, subprocess, sys, time
began = time.time()
subprocess.run([sys.argv[1], "trace", "summary", "--slowest", "3", sys.argv[2]], check=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(f"trace summary: {time.time() - began:.1f} s, at most {peak} KiB")
END
