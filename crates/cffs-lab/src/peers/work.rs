//! The workloads. Each starts from a cold mount and does one thing, in one
//! thread, with plain system calls or with the program people use for it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;

use super::disk::Counters;
use super::peer::{Peer, Session};
use super::traced::Recorder;
use crate::cache_check::{self, Returned};
use crate::process::run_command;
use crate::tree::Selection;

/// Files in one directory of the small-file workloads.
const PER_DIRECTORY: u64 = 100;
/// A string that is in no file.
const NEEDLE: &str = "no-file-has-this-7c1f5d0e9b";
const LIMIT: Duration = Duration::from_secs(3600);

/// One measured thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Create the small files, then sync
    Create,
    /// Read every small file, cold, in the order of creation
    Read,
    /// Overwrite every small file in place, cold, then sync
    Overwrite,
    /// `find` over the small files with a stat of each, cold
    Stat,
    /// Create files and fsync each before the next
    Fsync,
    /// Remove the small files, cold, then sync
    Remove,
    /// Unpack an archive of real files, then sync
    Unpack,
    /// `grep -r` for a string that is not there, cold
    Grep,
    /// `find`, names only, cold
    Find,
    /// `find -ls`, a stat of each, cold
    FindLs,
    /// `git add` and `git commit` of the tree, then sync
    GitAdd,
    /// `git status`, cold
    GitStatus,
    /// `rm -r` of the tree, cold, then sync
    RmR,
}

impl Workload {
    /// What it is called in tables.
    pub fn title(self) -> &'static str {
        match self {
            Workload::Create => "create + sync",
            Workload::Read => "cold read",
            Workload::Overwrite => "cold overwrite + sync",
            Workload::Stat => "cold find with stat",
            Workload::Fsync => "create + fsync of each",
            Workload::Remove => "cold remove + sync",
            Workload::Unpack => "tree: unpack + sync",
            Workload::Grep => "tree: cold grep -r",
            Workload::Find => "tree: cold find",
            Workload::FindLs => "tree: cold find -ls",
            Workload::GitAdd => "tree: git add + commit + sync",
            Workload::GitStatus => "tree: cold git status",
            Workload::RmR => "tree: cold rm -r + sync",
        }
    }

    /// Whether it works on the real tree, not on the small files.
    pub fn of_tree(self) -> bool {
        self >= Workload::Unpack
    }

    /// What the disk must have given for it, with its files and bytes, when it began cold; only of those that change nothing.
    fn returned(self, names: u64, contents: u64) -> Returned {
        match self {
            Workload::Read => Returned { contents, names },
            // The tree may have hard links: their contents come once.
            Workload::Grep | Workload::Stat | Workload::FindLs => Returned { contents: 0, names },
            _ => Returned::default(),
        }
    }

    /// What must have run before it.
    fn needs(self) -> &'static [Workload] {
        match self {
            Workload::Create | Workload::Fsync | Workload::Unpack => &[],
            Workload::Read | Workload::Overwrite | Workload::Stat | Workload::Remove => &[Workload::Create],
            Workload::GitStatus => &[Workload::Unpack, Workload::GitAdd],
            _ => &[Workload::Unpack],
        }
    }

    /// The chosen workloads and all they need, in order; all when none is chosen.
    pub fn plan(chosen: &[Workload]) -> Vec<Workload> {
        let all = Workload::value_variants();
        all.iter()
            .copied()
            .filter(|w| chosen.is_empty() || chosen.iter().any(|c| c == w || c.needs().contains(w)))
            .collect()
    }
}

/// What one workload cost one peer.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The file system.
    pub peer: Peer,
    /// The workload.
    pub workload: Workload,
    /// Files it handled.
    pub files: u64,
    /// Bytes of file contents it wrote or read; 0 for names and attributes only.
    pub data_bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Requests during that time.
    pub disk: Counters,
    /// Requests of the mount before it, which are not in `disk`.
    pub at_mount: Counters,
    /// Requests of the unmount after it: what it left for later.
    pub at_unmount: Counters,
    /// Whether a part of what it returned was in memory before, so that it is not the figure of a cold mount.
    pub warm: bool,
    /// Requests in a trace of that time, and those of the disk; where cffs was recorded.
    pub traced: Option<[Counters; 2]>,
}

impl Row {
    /// Files per second.
    pub fn rate(&self) -> f64 {
        self.files as f64 / self.seconds
    }
}

