//! How the files lie that real programs read one after the other: on cffs, with the conventional placement and on ext4, in a clone as
//! it was made, and after the work of a long time in it. The thesis's questions 4 and 5, from traces.
//!
//! The programs choose their order themselves, by name, so that it is the same on every file system.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cffs::ROOT_INO;
use cffs::trace::{Item, Kind, Reader, Record};

use super::cloned::{BYTES, SMALL, clone};
use super::kernel_peers::session::Session;
use super::outcome::Outcome;
use crate::layout::{Layout, Piece};
use crate::mounted::{Kind as Peer, LIMIT};
use crate::process::{run, run_command};
use crate::replay::Workload;

/// What is compared: a name, the file system, and words for `cffs mkfs`.
const SYSTEMS: [(&str, Peer, &[&str]); 3] = [
    ("cffs", Peer::Cffs, &["--group-size", "256K"]),
    ("conventional", Peer::Cffs, &["--group-size", "256K", "--no-embed", "--no-group"]),
    ("ext4", Peer::Ext4, &[]),
];
/// Programs, each with what a shell runs in the clone.
const PROGRAMS: [(&str, &str); 2] = [
    ("git grep", "git grep --threads=1 -c rarely-found > /dev/null; true"),
    ("tar by name", "tar cf - --sort=name --exclude=.git . | cat > /dev/null"),
];
/// What one request can bring: a group.
const REACH: u64 = 256 << 10;
/// Revisions that are checked out one after the other, the last one at the end.
const REVISIONS: usize = 40;
/// Title and columns of the tables.
pub const LIE: &str = "How small files lie that a program reads one after the other";
pub const LIE_COLUMNS: [&str; 4] = ["files", "directly behind, %", "within a group, %", "in pieces, %"];
/// See [`LIE`].
pub const ASKED: &str = "What the program's reads ask of the disk, as recorded";
const ASKED_COLUMNS: [&str; 4] = ["reads", "reads for 100 files", "begin where one has ended, %", "KB a read"];

/// Small files in the order in which a program has read them, each once, by their path.
fn order(w: &Workload) -> Vec<String> {
    let mut paths: HashMap<u64, String> = HashMap::from([(ROOT_INO, String::new())]);
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    for (directory, entry) in w.tree.in_order() {
        let Some(above) = paths.get(&directory) else { continue };
        let path = format!("{above}/{}", String::from_utf8_lossy(&entry.name));
        paths.entry(entry.inode).or_insert(path);
        if !entry.is_dir() {
            sizes.insert(entry.inode, entry.size);
        }
    }
    let mut read = Vec::new();
    for op in w.ops.iter().filter(|op| op.kind == Kind::Read) {
        // Each once: its size goes with the first read.
        if sizes.remove(&op.args[0]).is_some_and(|size| size <= SMALL && size > 0) {
            read.extend(paths.get(&op.args[0]).cloned());
        }
    }
    read
}

/// How files lie that are read in an order.
#[derive(Debug, Default, PartialEq)]
struct Lie {
    /// Files that have blocks of their own.
    files: f64,
    /// Of these: beginning where the one read before ends, or so near that one request may bring both, in percent.
    behind: f64,
    near: f64,
    /// In more than one piece, in percent.
    pieces: f64,
}

fn lie(order: &[String], layout: &Layout) -> Lie {
    let mut places: HashMap<String, &[Piece]> = HashMap::new();
    for dir in &layout.dirs {
        for file in &dir.files {
            places.insert(dir.path_below(&file.name), &file.pieces);
        }
    }
    let mut found = Lie::default();
    let mut before: Option<u64> = None;
    for pieces in order.iter().filter_map(|path| places.get(path)) {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { continue };
        found.files += 1.0;
        let count = |yes: bool| f64::from(u8::from(yes));
        if let Some(end) = before {
            found.behind += count(first.start == end);
            found.near += count(first.start.abs_diff(end) < REACH);
        }
        let joined = pieces.windows(2).all(|two| two[0].start + two[0].len == two[1].start);
        found.pieces += count(!joined);
        before = Some(last.start + last.len);
    }
    for share in [&mut found.behind, &mut found.near] {
        *share *= 100.0 / f64::max(found.files - 1.0, 1.0);
    }
    found.pieces *= 100.0 / found.files.max(1.0);
    found
}

