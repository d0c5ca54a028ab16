//! The thesis's section 5.3 asks eight questions that traces of programs are to answer. Real programs run on a mount of cffs,
//! which is traced; their operations are then repeated on simulated disks, with and without the techniques.
//!
//! Programs and the kernel run in real time, and the tree is this repository: the figures differ between runs.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use cffs::ROOT_INO;
use cffs::trace::Kind;
use serde_json::Value;

use super::cloned::{BYTES, SMALL, clone};
use super::history::repository;
use super::kernel_peers::{able, images};
use super::outcome::Outcome;
use super::real_grouping::grouping;
use crate::cleanup::{Cleanup, Guard};
use crate::mounted::{Kind as Peer, LIMIT};
use crate::process::{find_program, run_command};
use crate::replay::{Predicted, Settings, Workload, predict};

/// The disks, and the ways to be on them.
const DISKS: [&str; 2] = ["hdd-2026", "volume-1ms"];
/// See [`DISKS`].
const WAYS: [(&str, &str); 3] =
    [("both", ""), ("both, no prefetch", ",prefetch=off"), ("neither", ",techniques=neither")];

/// Programs, each with what a shell runs in the clone.
const PROGRAMS: [(&str, &str); 5] = [
    ("git status", "git status"),
    ("grep -r", "grep -r --exclude-dir=.git rarely-found . > /dev/null; true"),
    ("tar", "tar cf - --exclude=.git . | cat > /dev/null"),
    ("cp -r", "cp -r crates copy && sync -f copy"),
    ("rm -r", "rm -r copy"),
];

/// What was read of small and of large files: files, bytes, nanoseconds of the disk.
#[derive(Clone, Copy, Default)]
struct Reads {
    files: f64,
    bytes: f64,
    ns: f64,
}

/// Reads of small files, those of large ones, and the share of files that were read right after one of the same directory.
struct Seen {
    small: Reads,
    large: Reads,
    grouped: f64,
}

fn seen(w: &Workload, by_operation: &[u64]) -> Seen {
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    let mut parents: HashMap<u64, u64> = HashMap::new();
    for (directory, entries) in &w.tree.directories {
        for e in entries {
            sizes.insert(e.inode, e.size);
            parents.insert(e.inode, *directory);
        }
    }
    let mut seen = Seen { small: Reads::default(), large: Reads::default(), grouped: 0.0 };
    let mut read: HashMap<u64, ()> = HashMap::new();
    let mut before = 0;
    for (op, ns) in w.ops.iter().zip(by_operation) {
        match op.kind {
            Kind::Create if op.detail.errno == 0 => drop(parents.insert(op.detail.inode, op.args[0])),
            Kind::Write => {
                let size = sizes.entry(op.args[0]).or_default();
                *size = (*size).max(op.args[1] + op.args[2]);
            }
            Kind::Read | Kind::Copy => {
                let [inode, second, len] = op.args;
                let offset = if op.kind == Kind::Copy { op.detail.number(0) } else { second };
                let size = sizes.get(&inode).copied().unwrap_or(0);
                let of = if size <= SMALL { &mut seen.small } else { &mut seen.large };
                of.bytes += size.saturating_sub(offset).min(len) as f64;
                of.ns += *ns as f64;
                if read.insert(inode, ()).is_none() {
                    of.files += 1.0;
                    let parent = parents.get(&inode).copied().unwrap_or(ROOT_INO);
                    seen.grouped += f64::from(u8::from(parent == before));
                    before = parent;
                }
            }
            _ => {}
        }
    }
    seen.grouped /= (seen.small.files + seen.large.files).max(1.0);
    seen
}

/// Milliseconds for a megabyte.
fn per_mb(r: &Reads) -> f64 {
    r.ns / r.bytes.max(1.0)
}

/// An image with a clone of this repository.
struct Mount {
    program: PathBuf,
    image: PathBuf,
    root: PathBuf,
}