/// Sizes and inputs shared by all peers of a run.
#[derive(Debug)]
pub struct Inputs {
    /// Small files.
    pub files: u64,
    /// Bytes in each of them.
    pub file_bytes: usize,
    /// Files that are fsynced one by one.
    pub fsync_files: u64,
    /// The archive of real files.
    pub archive: PathBuf,
    /// What is in it.
    pub selection: Selection,
    /// Disk size and delay, in nbdkit's notation.
    pub size: String,
    /// See `size`.
    pub delay: String,
    /// cffs is recorded, to compare the requests of the trace with those of the disk.
    pub trace: bool,
}

/// Runs a plan on one peer; small files and tree on a fresh disk each.
///
/// # Errors
/// When a workload fails. What was set up is taken down all the same.
pub fn run_peer(
    peer: Peer,
    cffs: &super::peer::CffsSettings,
    inputs: &Inputs,
    plan: &[Workload],
    rows: &mut Vec<Row>,
) -> Result<Option<u64>> {
    let mut peak = None;
    for of_tree in [false, true] {
        let part: Vec<_> = plan.iter().filter(|w| w.of_tree() == of_tree).collect();
        if part.is_empty() {
            continue;
        }
        let mut session = Session::new(peer, cffs, &inputs.size, &inputs.delay)?;
        for workload in part {
            // The last of each part empties the disk; this is when the check
            // has the most to look at.
            if peer == Peer::Cffs && matches!(workload, Workload::Remove | Workload::RmR) {
                session.check().context("before removing the files")?;
            }
            let row = measure(&mut session, peer, *workload, inputs)
                .with_context(|| format!("{peer}: {}", workload.title()))?;
            eprintln!(
                "  {:5} {:30} {:>9.2} s {:>9.0} files/s  {} reads, {} writes, {} flushes (+ {} writes at unmount)",
                peer.to_string(),
                workload.title(),
                row.seconds,
                row.rate(),
                row.disk.reads,
                row.disk.writes,
                row.disk.flushes,
                row.at_unmount.writes,
            );
            rows.push(row);
        }
        if peer == Peer::Cffs {
            session.check().context("at the end")?;
        }
        peak = peak.max(session.peak_memory());
        session.close()?;
    }
    Ok(peak)
}

/// Measures a workload; again, a few times, where the mount was not cold.
fn measure(session: &mut Session, peer: Peer, workload: Workload, inputs: &Inputs) -> Result<Row> {
    let mut row = measure_once(session, peer, workload, inputs)?;
    for _ in 1..cache_check::TRIES {
        if !row.warm {
            break;
        }
        eprintln!("  {peer}: {} was warm; once more", workload.title());
        row = measure_once(session, peer, workload, inputs)?;
    }
    Ok(row)
}

fn measure_once(session: &mut Session, peer: Peer, workload: Workload, inputs: &Inputs) -> Result<Row> {
    clear_the_way(session, workload)?;
    cache_check::drop_caches()?;
    let start = session.counters()?;
    session.mount()?;
    prepare(workload, inputs)?;
    let mounted = session.counters()?;
    let recorder = session.recorder(inputs.trace && peer == Peer::Cffs)?;
    let clock = Instant::now();
    let (files, data_bytes) = work(&session.root(), workload, inputs)?;
    let seconds = clock.elapsed().as_secs_f64();
    let traced = recorder.map(Recorder::finish).transpose()?;
    let done = session.counters()?;
    session.unmount()?;
    let unmounted = session.counters()?;
    Ok(Row {
        peer,
        workload,
        files,
        data_bytes,
        seconds,
        disk: done - mounted,
        at_mount: mounted - start,
        at_unmount: unmounted - done,
        warm: workload.returned(files, data_bytes).was_warm((done - start).read_bytes),
        traced: traced.map(|traced| [traced, done - mounted]),
    })
}

/// What a workload wants in the host's memory, untimed. It touches no mounted file, or they are no longer cold.
fn prepare(workload: Workload, inputs: &Inputs) -> Result<()> {
    let programs: &[&str] = match workload {
        Workload::Stat | Workload::Find | Workload::FindLs => &["find"],
        Workload::Unpack => &["tar"],
        Workload::Grep => &["grep"],
        Workload::GitAdd | Workload::GitStatus => &["git"],
        Workload::RmR => &["rm"],
        _ => &[],
    };
    for program in programs {
        let mut command = Command::new(program);
        command.arg("--version");
        run_command(command, LIMIT)?;
    }
    if workload == Workload::Unpack {
        let mut archive = File::open(&inputs.archive)?;
        let mut buffer = vec![0u8; 1 << 20];
        while archive.read(&mut buffer)? > 0 {}
    }
    Ok(())
}

