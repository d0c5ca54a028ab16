//! cffs, ext4, xfs and btrfs side by side: real mounts, one disk model, every
//! workload on all of them in one run, requests counted by the disk itself.

mod disk;
mod peer;
mod report;
mod traced;
mod work;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::cleanup::{Cleanup, Guard};
use crate::process::find_program;
use crate::tree;
use peer::{CffsSettings, Peer};
use work::{Inputs, Workload};

/// Arguments of `cffs-lab peers`.
#[derive(clap::Args)]
pub struct Args {
    /// File systems to run, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "ext4,xfs,btrfs,cffs")]
    only: Vec<Peer>,
    /// Workloads to run, with those they need; all when none is given
    #[arg(long, value_delimiter = ',')]
    workload: Vec<Workload>,
    /// Small files, 100 to a directory
    #[arg(long, default_value_t = 10_000)]
    files: u64,
    /// Bytes in each of them (the targets are for 1 KB)
    #[arg(long, default_value_t = 1024)]
    file_bytes: usize,
    /// Files that are fsynced one by one
    #[arg(long, default_value_t = 2_000)]
    fsync_files: u64,
    /// How often the files that are fsynced are made, on new disks, the file systems taking turns; the median counts.
    /// They wait for one request after the other, so a few percent decide, which is less than a machine drifts in minutes
    #[arg(long, default_value_t = 5)]
    fsync_rounds: u64,
    /// Files of the real tree
    #[arg(long, default_value_t = 15_000)]
    tree_files: usize,
    /// A tenth of everything: a look, not a measurement
    #[arg(long)]
    quick: bool,
    /// Time each request takes
    #[arg(long, default_value = "1ms")]
    delay: String,
    /// Size of the memory disk
    #[arg(long, default_value = "4G")]
    size: String,
    /// The cffs program
    #[arg(long, default_value = "target/release/cffs")]
    cffs: PathBuf,
    /// Further words for `cffs mkfs`, separated by blanks
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    cffs_mkfs: String,
    /// Options of `cffs mount -o`
    #[arg(long, default_value = "cache=256M")]
    cffs_options: String,
    /// Give cffs a loop device too. By itself it opens the FUSE file, to which
    /// the kernel lets only one direct write through at a time
    #[arg(long)]
    cffs_loop: bool,
    /// Record cffs with `cffs trace` during each workload, and compare the requests of the trace with those of the disk. The
    /// recording costs a little time
    #[arg(long)]
    trace: bool,
    /// Also write everything measured to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Runs the subcommand.
///
/// # Errors
/// When the machine cannot run it at all, or a workload fails.
pub fn run(args: &Args) -> Result<ExitCode> {
    require_tools()?;
    let cffs = CffsSettings {
        program: std::path::absolute(&args.cffs)?,
        mkfs: args.cffs_mkfs.split_whitespace().map(str::to_string).collect(),
        options: args.cffs_options.clone(),
        over_loop: args.cffs_loop,
    };
    let (peers, skipped) = present(&args.only, &cffs.program);
    if peers.is_empty() {
        bail!("no file system left to measure");
    }
    let plan = Workload::plan(&args.workload);
    let divisor = if args.quick { 10 } else { 1 };

    let dir = tempfile::Builder::new().prefix("cffs-lab-archive-").tempdir()?.keep();
    let _dir_guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    let inputs = prepare_inputs(args, divisor, &dir, &plan)?;

    let _uring = allow_uring();
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    let mut cffs_peak_memory = None;
    for &peer in &peers {
        eprintln!("{peer}:");
        match work::run_peer(peer, &cffs, &inputs, &plan, &mut rows) {
            Ok(peak) => cffs_peak_memory = cffs_peak_memory.max(peak),
            // One that fails does not take the others' figures with it.
            Err(error) => {
                eprintln!("FAILED: {error:#}");
                failed.push((peer, format!("{error:#}")));
            }
        }
    }
    let mut again = Vec::new();
    let rounds = if plan.contains(&Workload::Fsync) && !args.quick { args.fsync_rounds } else { 1 };
    for round in 1..rounds {
        eprintln!("{}, round {} of {rounds}:", Workload::Fsync.title(), round + 1);
        for &peer in peers.iter().filter(|p| !failed.iter().any(|(f, _)| f == *p)) {
            work::run_peer(peer, &cffs, &inputs, &[Workload::Fsync], &mut again)?;
        }
    }
    report::take_medians(&mut rows, again);
    print!("{}", report::tables(&rows, &plan));
    if rounds > 1 {
        println!("({}: the median of {rounds} rounds in turns, on new disks)", Workload::Fsync.title());
    }
    let (comparison, same) = report::traced(&rows);
    print!("{comparison}");
    let verdicts = report::verdicts(&rows);
    let report = report::Report {
        delay: inputs.delay,
        tree_bytes: inputs.selection.bytes,
        rows,
        verdicts,
        skipped,
        cffs_peak_memory,
    };
    print_verdicts(&report, peers.contains(&Peer::Cffs), &failed);
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::from(u8::from(!failed.is_empty() || !same)))
}

