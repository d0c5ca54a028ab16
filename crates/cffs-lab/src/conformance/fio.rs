//! fio with verification: what was written in random places and sizes is read
//! back, and each piece's checksum compared.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::check::{Check, Format, missing};
use super::job::{Job, command};
use super::test_mount::TestMount;
use crate::process::find_program;

/// Arguments of `cffs-lab conformance fio`.
#[derive(clap::Args)]
pub struct Args {
    /// MiB of each file; each way of doing I/O has four
    #[arg(long, default_value_t = 256)]
    mib: u32,
}

const UNALIGNED: &str = "unaligned";

/// The ways of doing I/O.
const WAYS: [(&str, &[&str]); 5] = [
    ("buffered", &["--ioengine=psync", "--bsrange=512-256k", "--blockalign=512"]),
    (UNALIGNED, &["--ioengine=psync", "--bsrange=1k-100k", "--bs_unaligned=1"]),
    ("direct", &["--ioengine=libaio", "--iodepth=16", "--direct=1", "--bsrange=4k-1m", "--blockalign=4k"]),
    ("mmap", &["--ioengine=mmap", "--bsrange=512-128k", "--blockalign=512"]),
    ("fsync", &["--ioengine=psync", "--bsrange=512-64k", "--blockalign=512", "--fsync=16", "--size=16m"]),
];

/// One check for each way.
pub fn checks(args: &Args) -> Vec<Check<'_>> {
    let check = |(name, way): (&'static str, &'static [&'static str])| Check {
        name: format!("fio-{name}"),
        size: "4G",
        formats: vec![Format::Default],
        run: Box::new(move |job: &Job, mount: &mut TestMount| one(args, name, way, job, mount)),
    };
    WAYS.into_iter().map(check).collect()
}

fn one(args: &Args, name: &str, way: &[&str], job: &Job, mount: &mut TestMount) -> Result<String> {
    if find_program("fio").is_none() {
        return missing("fio is not installed (package fio)");
    }
    let fio = |verify_only: bool| {
        let mut fio = command("fio", ["--name=job", "--rw=randwrite", "--verify=crc32c", "--verify_fatal=1"]);
        fio.args(["--numjobs=4", "--randseed=7", "--allrandrepeat=1", "--fallocate=none", "--group_reporting"]);
        fio.arg(format!("--size={}m", args.mib)).args(way);
        fio.arg(format!("--directory={}", mount.root().display()));
        // Without the states of jobs, which fio leaves in the current directory.
        fio.arg("--verify_state_save=0").current_dir("/");
        if verify_only {
            fio.arg("--verify_only=1");
        }
        fio
    };
    let limit = Duration::from_secs(3600);
    job.run(&mut fio(false), limit)?;
    let mut again = fio(true);
    let before = hashes(mount.root())?;
    ensure!(before.len() == 4, "fio has made {} files, not 4", before.len());
    // Once more from a cold cache.
    mount.again()?;
    ensure!(hashes(mount.root())? == before, "the files changed by an unmount");
    // Unaligned writes overlap, and fio without the record of its first run then takes the older ones for wrong, on any
    // file system.
    if name != UNALIGNED {
        job.run(&mut again, limit)?;
    }
    Ok(format!("4 files written and verified ({name}), and once more after a cold mount"))
}

/// What is in each file, by name.
fn hashes(dir: &Path) -> Result<BTreeMap<OsString, u64>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let mut file = File::open(entry.path())?;
        let mut hasher = DefaultHasher::new();
        let mut piece = vec![0; 1 << 20];
        loop {
            let len = file.read(&mut piece)?;
            if len == 0 {
                break;
            }
            hasher.write(&piece[..len]);
        }
        all.insert(entry.file_name(), hasher.finish());
    }
    Ok(all)
}