/// Moves what a workload is not about out of its way, in a mount of its own: this reads directories, and perhaps reads ahead.
fn clear_the_way(session: &mut Session, workload: Workload) -> Result<()> {
    if workload != Workload::RmR {
        return Ok(());
    }
    session.mount()?;
    let repository = session.root().join("tree/.git");
    if repository.exists() {
        // Only the tree is to be removed in the measured time.
        fs::rename(repository, session.root().join("repository"))?;
    }
    session.unmount()
}

/// Does the work; returns how many files and how many bytes it was.
fn work(root: &Path, workload: Workload, inputs: &Inputs) -> Result<(u64, u64)> {
    let small = root.join("small");
    let tree = root.join("tree");
    let entries = inputs.selection.paths.len() as u64 + 1;
    let small_bytes = inputs.files * inputs.file_bytes as u64;
    match workload {
        Workload::Create => {
            create(&small, inputs.files, inputs.file_bytes, false)?;
            sync(root)?;
            Ok((inputs.files, small_bytes))
        }
        Workload::Read => {
            read(&small, inputs)?;
            Ok((inputs.files, small_bytes))
        }
        Workload::Overwrite => {
            overwrite(&small, inputs)?;
            sync(root)?;
            Ok((inputs.files, small_bytes))
        }
        Workload::Stat => {
            let mut find = Command::new("find");
            find.arg(&small).args(["-type", "f", "-printf", "%p %s %m %T@\n"]);
            let out = run_command(find, LIMIT)?;
            expect_lines(&out, inputs.files)?;
            Ok((inputs.files, 0))
        }
        Workload::Fsync => {
            create(&root.join("fsync"), inputs.fsync_files, inputs.file_bytes, true)?;
            Ok((inputs.fsync_files, inputs.fsync_files * inputs.file_bytes as u64))
        }
        Workload::Remove => {
            remove(&small, inputs.files)?;
            sync(root)?;
            Ok((inputs.files, 0))
        }
        Workload::Unpack => {
            fs::create_dir(&tree)?;
            let mut tar = Command::new("tar");
            tar.arg("-C").arg(&tree).arg("-xpf").arg(&inputs.archive);
            run_command(tar, LIMIT)?;
            sync(root)?;
            Ok((entries, inputs.selection.bytes))
        }
        Workload::Grep => {
            grep(&tree)?;
            Ok((entries, inputs.selection.bytes))
        }
        Workload::Find | Workload::FindLs => {
            let mut find = Command::new("find");
            find.arg(&tree).arg(if workload == Workload::FindLs { "-ls" } else { "-print" });
            let out = run_command(find, LIMIT)?;
            expect_lines(&out, entries)?;
            Ok((entries, 0))
        }
        Workload::GitAdd => {
            git(&tree, &["init", "-q"])?;
            git(&tree, &["add", "-A", "-f"])?;
            git(&tree, &["commit", "-q", "-m", "the tree"])?;
            sync(root)?;
            Ok((entries, inputs.selection.bytes))
        }
        Workload::GitStatus => {
            let out = git(&tree, &["status", "--porcelain"])?;
            ensure!(out.is_empty(), "git sees changes that nobody made: {}", out.lines().next().unwrap_or_default());
            Ok((entries, 0))
        }
        Workload::RmR => {
            let mut rm = Command::new("rm");
            rm.args(["-r", "-f"]).arg(&tree);
            run_command(rm, LIMIT)?;
            sync(root)?;
            ensure!(!tree.exists(), "rm left the tree");
            Ok((entries, 0))
        }
    }
}

/// Reads each file until its end. Not by `read_to_end`, because that asks for the birth time (statx(2)) and uses its size
/// alone: FUSE brings a birth time in a message of its own, and no other reader of a file asks for it.
fn read(small: &Path, inputs: &Inputs) -> Result<()> {
    let mut buffer = vec![0; inputs.file_bytes + 1];
    for i in 0..inputs.files {
        let path = file_path(small, i);
        let len = File::open(&path)
            .and_then(|mut file| read_until_end(&mut file, &mut buffer))
            .with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(buffer[..len] == content(i, inputs.file_bytes), "{} has wrong bytes", path.display());
    }
    Ok(())
}