/// Reads of the disk, in the order in which they began: their number, those that begin where an earlier one has ended, bytes.
fn asked(mut reads: Vec<Record>) -> (f64, f64, f64) {
    reads.sort_by_key(|r| (r.start, r.id));
    let mut ends: HashMap<u64, ()> = HashMap::new();
    let (mut joined, mut bytes) = (0.0, 0.0);
    for r in &reads {
        joined += f64::from(u8::from(ends.contains_key(&r.args[0])));
        ends.insert(r.args[0] + r.args[1], ());
        bytes += r.args[1] as f64;
    }
    (reads.len() as f64, joined, bytes)
}

fn reads_of(trace: &Path) -> Result<Vec<Record>> {
    let mut reader = Reader::new(BufReader::new(File::open(trace)?))?;
    let mut reads = Vec::new();
    while let Some(item) = reader.next_item()? {
        match item {
            Item::Span(r) if r.kind == Kind::DeviceRead => reads.push(r),
            Item::Lost { spans, .. } => ensure!(spans == 0, "{spans} spans were lost"),
            _ => {}
        }
    }
    Ok(reads)
}

/// Works in the clone for a long time: many revisions, one after the other, each with what is written back meanwhile.
fn age(root: &Path) -> Result<()> {
    let at = root.join("clone");
    let at = at.to_string_lossy();
    let git = |words: &[&str]| run(&[&["git", "-c", "safe.directory=*", "-C", &at][..], words].concat(), LIMIT);
    let all = git(&["rev-list", "--first-parent", "HEAD"])?;
    // The newest first.
    let all: Vec<&str> = all.lines().collect();
    let last = all.first().context("a repository without revisions")?;
    let step = (all.len() / REVISIONS).max(1);
    for revision in all.iter().rev().step_by(step).chain([last]) {
        git(&["checkout", "-q", "--force", "--detach", revision])?;
        run(&["sync", "-f", &at], LIMIT)?;
    }
    // The index has times that are finer than those of a file that was just written: the first look rewrites it.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    git(&["status"]).map(drop)
}

/// Measures, and adds tables. `program` is cffs, `from` a repository.
///
/// # Errors
/// When something that is there does not work.
pub fn grouping(outcome: &mut Outcome, program: &Path, dir: &Path, from: &Path) -> Result<()> {
    let (mut lies, mut disks) = (Vec::new(), Vec::new());
    // The order that each program has, from the trace of the first system.
    let mut orders: Vec<Vec<String>> = Vec::new();
    for (name, kind, words) in SYSTEMS {
        if let Some(why) = kind.missing(program) {
            eprintln!("SKIPPED: {name}: {why}");
            outcome.untested.push((format!("how {name} groups files"), why));
            continue;
        }
        let at = dir.join(name);
        std::fs::create_dir_all(&at)?;
        let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        let mut session = Session::new(kind, program, &at, &at.join("image"), "nvme", Some((&words, BYTES)))?;
        for state in ["fresh", "aged"] {
            session.mount()?;
            if state == "fresh" {
                clone(from, &session.root())?;
            } else {
                age(&session.root()).with_context(|| format!("working on {name}"))?;
            }
            session.unmount()?;
            for (n, (tool, shell)) in PROGRAMS.iter().enumerate().filter(|_| kind == Peer::Cffs) {
                let trace = recorded(&mut session, program, &at, shell).with_context(|| format!("recording {tool}"))?;
                let order = order(&Workload::read(BufReader::new(File::open(&trace)?))?);
                let (reads, joined, bytes) = asked(reads_of(&trace)?);
                let (files, share) = (order.len().max(1) as f64, reads.max(1.0));
                let figures = vec![reads, reads / files * 100.0, joined / share * 100.0, bytes / share / 1e3];
                disks.push((format!("{tool}, {name}, {state}"), figures));
                if n == orders.len() {
                    orders.push(order);
                }
            }
            let Some(layout) = session.layout()? else { continue };
            for ((tool, _), order) in PROGRAMS.iter().zip(&orders) {
                let found = lie(order, &layout);
                let figures = vec![found.files, found.behind, found.near, found.pieces];
                lies.push((format!("{tool}, {name}, {state}"), figures));
            }
        }
        session.close()?;
    }
    outcome.table(LIE, "program", &LIE_COLUMNS.map(str::to_string), lies);
    outcome.table(ASKED, "program", &ASKED_COLUMNS.map(str::to_string), disks);
    outcome.notes.push(format!(
        "Aged: {REVISIONS} revisions from the first one on were checked out one after the other, and the last one again. The order of the \
         files is that of the trace on a fresh cffs; both programs go by name, on every file system. Directly behind: the file begins where \
         the one before it ends; within a group: within {} KiB of it. Files within their inodes have no place and are left out.",
        REACH >> 10
    ));
    Ok(())
}

