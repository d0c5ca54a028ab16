#!/usr/bin/env bash
# What cffs promises, on this machine, with this machine's files: format, mount,
# copy a real tree in, find it again whole after a cold mount, kill the mount
# process in the middle of a second copy, mount again, check. Then a snapshot:
# made, the tree changed, the difference shown, and the way back.
#
# Everything happens in one temporary directory and is cleaned up. Where there
# is no /dev/fuse (or with CFFS_DEMO_NO_FUSE=1) the same is done without a
# mount, through import and export.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/release
cffs=$target/cffs
lab=$target/cffs-lab
files=${CFFS_DEMO_FILES:-8000}
work=$(mktemp -d "${TMPDIR:-/tmp}/cffs-demo-XXXXXX")
image=$work/cffs.img
mnt=$work/mnt
log_image=$work/log.img
snap=$work/snap
source=$work/source
part=$work/part
log=$work/log
loop=
finished=no
mkdir "$mnt" "$snap" "$work/ext4"
: >"$log"

cleanup() {
    local status=$?
    trap - EXIT
    set +e
    [ -n "${copy:-}" ] && kill -9 "$copy" 2>/dev/null
    for dir in "$snap" "$mnt" "$work/ext4"; do
        if mountpoint -q "$dir"; then
            timeout 60 umount "$dir" 2>/dev/null || timeout 20 umount -l "$dir"
        fi
    done
    for file in "$image" "$log_image"; do
        wait_for_end "$file" 2>/dev/null
        for pid in $(holders "$file"); do kill "$pid"; done
    done
    [ -n "$loop" ] && losetup -d "$loop"
    if [ "$finished" != yes ]; then
        echo
        if [ -s "$log" ]; then
            echo "the last messages of the programs:"
            tail -n 15 "$log" | sed 's/^/  | /'
        fi
        echo "FAIL: ${current:-before the first step}"
        [ "$status" -ne 0 ] || status=1
    fi
    # Never through a mount that would not go away.
    if ! grep -q " $work/" /proc/self/mounts; then
        rm -rf "$work"
    else
        echo "still mounted below $work, which is left alone" >&2
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

now() { date +%s%N; }
seconds() { printf '%d.%02d' $(($1 / 1000000000)) $(($1 / 10000000 % 100)); }

# step WHAT COMMAND...: runs it, prints how long it took. (The shell does not
# stop at errors inside a function called here; hence the many "&&" below.)
step() {
    current=$1
    shift
    printf '%-58s' "$current"
    local start
    start=$(now)
    if ! "$@" >"$work/out" 2>>"$log"; then
        echo "failed"
        sed 's/^/    /' "$work/out" | tail -n 25
        return 1
    fi
    took=$(($(now) - start))
    echo "$(seconds $took) s"
    sed 's/^/    /' "$work/out"
}

# The processes that have a file open.
holders() {
    find /proc/[0-9]*/fd -maxdepth 1 -lname "$1" 2>/dev/null | cut -d/ -f3 | sort -u
}

# An unmount is over when the mount process has written everything and ended.
wait_for_end() {
    local i
    for ((i = 0; i < 1200; i++)); do
        [ -z "$(holders "$1")" ] && return 0
        sleep 0.05
    done
    echo "the mount process did not end within 60 s of the unmount" >&2
    return 1
}

mount_cffs() { timeout 60 "$cffs" mount -o cache=256M "$image" "$mnt"; }

unmount_cffs() {
    { timeout 60 umount "$mnt" || timeout 60 fusermount3 -u "$mnt"; } && wait_for_end "$image"
}

# Nothing of the images or of the mounted files stays in memory.
forget() {
    sync
    if ! { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null; then
        echo "(not root: the host's caches are not dropped)"
    fi
}

cold_mount() {
    forget && mount_cffs
}

kill_in_the_middle() {
    # Half of what the first copy took, and less if that was too long.
    local share=2 victim pause
    for attempt in 1 2 3; do
        pause=$(seconds $((copy_took / share)))
        cp -a "$source" "$mnt/second-$attempt" 2>>"$work/cp.log" &
        copy=$!
        sleep "$pause"
        victim=$(holders "$image")
        [ -n "$victim" ] || { echo "no process has the image open"; return 1; }
        if kill -0 "$copy" 2>/dev/null; then
            kill -9 $victim
            if wait "$copy"; then
                echo "the copy ended well although the mount process was killed"
                return 1
            fi
            copy=
            timeout 20 umount -l "$mnt" || timeout 20 fusermount3 -uz "$mnt" || return 1
            echo "killed process" $victim "$pause s into the copy"
            wait_for_end "$image"
            return
        fi
        wait "$copy" || return 1
        copy=
        share=$((share * 3))
    done
    echo "the copy was always over before the kill"
    return 1
}

look_at_second_copy() {
    local found
    found=$(timeout 300 find "$mnt" -path "$mnt/second-*" | wc -l) &&
        echo "of the second copy $found of $(find "$source" | wc -l) entries are there" &&
        timeout 600 "$lab" readall "$mnt" >/dev/null
}

measure_cffs() {
    cold_mount &&
        row_cffs=$(timeout 600 "$lab" readall "$mnt/tree" \
            --cffs-mount "$mnt" --cffs "$cffs" --row cffs) &&
        unmount_cffs
}

measure_ext4() {
    local ext4=$work/ext4.img
    truncate -s 2G "$ext4" &&
        mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$ext4" &&
        loop=$(losetup --direct-io=on --find --show "$ext4") &&
        mount -t ext4 "$loop" "$work/ext4" &&
        cp -a "$source" "$work/ext4/tree" &&
        umount "$work/ext4" &&
        forget &&
        mount -t ext4 "$loop" "$work/ext4" &&
        row_ext4=$(timeout 600 "$lab" readall "$work/ext4/tree" \
            --block-device "${loop#/dev/}" --row ext4) &&
        umount "$work/ext4" &&
        losetup -d "$loop" &&
        loop=
}

# Something is removed, something changed, and something new is there.
change_tree() {
    local tree=$1 victim
    victim=$(find "$tree" -mindepth 1 -maxdepth 1 -type d | sort | sed -n 1p)
    rm -rf "$victim" &&
        find "$tree" -type f | sort | sed -n 1,3p | while read -r file; do echo "changed" >>"$file"; done &&
        echo "new" >"$tree/new file"
}

# The first lines of the difference, and how many there are.
show_difference() {
    "$cffs" snapshot diff "$1" before >"$work/diff" &&
        grep -v '^- .*/.*/' "$work/diff" | sed -n 1,6p &&
        echo "$(wc -l <"$work/diff") names differ"
}

take_back() {
    rm -rf "$mnt/tree" && cp -a "$snap/tree" "$mnt/tree"
}

unmount_log() {
    { timeout 60 umount "$mnt" || timeout 60 fusermount3 -u "$mnt"; } && wait_for_end "$log_image"
}

snapshots_with_mount() {
    echo
    step "a smaller tree" "$lab" tree "$part" --files 1500 --at-least 500
    step "an image with the log layout, compressed" \
        "$cffs" mkfs --layout=log --compress=zstd --group-size=256K --size 1G "$log_image"
    step "mount it" timeout 60 "$cffs" mount "$log_image" "$mnt"
    step "copy the tree in (cp -a)" cp -a "$part" "$mnt/tree"
    step "make a snapshot" "$cffs" snapshot create "$mnt" before
    step "change the tree" change_tree "$mnt/tree"
    step "what differs (cffs snapshot diff)" show_difference "$mnt"
    step "mount the snapshot beside it" timeout 60 "$cffs" snapshot mount "$mnt" before "$snap"
    step "take the tree back from there (cp -a)" take_back
    step "compare every byte, mode, owner, time and link" "$lab" compare "$part" "$mnt/tree"
    step "unmount both" unmount_log
    step "check (cffs fsck -n --data)" timeout 300 "$cffs" fsck -n --data "$log_image"
}

remove_some() {
    local name
    name=$(ls "$part" | sed -n 1p)
    "$cffs" rm -r "$log_image:/tree/$name"
}

back_from_snapshot() {
    "$cffs" convert --layout=plain --size=2G --snapshot=before "$log_image" "$work/back.img" &&
        "$cffs" export "$work/back.img:/tree" "$work/three"
}

snapshots_without_mount() {
    echo
    step "a smaller tree" "$lab" tree "$part" --files 1500 --at-least 500
    step "an image with the log layout, compressed" \
        "$cffs" mkfs --layout=log --compress=zstd --group-size=256K --size 1G "$log_image"
    step "import the tree" "$cffs" import "$part" "$log_image:/tree"
    step "make a snapshot" "$cffs" snapshot create "$log_image" before
    step "remove a part of it" remove_some
    step "what differs (cffs snapshot diff)" show_difference "$log_image"
    step "an image of the snapshot (cffs convert), exported" back_from_snapshot
    step "compare every byte, mode, owner, time and link" "$lab" compare "$part" "$work/three"
}

with_mount() {
    step "format an image of 2 GiB" "$cffs" mkfs --force --size 2G "$image"
    step "mount it" mount_cffs
    step "copy the tree in (cp -a)" cp -a "$source" "$mnt/tree"
    copy_took=$took
    step "unmount" unmount_cffs
    step "mount cold" cold_mount
    step "compare every byte, mode, owner, time and link" "$lab" compare "$source" "$mnt/tree"
    step "kill the mount process in the middle of a second copy" kill_in_the_middle
    step "mount again (recovery)" mount_cffs
    step "compare the first copy again" "$lab" compare "$source" "$mnt/tree"
    step "read what there is of the second copy" look_at_second_copy
    step "unmount" unmount_cffs
    step "check (cffs fsck -n)" timeout 300 "$cffs" fsck -n "$image"
    step "read the tree cold: cffs" measure_cffs
    row_ext4=
    if [ "$(id -u)" -eq 0 ] && [ -e /dev/loop-control ] && command -v mkfs.ext4 >/dev/null; then
        step "read the tree cold: ext4 on an image beside it" measure_ext4
    else
        echo "(ext4 is left out: that takes root, loop devices and mkfs.ext4)"
    fi
    echo
    printf '%-8s%18s%30s\n' "" "files/s, cold" "read requests per 1,000 files"
    printf '%s\n' "$row_cffs"
    [ -z "$row_ext4" ] || printf '%s\n' "$row_ext4"
}

kill_import() {
    "$cffs" import "$source" "$image:/second" >>"$log" 2>&1 &
    copy=$!
    sleep "$(seconds $((copy_took / 2)))"
    if ! kill -9 "$copy" 2>/dev/null; then
        echo "the import was over before the kill"
        return 1
    fi
    wait "$copy" 2>/dev/null || true
    copy=
}

list_top() { "$cffs" ls "$image:/"; }

export_first() { "$cffs" export "$image:/tree" "$work/$1"; }

without_mount() {
    echo "There is no /dev/fuse here: the same without a mount, through import and export."
    step "format an image of 2 GiB" "$cffs" mkfs --force --size 2G "$image"
    step "import the tree" "$cffs" import "$source" "$image:/tree"
    copy_took=$took
    step "forget what is in memory" forget
    step "export it" export_first one
    local export_took=$took
    step "compare every byte, mode, owner, time and link" "$lab" compare "$source" "$work/one"
    step "kill a second import in the middle" kill_import
    step "open again (recovery)" list_top
    step "export the first copy again" export_first two
    step "compare it" "$lab" compare "$source" "$work/two"
    step "check (cffs fsck -n)" timeout 300 "$cffs" fsck -n "$image"
    local count
    count=$(find "$source" -type f | wc -l)
    echo
    printf '%-8s%18s\n' "" "files/s"
    printf '%-8s%18s\n' import "$((count * 1000 / (copy_took / 1000000 + 1)))"
    printf '%-8s%18s\n' export "$((count * 1000 / (export_took / 1000000 + 1)))"
}

for program in "$cffs" "$lab"; do
    if [ ! -x "$program" ]; then
        current="$program is not built (make demo builds it)"
        exit 1
    fi
done
step "a tree of files found on this machine" "$lab" tree "$source" --files "$files" --at-least 5000
if [ -e /dev/fuse ] && [ -z "${CFFS_DEMO_NO_FUSE:-}" ]; then
    with_mount
    snapshots_with_mount
else
    without_mount
    snapshots_without_mount
fi
finished=yes
echo
echo "PASS: everything was found again as it was written"