/// Fills the buffer, which is longer than the file. Returns the length of the file.
fn read_until_end(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    loop {
        match file.read(&mut buffer[len..])? {
            0 => return Ok(len),
            n => len += n,
        }
    }
}

fn overwrite(small: &Path, inputs: &Inputs) -> Result<()> {
    for i in 0..inputs.files {
        let path = file_path(small, i);
        OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(&content(i ^ (1 << 40), inputs.file_bytes)))
            .with_context(|| format!("cannot overwrite {}", path.display()))?;
    }
    Ok(())
}

fn remove(small: &Path, files: u64) -> Result<()> {
    for i in 0..files {
        let path = file_path(small, i);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    for d in 0..files.div_ceil(PER_DIRECTORY) {
        fs::remove_dir(small.join(format!("d{d:04}")))?;
    }
    Ok(fs::remove_dir(small)?)
}

/// Reads the whole tree for something that is not in it.
fn grep(tree: &Path) -> Result<()> {
    let status = Command::new("grep")
        .args(["-r", "-F", NEEDLE])
        .arg(tree)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?
        .wait()?;
    // 1 says that it read everything and found nothing.
    ensure!(status.code() == Some(1), "grep ended with {status}");
    Ok(())
}

fn file_path(small: &Path, i: u64) -> PathBuf {
    small.join(format!("d{:04}/f{i:06}", i / PER_DIRECTORY))
}

/// Bytes that are different in every file and do not compress.
fn content(i: u64, len: usize) -> Vec<u8> {
    let mut state = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn create(dir: &Path, files: u64, bytes: usize, fsync: bool) -> Result<()> {
    fs::create_dir(dir)?;
    for i in 0..files {
        if i % PER_DIRECTORY == 0 {
            fs::create_dir(dir.join(format!("d{:04}", i / PER_DIRECTORY)))?;
        }
        let path = file_path(dir, i);
        File::create_new(&path)
            .and_then(|mut file| {
                file.write_all(&content(i, bytes))?;
                if fsync { file.sync_all() } else { Ok(()) }
            })
            .with_context(|| format!("cannot create {}", path.display()))?;
    }
    Ok(())
}

/// Everything on the disk. A mount of type `fuse` does not hear of syncfs(2), so that
/// the top directory is fsynced too; the kernel's file systems have nothing
/// left to do for that. What a file system leaves for later all the same is
/// counted at the unmount.
fn sync(root: &Path) -> Result<()> {
    let dir = File::open(root)?;
    rustix::fs::syncfs(&dir).context("cannot sync")?;
    dir.sync_all().context("cannot sync the top directory")
}

fn expect_lines(out: &str, expected: u64) -> Result<()> {
    let lines = out.lines().count() as u64;
    if lines != expected {
        bail!("find listed {lines} entries where there are {expected}");
    }
    Ok(())
}

/// git as a user has it, but for what this machine's own settings say.
fn git(tree: &Path, args: &[&str]) -> Result<String> {
    let settings = [
        ("safe.directory", "*"),
        ("user.name", "lab"),
        ("user.email", "lab@localhost"),
        ("commit.gpgsign", "false"),
        // Repacking would start at a moment of its own choice.
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
        ("init.defaultBranch", "main"),
    ];
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(tree)
        .args(args)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_COUNT", settings.len().to_string());
    for (i, (key, value)) in settings.iter().enumerate() {
        command.env(format!("GIT_CONFIG_KEY_{i}"), key).env(format!("GIT_CONFIG_VALUE_{i}"), value);
    }
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(name);
    }
    run_command(command, LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_what_the_chosen_workloads_need() {
        assert_eq!(Workload::plan(&[Workload::GitStatus]), [Workload::Unpack, Workload::GitAdd, Workload::GitStatus]);
        assert_eq!(Workload::plan(&[Workload::Read, Workload::Create]), [Workload::Create, Workload::Read]);
        assert_eq!(Workload::plan(&[]).len(), 13);
    }

    #[test]
    fn contents_differ_between_files_and_after_overwriting() {
        assert_eq!(content(7, 1001).len(), 1001);
        assert_ne!(content(7, 64), content(8, 64));
        assert_ne!(content(7, 64), content(7 ^ (1 << 40), 64));
    }
}