/// Runs a program on a cold mount, recorded. Returns the trace.
fn recorded(session: &mut Session, program: &Path, at: &Path, shell: &str) -> Result<PathBuf> {
    let trace = at.join("trace");
    session.mount()?;
    let mut command = Command::new(program);
    command.args(["trace", "--replay", "-o"]).arg(&trace).arg(session.root()).args(["--", "sh", "-c"]);
    command.arg(format!("cd {}/clone && {shell}", session.root().display()));
    run_command(command, LIMIT)?;
    session.unmount()?;
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Op;
    use cffs::layout::{Listed, Placed};
    use cffs::trace::{Cause, Detail, Listed as Entry};

    #[test]
    fn files_are_taken_in_the_order_of_their_first_read_and_compared_with_the_one_before() {
        let mut w = Workload::default();
        let entry = |inode, size, name: &str, mode| Entry { inode, size, mode, name: name.into(), ..Entry::default() };
        let directory = 0o040_000;
        w.tree.directories = vec![
            (ROOT_INO, vec![entry(20, 0, "d", directory), entry(30, 500, "a", 0o100_000)]),
            (20, vec![entry(31, 500, "b", 0o100_000), entry(32, SMALL + 1, "large", 0o100_000)]),
        ];
        let op = |inode| Op {
            kind: Kind::Read,
            args: [inode, 0, 4096],
            detail: Detail::default(),
            start: 0,
            end: 0,
            thread: 0,
        };
        w.ops = [31, 32, 30, 31, 99].map(op).to_vec();
        assert_eq!(order(&w), ["/d/b", "/a"]);

        let piece = |start, len| Piece { start, len };
        let file = |name: &str, pieces: Vec<Piece>| Placed { name: name.into(), size: 500, pieces };
        let mut layout = Layout::default();
        let far = 10 * REACH;
        layout.dirs.push(Listed {
            path: "/".into(),
            files: vec![
                file("1", vec![piece(0, 4096)]),
                file("2", vec![piece(4096, 4096), piece(8192, 4096)]),
                file("3", vec![piece(20_480, 4096), piece(far, 4096)]),
                file("4", vec![piece(0, 4096)]),
                file("inline", vec![]),
            ],
            ..Listed::default()
        });
        let names = ["/1", "/2", "/inline", "/3", "/4", "/gone"].map(String::from);
        let want = Lie { files: 4.0, behind: 100.0 / 3.0, near: 200.0 / 3.0, pieces: 25.0 };
        assert_eq!(lie(&names, &layout), want);
        assert_eq!(lie(&[], &layout), Lie::default());
    }

    #[test]
    fn reads_follow_one_that_has_ended() {
        let read = |id, start, offset, len| Record {
            kind: Kind::DeviceRead,
            id,
            cause: Cause::default(),
            thread: 1,
            start,
            duration: 1,
            args: [offset, len, 0],
            transaction: 0,
            causes: None,
            detail: None,
        };
        let reads = vec![read(3, 30, 8192, 4096), read(1, 10, 0, 4096), read(2, 20, 4096, 4096), read(4, 40, 0, 512)];
        assert_eq!(asked(reads), (4.0, 2.0, 12_800.0));
    }
}
