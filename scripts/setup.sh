#!/usr/bin/env bash
# Checks for what the build, the tests and the demonstration need, and installs
# the system packages where that is possible. With the word "peers" also what
# the comparison with the kernel's file systems needs.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    cat >&2 <<'END'
setup: cargo is not installed. cffs is built with a stable Rust toolchain:
setup: see https://rustup.rs, or your distribution's packages cargo and rustc.
END
    exit 1
fi

# A program, and the Debian package it comes from.
wanted=(
    fusermount3:fuse3 setfattr:attr setfacl:acl git:git mkfs.ext4:e2fsprogs
)
if [ "${1:-}" = peers ]; then
    wanted+=(
        mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs nbdkit:nbdkit nbdfuse:libnbd-bin
        losetup:mount
    )
fi

# Sets "missing" to the packages whose programs are not there.
look() {
    missing=()
    local pair
    for pair in "${wanted[@]}"; do
        if ! PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null; then
            missing+=("${pair##*:}")
        fi
    done
}

look
if [ "${#missing[@]}" -gt 0 ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq || echo "setup: apt-get update failed; trying with the lists there are"
        # One by one: a package this release does not have must not keep the
        # others away.
        for package in "${missing[@]}"; do
            apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
                echo "setup: could not install $package"
        done
        look
    fi
fi
if [ "${#missing[@]}" -gt 0 ]; then
    echo "setup: not installed: ${missing[*]}"
    echo "setup: what needs them is skipped; on Debian: apt-get install ${missing[*]}"
fi
if [ ! -e /dev/fuse ]; then
    echo "setup: there is no /dev/fuse here: nothing can be mounted, and what needs a mount is skipped"
fi
