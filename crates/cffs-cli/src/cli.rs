//! The command line: subcommands, the names that stand for one of them, and what happens with errors.

use crate::{
    cat, colocate, convert, dump, exit, export, fsck, generate, grow, import, info, layout, ls, metadata_image, mkfs,
    mount, quota, regroup, rm, scrub, snapshot, stat, stats, together, top, trace, trim, tune, umount, volume,
};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Make, mount, check and look into cffs images.
///
/// cffs is a file system for many small files: it puts inodes into directory entries and the files of a directory next
/// to each other, and moves them as one unit.
#[derive(Parser)]
#[command(name = "cffs", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Mkfs(mkfs::MkfsArgs),
    Mount(mount::MountArgs),
    Umount(umount::UmountArgs),
    Fsck(fsck::FsckArgs),
    Info(info::InfoArgs),
    Stats(stats::StatsArgs),
    Tune(tune::TuneArgs),
    Grow(grow::GrowArgs),
    Trim(trim::TrimArgs),
    Import(import::ImportArgs),
    Export(export::ExportArgs),
    Convert(convert::ConvertArgs),
    Layout(layout::LayoutArgs),
    Ls(ls::LsArgs),
    Cat(cat::CatArgs),
    Stat(stat::StatArgs),
    Rm(rm::RmArgs),
    Quota(quota::QuotaArgs),
    Dump(dump::DumpArgs),
    Image(metadata_image::ImageArgs),
    Scrub(scrub::ScrubArgs),
    Snapshot(snapshot::SnapshotArgs),
    Volume(volume::VolumeArgs),
    Regroup(regroup::RegroupArgs),
    Colocate(colocate::ColocateArgs),
    Together(together::TogetherArgs),
    Trace(trace::TraceArgs),
    Top(top::TopArgs),
    Generate(generate::GenerateArgs),
}

/// Exit codes of one subcommand, where the error itself has none.
struct Codes {
    usage: u8,
    failure: u8,
}

fn codes(subcommand: &str) -> Codes {
    match subcommand {
        "mkfs" => Codes { usage: 1, failure: 1 },
        "mount" | "umount" => Codes { usage: exit::mount::USAGE, failure: exit::mount::FAILED },
        "fsck" | "scrub" | "regroup" => Codes { usage: exit::fsck::USAGE, failure: exit::fsck::OPERATIONAL },
        _ => Codes { usage: 2, failure: 1 },
    }
}

/// The name under which the program was called, and the subcommand it stands for.
const NAMES: [(&str, &str); 7] = [
    ("mkfs.cffs", "mkfs"),
    ("fsck.cffs", "fsck"),
    ("mount.cffs", "mount"),
    // What mount(8) looks for when it finds a mount in the table of mounts: to mount it again with other options.
    ("mount.fuse.cffs", "mount"),
    ("mount.fuseblk.cffs", "mount"),
    ("umount.fuse.cffs", "umount"),
    ("umount.fuseblk.cffs", "umount"),
];

/// The definition of the command that a name stands for, for parsing and for its man page.
fn named_command(name: &'static str) -> Option<clap::Command> {
    let command = clap::Command::new(name).version(env!("CARGO_PKG_VERSION"));
    Some(match name {
        "mkfs.cffs" => mkfs::MkfsArgs::augment_args(command),
        "fsck.cffs" => fsck::FsckArgs::augment_args(command).disable_version_flag(true),
        "mount.cffs" | "mount.fuse.cffs" | "mount.fuseblk.cffs" => mount::HelperArgs::augment_args(command),
        "umount.fuse.cffs" | "umount.fuseblk.cffs" => umount::UmountArgs::augment_args(command),
        _ => return None,
    })
}

/// The whole program, and the names that have a page and a meaning of their own.
fn definitions() -> generate::Definitions {
    let named = NAMES.iter().filter_map(|(name, _)| named_command(name).map(|command| (*name, command)));
    generate::Definitions { program: Cli::command(), named: named.collect() }
}

fn parse<T: FromArgMatches>(command: clap::Command, args: Vec<OsString>) -> Result<T, clap::Error> {
    T::from_arg_matches(&command.try_get_matches_from(args)?)
}

