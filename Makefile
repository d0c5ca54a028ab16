# Everything here is a short name for a command that also works by hand.

CARGO  ?= cargo
OBJCOPY ?= objcopy
PREFIX ?= /usr/local
DESTDIR ?=
# Further words for `cffs-lab peers`, e.g. ARGS="--quick --only ext4,cffs".
ARGS   ?=
# How often `make soak` kills the mount process.
ROUNDS ?= 100
# How often `make soak` cuts the power of a disk.
CUTS   ?= 500
# What has to make everything durable in `make soak`: sync, syncfs, both, fsync-root.
SYNC   ?= both
# How long `make soak` runs random sequences against the reference model, and crashes them, then faults of the device,
# then short sequences by number, in seconds each.
CAMPAIGN ?= 300
# How long `make soak` fuzzes decoders, log replay and whole images, and then messages of the kernel, in seconds each.
FUZZ ?= 120
# The page in whose table `make soak` and `make shuttle` record what they did; empty for none.
RECORD ?= docs/testing.md
record = $(if $(RECORD),--record $(abspath $(RECORD)))

# How long `make trace-soak` records.
MINUTES ?= 60

bindir  = $(DESTDIR)$(PREFIX)/bin
sbindir = $(DESTDIR)$(PREFIX)/sbin
# Debuggers and backtraces look for the debug information of a program here.
debugdir = $(bindir)/.debug
mandir  = $(DESTDIR)$(PREFIX)/share/man
bashdir = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
zshdir  = $(DESTDIR)$(PREFIX)/share/zsh/site-functions
fishdir = $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
# mount(8) looks for its helpers in /sbin and nowhere else.
mount_helper = $(DESTDIR)/sbin/mount.cffs
# For what is mounted, by its type in the table of mounts.
mounted = mount.fuse mount.fuseblk umount.fuse umount.fuseblk
mounted_helpers = $(mounted:%=$(DESTDIR)/sbin/%.cffs)
# The names of the program, each with .cffs.
names = mkfs fsck mount $(mounted)

.PHONY: help build demo test lint package soak shuttle conformance bench bench-peers bench-trace trace-soak report install uninstall clean

help:
	@echo 'make demo         format, mount, copy a real tree in, kill, recover, compare; a snapshot and the way back'
	@echo 'make test         lint and all tests'
	@echo 'make bench        benchmarks of the library'
	@echo 'make bench-peers  cffs, ext4, xfs and btrfs over one slow disk (root)'
	@echo 'make bench-trace  what tracing costs while it is off, and on: the library, and programs on a mount (root)'
	@echo 'make trace-soak   the memory of an hour of tracing (MINUTES)'
	@echo 'make shuttle      the locks in thousands of orders of the threads'
	@echo 'make soak         random sequences, crashes and faults for CAMPAIGN seconds each; then kill the'
	@echo '                  mount process ROUNDS times under load, and cut the power CUTS times (root)'
	@echo "make report       the papers' experiments on simulated disks, as one HTML page"
	@echo 'make conformance  test suites, stress and real programs on a mounted file system (root; an hour)'
	@echo 'make package      the crates as they would be published, built from their packages'
	@echo 'make install      to PREFIX=$(PREFIX), DESTDIR honoured'

build:
	$(CARGO) build --release --workspace

demo:
	scripts/setup.sh demo
	$(CARGO) build --release -p cffs-cli -p cffs-lab
	scripts/demo.sh

# Tests say so when they miss root, /dev/fuse or a program; with CFFS_REQUIRE=root,fuse they fail. They come last, so that
# their own closing lines end the output.
test:
	scripts/setup.sh
	$(MAKE) --no-print-directory lint
	$(CARGO) test --workspace

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

# The crates that can be published, each built as it would be from the registry.
package:
	$(CARGO) package --workspace --exclude cffs-disk --exclude cffs-lab --exclude cffs-record --exclude cffs-sim --exclude cffs-testenv --exclude cffs-tidy

soak:
	scripts/setup.sh
	$(CARGO) build --release -p cffs-cli -p cffs-lab
	$(CARGO) run --release -p cffs-sim --bin campaign -- --seconds $(CAMPAIGN) --seed $$(date +%s) $(record)
	$(CARGO) run --release -p cffs-sim --bin campaign -- --streams --seconds $(CAMPAIGN) --seed $$(date +%s) $(record)
	$(CARGO) run --release -p cffs-sim --bin campaign -- --faults --seconds $(CAMPAIGN) --seed $$(date +%s) $(record)
	$(CARGO) run --release -p cffs-sim --bin campaign -- --faults --streams --seconds $(CAMPAIGN) --seed $$(date +%s) $(record)
	$(CARGO) run --release -p cffs-sim --bin campaign -- --bounded 2 --seconds $(CAMPAIGN) $(record)
	$(CARGO) run --profile fuzz -p cffs-sim --bin fuzz -- --seconds $(FUZZ) --seed $$(date +%s) $(record)
	CFFS_FUZZ_SECONDS=$(FUZZ) CFFS_FUZZ_SEED=$$(date +%s) CFFS_RECORD=$(if $(RECORD),$(abspath $(RECORD))) $(CARGO) test --profile fuzz -p cffs-fuse --lib fuzz
	target/release/cffs-lab soak --rounds $(ROUNDS) $(record) $(ARGS)
	target/release/cffs-lab powercut --rounds $(CUTS) --seed $$(date +%s) $(record)
	target/release/cffs-lab synccut --rounds $(CUTS) --seed $$(date +%s) --how $(SYNC) $(record)
	target/release/cffs-lab umountcopy --rounds $(CUTS) --seed $$(date +%s) $(record)