impl Mount {
    /// Runs a program on a cold mount, recorded.
    fn record(&self, words: &str, trace: &Path) -> Result<Workload> {
        let mounted = Peer::Cffs.mount(&self.program, "", &self.image.to_string_lossy(), &self.root)?;
        let mut command = Command::new(&self.program);
        command.args(["trace", "--replay", "-o"]).arg(trace).arg(&self.root).args(["--", "sh", "-c"]);
        command.arg(format!("cd {}/clone && {words}", self.root.display()));
        run_command(command, LIMIT)?;
        mounted.unmount()?;
        Workload::read(BufReader::new(File::open(trace)?))
    }
}

fn prepare(program: PathBuf, dir: &Path, from: &Path) -> Result<Mount> {
    let mount = Mount { program, image: dir.join("image"), root: dir.join("mnt") };
    std::fs::create_dir(&mount.root)?;
    let mut command = Command::new(&mount.program);
    command.args(["mkfs", "--group-size", "256K", "--size", &BYTES.to_string()]).arg(&mount.image);
    run_command(command, LIMIT)?;
    let mounted = Peer::Cffs.mount(&mount.program, "", &mount.image.to_string_lossy(), &mount.root)?;
    clone(from, &mount.root)?;
    mounted.unmount()?;
    Ok(mount)
}

/// Requests of an operation in a trace: reads, writes, bytes of both, with the shares of those that were made for many.
type Shares = (String, [f64; 3]);

/// What each operation had the disk do, from the summary of a trace, whose shares of a request add up to one.
fn shares(summary: &Value) -> Vec<Shares> {
    let rows = summary["requests"]["by_cause"].as_object().into_iter().flatten();
    let number = |row: &Value, name: &str| row[name].as_f64().unwrap_or(0.0);
    rows.map(|(operation, row)| {
        let bytes = number(row, "read_bytes") + number(row, "write_bytes");
        (operation.clone(), [number(row, "reads"), number(row, "writes"), bytes])
    })
    .filter(|(_, [reads, writes, _])| reads + writes > 0.0)
    .collect()
}

