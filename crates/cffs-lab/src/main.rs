//! `cffs-lab`: the experiments that set cffs beside other file systems, and
//! the tools that the demonstration and the soak test are made of.
//!
//! Comparisons live in this crate alone, so that nobody who builds cffs itself
//! compiles them.

mod cache_check;
mod checktime;
mod cleanup;
mod compare;
mod conformance;
mod control;
mod experiments;
mod latency;
mod layout;
mod mount_table;
mod mounted;
mod nfs;
mod peer_harness;
mod peers;
mod powercut;
mod process;
mod quota;
mod random;
mod readall;
mod recovery;
mod regroups;
mod replay;
mod served;
mod server;
mod snapshots;
mod soak;
mod synccut;
mod trace_cost;
mod tree;
mod umountcopy;
mod watched;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Experiments for the cffs file system.
#[derive(Parser)]
#[command(name = "cffs-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run cffs, ext4, xfs and btrfs through real mounts over one delaying disk
    Peers(peers::Args),
    /// Name the papers' experiments
    List,
    /// Run experiments on simulated disks, in virtual time
    Run(experiments::RunArgs),
    /// Make one page of all results
    Report(experiments::ReportArgs),
    /// A simulated disk as a file that any program can use
    Disk(served::DiskArgs),
    /// How the files of a cffs image or of a mounted file system lie, and a map
    Layout(layout::LayoutArgs),
    /// What a recorded workload would cost on other disks, with other settings, and in other file systems
    Replay(replay::ReplayArgs),
    /// Compare two trees strictly: bytes, modes, owners, times, links
    Compare(compare::Args),
    /// Make a tree of real files found on this machine
    Tree(tree::Args),
    /// Read every file of a tree once, in one thread, and say how fast
    Readall(readall::Args),
    /// Test suites, stress and real programs on a mounted cffs
    Conformance(conformance::Args),
    /// Kill the mount process again and again under load, and check
    Soak(soak::Args),
    /// Cut the power of the disk under a mount again and again, and look for what was promised
    Powercut(powercut::Args),
    /// Cut the power of the disk after sync(2) and syncfs(2), and look for what was written before them
    Synccut(synccut::Args),
    /// Unmount by the system call alone, copy the image at once, and look whether the copy is clean and complete
    Umountcopy(umountcopy::Args),
    /// Export a mount by NFS, restart server and mount under load, and look whether handles and files stay
    Nfs(nfs::Args),
    /// Time of the recovery at mount, for devices of all sizes with the same full log
    Recovery(recovery::Args),
    /// Time and requests of a full check, beside e2fsck and xfs_repair on the same tree
    Checktime(checktime::Args),
    /// Make, look into and delete many snapshots of many files on a log disk: time and space
    Snapshots(snapshots::Args),
    /// How long programs wait while another part of the mount is regrouped (root)
    Latency(latency::Args),
    /// What tracing costs programs on a mount, off and on, in turns
    Tracecost(trace_cost::Args),
    /// Kill the mount process while several users work against their quotas, and add up what they use
    Quota(quota::Args),
    /// The work of one user, for `quota`
    #[command(hide = true)]
    QuotaLoad(quota::LoadArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    cleanup::install_signal_handler();
    let outcome = match cli.command {
        Command::Peers(args) => peers::run(&args),
        Command::List => {
            experiments::list();
            Ok(ExitCode::SUCCESS)
        }
        Command::Run(args) => experiments::run_named(&args),
        Command::Report(args) => experiments::write_report(&args),
        Command::Disk(args) => served::run_disk(&args),
        Command::Layout(args) => layout::run_layout(&args),
        Command::Replay(args) => replay::run_replay(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Tree(args) => tree::run(&args),
        Command::Readall(args) => readall::run(&args),
        Command::Conformance(args) => conformance::run(&args),
        Command::Soak(args) => soak::run_soak(&args),
        Command::Powercut(args) => powercut::run_campaign(&args),
        Command::Synccut(args) => synccut::run_campaign(&args),
        Command::Umountcopy(args) => umountcopy::run_campaign(&args),
        Command::Nfs(args) => nfs::run_campaign(&args),
        Command::Recovery(args) => recovery::run_recovery(&args),
        Command::Checktime(args) => checktime::run_checktime(&args),
        Command::Snapshots(args) => snapshots::run(&args),
        Command::Latency(args) => latency::run(&args),
        Command::Tracecost(args) => trace_cost::run(&args),
        Command::Quota(args) => quota::run_campaign(&args),
        Command::QuotaLoad(args) => quota::run_load(&args),
    };
    cleanup::leave_to_signal_handler();
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cffs-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}