# Everything is compiled once more, with other locks.
shuttle:
	CFFS_RECORD=$(abspath $(RECORD)) RUSTFLAGS="--cfg shuttle" $(CARGO) test --target-dir target/shuttle -p cffs-sim --test shuttle

# pjdfstest, fsx, fio, a stress of eight processes, programs with the checks they bring, and a server of NFS.
conformance:
	scripts/setup.sh conformance
	$(CARGO) build --release -p cffs-cli -p cffs-lab
	for suite in pjdfstest fio fill programs fsx stress; do \
	    target/release/cffs-lab conformance $$suite || failed="$$failed $$suite"; done; \
	    target/release/cffs-lab nfs --files 20000 --restarts 20 $(record) || failed="$$failed nfs"; \
	    if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

bench:
	$(CARGO) bench --workspace

# Twice compiled: cffs_untraced leaves out every place that could record. Cargo names the benchmarks' files by a hash, so the newest
# is the one.
untraced = target/untraced
bench-trace:
	$(CARGO) build --release -p cffs-cli -p cffs-lab
	$(CARGO) bench --no-run -p cffs --bench library
	RUSTFLAGS="--cfg cffs_untraced" $(CARGO) build --target-dir $(untraced) --release -p cffs-cli
	RUSTFLAGS="--cfg cffs_untraced" $(CARGO) bench --target-dir $(untraced) --no-run -p cffs --bench library
	$(CARGO) bench -p cffs --bench library -- trace \
	    $$(ls -t $(abspath $(untraced))/release/deps/library-* | grep -v '\.d$$' | head -1)
	target/release/cffs-lab tracecost --untraced $(untraced)/release/cffs $(ARGS)

# The mount's and the recorder's memory is printed each minute.
trace-soak:
	$(CARGO) build --release -p cffs-cli
	scripts/trace-soak.sh $(MINUTES)

bench-peers:
	scripts/setup.sh peers
	$(CARGO) build --release -p cffs-cli -p cffs-lab
	target/release/cffs-lab peers $(ARGS)

# The papers' experiments, from nothing to one page; as root also today's file systems on the same disks.
report:
	scripts/setup.sh peers
	$(CARGO) build --release -p cffs-cli -p cffs-lab
	target/release/cffs-lab run --all
	target/release/cffs-lab report --record docs/lab.md

# Builds only what was never built: `make build` as yourself, `make install` as root.
install: target/release/cffs
	install -d $(bindir) $(sbindir) $(debugdir)
	$(OBJCOPY) --only-keep-debug --compress-debug-sections target/release/cffs $(debugdir)/cffs.debug
	chmod 644 $(debugdir)/cffs.debug
	$(OBJCOPY) --strip-all --add-gnu-debuglink=$(debugdir)/cffs.debug target/release/cffs $(bindir)/cffs.new
	chmod 755 $(bindir)/cffs.new
	mv -f $(bindir)/cffs.new $(bindir)/cffs
	for name in $(names); do \
	    ln -sf ../bin/cffs $(sbindir)/$$name.cffs || exit 1; done
	rm -rf target/generated
	target/release/cffs generate man target/generated/man
	target/release/cffs generate completions target/generated/completions
	for section in 1 5 8; do \
	    for page in target/generated/man/*.$$section; do \
	        [ -e "$$page" ] || continue; \
	        install -D -m 644 "$$page" $(mandir)/man$$section/$${page##*/} || exit 1; done; done
	install -D -m 644 target/generated/completions/cffs.bash $(bashdir)/cffs
	install -D -m 644 target/generated/completions/_cffs $(zshdir)/_cffs
	install -D -m 644 target/generated/completions/cffs.fish $(fishdir)/cffs.fish
	@case '$(PREFIX)' in \
	    /usr) ;; \
	    /usr/*|/opt/*) \
	        if mkdir -p '$(DESTDIR)/sbin' && \
	            (for helper in $(mount_helper) $(mounted_helpers); do \
	                ln -sf '$(PREFIX)/bin/cffs' "$$helper" || exit 1; done); then \
	            echo 'mount -t cffs: $(mount_helper)'; \
	        else \
	            echo 'note: cannot write $(mount_helper); "mount -t cffs" needs it'; fi ;; \
	    *) echo 'note: for "mount -t cffs", link $(PREFIX)/bin/cffs to /sbin/mount.cffs' ;; \
	esac

target/release/cffs:
	$(CARGO) build --release -p cffs-cli

uninstall:
	rm -f $(bindir)/cffs $(debugdir)/cffs.debug $(names:%=$(sbindir)/%.cffs)
	rm -f $(mandir)/man?/cffs*.[158] $(mandir)/man8/*.cffs.8
	rm -f $(bashdir)/cffs $(zshdir)/_cffs $(fishdir)/cffs.fish
	-rmdir --ignore-fail-on-non-empty $(debugdir)
	if [ "$$(readlink '$(mount_helper)')" = '$(PREFIX)/bin/cffs' ]; then \
	    rm -f $(mount_helper) $(mounted_helpers); fi

clean:
	$(CARGO) clean