/// fsck(8) hands the file descriptor for its progress bar to `-C` without a space, which no option parser takes for an
/// optional value; there is no use for the number here.
fn without_progress_descriptor(args: Vec<OsString>) -> Vec<OsString> {
    let is_descriptor = |a: &OsStr| {
        let digits = a.to_str().and_then(|a| a.strip_prefix("-C"));
        digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
    };
    args.into_iter().map(|a| if is_descriptor(&a) { "-C".into() } else { a }).collect()
}

/// Runs the program with these arguments (the first is the name it was called by); returns the exit code.
pub fn run(mut args: Vec<OsString>) -> u8 {
    let called = args.first().map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or("cffs");
    let named = NAMES.iter().find(|(name, _)| *name == called);
    let subcommand = match named {
        Some((_, subcommand)) => (*subcommand).to_owned(),
        None => args.get(1).and_then(|a| a.to_str()).unwrap_or("").to_owned(),
    };
    let codes = codes(&subcommand);
    if subcommand == "fsck" {
        args = without_progress_descriptor(args);
    }
    let parsed = match named {
        Some((name, _)) => {
            let command = named_command(name).unwrap_or_else(Cli::command);
            match subcommand.as_str() {
                "mkfs" => parse(command, args).map(Command::Mkfs),
                "fsck" => parse(command, args).map(Command::Fsck),
                "umount" => parse(command, args).map(Command::Umount),
                _ => parse(command, args).map(|helper: mount::HelperArgs| Command::Mount(helper.into())),
            }
        }
        None => Cli::try_parse_from(args).map(|cli| cli.command),
    };
    let command = match parsed {
        Ok(command) => command,
        Err(e) => {
            // Nobody may be there to read it, which changes nothing.
            let _ = e.print();
            let told = matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if told { 0 } else { codes.usage };
        }
    };
    let result = match command {
        Command::Mkfs(a) => mkfs::run(&a),
        Command::Mount(a) => mount::run(&a),
        Command::Umount(a) => umount::run(&a),
        Command::Fsck(a) => fsck::run(&a),
        Command::Info(a) => info::run(&a),
        Command::Stats(a) => stats::run(&a),
        Command::Tune(a) => tune::run(&a),
        Command::Grow(a) => grow::run(&a),
        Command::Trim(a) => trim::run(&a),
        Command::Import(a) => import::run(&a),
        Command::Export(a) => export::run(&a),
        Command::Convert(a) => convert::run(&a),
        Command::Layout(a) => layout::run(&a),
        Command::Ls(a) => ls::run(&a),
        Command::Cat(a) => cat::run(&a),
        Command::Stat(a) => stat::run(&a),
        Command::Rm(a) => rm::run(&a),
        Command::Quota(a) => quota::run(&a),
        Command::Dump(a) => dump::run(&a),
        Command::Image(a) => metadata_image::run(&a),
        Command::Scrub(a) => scrub::run(&a),
        Command::Snapshot(a) => snapshot::run(&a),
        Command::Volume(a) => volume::run(&a),
        Command::Regroup(a) => regroup::run(&a),
        Command::Colocate(a) => colocate::run(&a),
        Command::Together(a) => together::run(&a),
        Command::Trace(a) => trace::run(&a),
        Command::Top(a) => top::run(&a),
        Command::Generate(a) => generate::run(&a, &definitions()),
    };
    match result {
        Ok(code) => code,
        Err(e) if exit::is_broken_pipe(&e) => codes.failure,
        Err(e) => {
            eprintln!("cffs: {e:#}");
            exit::code_of(&e).unwrap_or(codes.failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
        for name in NAMES.map(|(name, _)| name) {
            named_command(name).expect("defined").debug_assert();
        }
    }

    #[test]
    fn progress_descriptor_is_left_out() {
        let args = ["fsck.cffs", "-C0", "-a", "image-C1", "-C"].map(OsString::from).to_vec();
        let left = without_progress_descriptor(args);
        assert_eq!(left, ["fsck.cffs", "-C", "-a", "image-C1", "-C"].map(OsString::from));
    }
}
