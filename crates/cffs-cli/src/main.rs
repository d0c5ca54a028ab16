//! The `cffs` program: make, mount, check and look into cffs images.
//!
//! One program under several names: called as `mkfs.cffs`, `fsck.cffs`, `mount.cffs`, `mount.fuseblk.cffs`,
//! `umount.fuseblk.cffs` and the like it is that subcommand, as mkfs(8), fsck(8), mount(8) and umount(8) expect.

mod beside;
mod cat;
mod cli;
mod colocate;
mod compression;
mod convert;
mod damage_as_zeros;
mod device;
mod disk;
mod disks_below;
mod dump;
mod exit;
mod export;
mod fsck;
mod fsck_log_disk;
mod generate;
mod grow;
mod image;
mod import;
mod info;
mod layout;
mod log;
mod log_args;
mod log_layout;
mod lost_files;
mod ls;
mod member_search;
mod members;
mod metadata_image;
mod mkfs;
mod mkfs_volume;
mod mount;
mod mount_options;
mod mount_or_image;
mod overwrite;
mod progress;
mod prometheus;
mod quota;
mod regroup;
mod remount;
mod rm;
mod scrape;
mod scrub;
mod second_place;
mod signature;
mod size;
mod snapshot;
mod snapshot_target;
mod snapshot_transfer;
mod stat;
mod stats;
mod text;
mod together;
mod top;
mod trace;
mod trim;
mod tune;
mod umount;
mod unmount_wait;
mod volume;
mod xattr;

use std::process::ExitCode;

/// Inodes and names are many small allocations; this allocator takes a tenth off the time of a creation.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The allocator asks for huge pages. A cache is touched piece by piece, a huge page is cleared as a whole, by every
    // thread for every size that it allocates: a mount has twice the memory then, and where the host has to find that memory
    // first, a creation takes two and a half times as long. Not being able to switch them off is no reason to do nothing.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    ExitCode::from(cli::run(std::env::args_os().collect()))
}
