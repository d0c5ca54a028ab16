//! fio with verification: what was written in random places and sizes is read
//! back, and each piece's checksum compared.

use std::time::Duration;

use anyhow::Result;

use super::job::{Job, command};
use super::site::Site;
use super::{Check, Format, missing};
use crate::process::find_program;

/// Arguments of `cffs-lab conformance fio`.
#[derive(clap::Args)]
pub struct Args {
    /// MiB of each file; each way of doing I/O has four
    #[arg(long, default_value_t = 256)]
    mib: u32,
}

/// The ways of doing I/O.
const WAYS: [(&str, &[&str]); 5] = [
    ("buffered", &["--ioengine=psync", "--bsrange=512-256k", "--blockalign=512"]),
    ("unaligned", &["--ioengine=psync", "--bsrange=1k-100k", "--bs_unaligned=1"]),
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
        run: Box::new(move |job: &Job, site: &mut Site| one(args, name, way, job, site)),
    };
    WAYS.into_iter().map(check).collect()
}

fn one(args: &Args, name: &str, way: &[&str], job: &Job, site: &mut Site) -> Result<String> {
    if find_program("fio").is_none() {
        return missing("fio is not installed (package fio)");
    }
    let fio = |verify_only: bool| {
        let mut fio = command("fio", ["--name=job", "--rw=randwrite", "--verify=crc32c", "--verify_fatal=1"]);
        fio.args(["--numjobs=4", "--randseed=7", "--allrandrepeat=1", "--fallocate=none", "--group_reporting"]);
        fio.arg(format!("--size={}m", args.mib)).args(way);
        fio.arg(format!("--directory={}", site.root().display()));
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
    // Once more from a cold cache.
    site.again()?;
    job.run(&mut again, limit)?;
    Ok(format!("4 files written and verified ({name}), and once more after a cold mount"))
}