/// Real programs. Without root, FUSE or a repository an outcome without figures.
///
/// # Errors
/// When something that is there does not work.
pub fn programs(_scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let able = able().and_then(|program| {
        let from = repository().filter(|_| find_program("git").is_some());
        from.map(|from| (program, from)).ok_or("there is no git, or no repository around this program")
    });
    let (program, from) = match able {
        Ok(able) => able,
        Err(why) => {
            eprintln!("SKIPPED: real programs: {why}: nothing measured");
            outcome.untested.push(("the thesis's questions from traces".into(), why.into()));
            return Ok(outcome);
        }
    };
    let dir = tempfile::Builder::new().prefix("cffs-lab-programs-").tempdir_in(images())?.keep();
    let _guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    let mount = prepare(program, &dir, &from)?;
    let (mut rows, mut causes) = (Vec::new(), Vec::new());
    let mut costs: Vec<(String, [Vec<f64>; 3])> = Vec::new();
    for (name, words) in PROGRAMS {
        let trace = dir.join("trace");
        let w = mount.record(words, &trace).with_context(|| format!("recording {name}"))?;
        let recorded = w.recorded_total();
        let mut command = Command::new(&mount.program);
        command.args(["trace", "summary", "--json"]).arg(&trace);
        let summary: Value = serde_json::from_str(&run_command(command, LIMIT)?)?;
        for (operation, [reads, writes, bytes]) in shares(&summary) {
            let done = w.ops.iter().filter(|op| op.kind.name() == operation).count();
            causes.push((format!("{name}: {operation}"), vec![done as f64, reads, writes, bytes / 1e3]));
        }
        for disk in DISKS {
            let runs: Vec<Predicted> = WAYS
                .iter()
                .map(|(_, more)| predict(&format!("{disk}{more}").parse::<Settings>()?, &w, None))
                .collect::<Result<_>>()
                .with_context(|| format!("replaying {name} on {disk}"))?;
            let all: Vec<Seen> = runs.iter().map(|p| seen(&w, &p.by_operation)).collect();
            if disk == DISKS[0] {
                let s = &all[0];
                let (files, bytes) = (s.small.files + s.large.files, s.small.bytes + s.large.bytes);
                let share = |part: f64, of: f64| part / of.max(1.0) * 100.0;
                rows.push((
                    name.to_string(),
                    vec![
                        w.ops.len() as f64,
                        files,
                        share(s.small.files, files),
                        share(s.small.bytes, bytes),
                        s.grouped * 100.0,
                        (recorded.reads + recorded.writes) as f64,
                    ],
                ));
            }
            costs.push((
                format!("{name}, {disk}"),
                [
                    runs.iter().map(|p| p.disk.seconds()).collect(),
                    all.iter().map(|s| per_mb(&s.small)).collect(),
                    all.iter().map(|s| per_mb(&s.large)).collect(),
                ],
            ));
        }
    }
    let columns =
        ["operations", "files read", "small, %", "bytes of small, %", "after a neighbour, %", "requests recorded"];
    outcome.table("What programs do", "program", &columns.map(str::to_string), rows);
    let columns = ["operations", "reads", "writes", "KB"].map(str::to_string);
    outcome.table(
        "What each operation has the disk do, as recorded, at once and later; work done for many is divided by what each made dirty",
        "operation",
        &columns,
        causes,
    );
    grouping(&mut outcome, &mount.program, &dir, &from)?;
    let ways: Vec<String> = WAYS.iter().map(|(way, _)| way.to_string()).collect();
    let titles = ["Disk time (s)", "Reading small files (ms for a MB)", "Reading large files (ms for a MB)"];
    for (n, title) in titles.into_iter().enumerate() {
        outcome.table(title, "program", &ways, costs.iter().map(|(name, c)| (name.clone(), c[n].clone())).collect());
    }
    outcome.notes.push(format!(
        "A clone of this repository on a mount; each program on a cold mount, recorded with `cffs trace --replay`, its operations repeated in \
         the simulation on the tree as it is when it is unpacked. Small: up to {} KiB. After a neighbour: the file that was read before lies \
         in the same directory.",
        SMALL >> 10
    ));
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Op;
    use cffs::trace::{Detail, Listed};
    use serde_json::json;

    #[test]
    fn shares_of_requests_add_up() {
        let row = |reads: f64, writes: f64| json!({"reads": reads, "writes": writes, "read_bytes": 512.0, "write_bytes": 1.5});
        let by_cause = json!({"create": row(0.0, 2.25), "write": row(1.0, 0.75), "fsync": row(0.0, 0.0)});
        let all = shares(&json!({"requests": {"by_cause": by_cause}}));
        assert_eq!(all, [("create".to_owned(), [0.0, 2.25, 513.5]), ("write".to_owned(), [1.0, 0.75, 513.5])]);
        assert!(shares(&Value::Null).is_empty());
    }

    #[test]
    fn reads_are_small_or_large_and_follow_a_neighbour_or_not() {
        let mut w = Workload::default();
        let file = |inode, size| Listed { inode, size, ..Listed::default() };
        w.tree.directories = vec![(20, vec![file(1000, 100), file(1001, 200)]), (21, vec![file(1002, SMALL + 1)])];
        let read = |inode, offset, len| Op {
            kind: Kind::Read,
            args: [inode, offset, len],
            detail: Detail::default(),
            start: 0,
            end: 0,
            thread: 0,
        };
        w.ops = vec![read(1000, 0, 4096), read(1001, 0, 4096), read(1002, 0, 4096), read(1002, 4096, 1 << 20)];
        let s = seen(&w, &[1000, 10, 500, 500]);
        assert_eq!((s.small.files, s.small.bytes, s.small.ns), (2.0, 300.0, 1010.0));
        assert_eq!((s.large.files, s.large.bytes, s.large.ns), (1.0, (SMALL + 1) as f64, 1000.0));
        assert!((s.grouped - 1.0 / 3.0).abs() < 1e-9);
    }
}