/// A file system and why it was left out, or failed.
type Excluded = (Peer, String);

/// The file systems that can be measured here, and the others, which are named loudly.
fn present(wanted: &[Peer], cffs: &Path) -> (Vec<Peer>, Vec<Excluded>) {
    let (mut peers, mut skipped) = (Vec::new(), Vec::new());
    for &peer in wanted {
        match peer.missing(cffs) {
            None => peers.push(peer),
            Some(why) => {
                eprintln!("SKIPPED: {peer}: {why}");
                skipped.push((peer, why));
            }
        }
    }
    (peers, skipped)
}

fn print_verdicts(report: &report::Report, with_cffs: bool, failed: &[Excluded]) {
    if with_cffs {
        print!("{}", report::verdict_table(&report.verdicts));
        if let Some(peak) = report.cffs_peak_memory {
            println!("peak memory of the cffs mount process: {} MiB", peak >> 20);
        }
    }
    for (peer, why) in &report.skipped {
        println!("SKIPPED {peer}: {why}");
    }
    for (peer, why) in failed {
        println!("FAILED {peer}: {why}");
    }
}

/// Lets FUSE use io_uring for as long as the guard is kept, which cffs then does by itself; nothing where the kernel does not
/// know of it. Nobody else here asks for it.
fn allow_uring() -> Option<Guard> {
    let setting = Path::new("/sys/module/fuse/parameters/enable_uring");
    let before = std::fs::read_to_string(setting).ok()?.trim().to_owned();
    if before == "Y" {
        return None;
    }
    let guard = Guard::new(Cleanup::Set(setting.to_owned(), before));
    match std::fs::write(setting, "Y") {
        Ok(()) => {
            eprintln!("{} set for this run", setting.display());
            Some(guard)
        }
        Err(_) => {
            guard.disarm();
            None
        }
    }
}

fn prepare_inputs(args: &Args, divisor: u64, dir: &Path, plan: &[Workload]) -> Result<Inputs> {
    let archive = dir.join("tree.tar");
    let mut selection = tree::Selection::default();
    if plan.contains(&Workload::Unpack) {
        selection = tree::select(args.tree_files / divisor as usize);
        tree::pack(&selection, &archive)?;
        eprintln!(
            "tree: {} files, {} symbolic links, {} directories, {:.1} MB",
            selection.files,
            selection.symlinks,
            selection.dirs,
            selection.bytes as f64 / 1e6
        );
    }
    Ok(Inputs {
        trace: args.trace,
        files: (args.files / divisor).max(1),
        file_bytes: args.file_bytes,
        fsync_files: (args.fsync_files / divisor).max(1),
        archive,
        selection,
        size: args.size.clone(),
        delay: args.delay.clone(),
    })
}

/// The disk is made of these; without them nothing can be measured.
fn require_tools() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("mounting and dropping caches needs root");
    }
    if !Path::new("/dev/fuse").exists() {
        bail!("there is no /dev/fuse here, and the delaying disk is a FUSE file: nothing measured");
    }
    for (tool, package) in [("nbdkit", "nbdkit"), ("nbdfuse", "libnbd-bin or nbdfuse")] {
        if find_program(tool).is_none() {
            bail!("{tool} is not installed (Debian package {package}): nothing measured");
        }
    }
    Ok(())
}
