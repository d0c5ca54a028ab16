//! The file systems of today's kernel, `fuse2fs` and cffs on the same simulated disks: real mounts over a loop device with
//! direct I/O on a file that charges every request in virtual time.
//!
//! Programs and the kernel run in real time, so that requests come in another order each time: the figures differ between
//! runs, and only here.

mod cost;
pub mod session;
mod work;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cffs_disk::Counters;

use super::disks::probe;
use super::outcome::{Claim, DiskMap, Outcome, asked, shown};
use super::source::Tree;
use crate::cleanup::{Cleanup, Guard};
use crate::layout::Layout;
use cost::{BYTES, Cost, Costs, WORK};
use session::{Kind, Session};

const DISKS: [&str; 3] = ["hdd-2026", "volume-1ms", "sd-card"];
/// Name, level, and whether what is aged is then brought together: cffs by a regroup, the others by their own defragmenters.
const STATES: [(&str, f64, bool); 5] = [
    ("fresh", 0.0, false),
    ("aged to 70%", 0.7, false),
    ("aged to 90%", 0.9, false),
    ("aged to 70%, defragmented", 0.7, true),
    ("aged to 90%, defragmented", 0.9, true),
];
/// The first so many are those of our target.
const TARGET: usize = 5;
/// Creations and deletions of the aging.
const OPERATIONS: u64 = 4000;

/// The cffs program beside this one.
fn cffs_program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok()?.parent()?.join("cffs");
    beside.is_file().then_some(beside)
}

/// Where images go: memory, where there is some.
pub fn images() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() }
}

/// The cffs program, or why nothing can be measured here.
///
/// # Errors
/// Why not.
pub fn able() -> Result<PathBuf, &'static str> {
    if !rustix::process::geteuid().is_root() {
        return Err("mounting needs root");
    }
    if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        return Err("there is no /dev/fuse or no loop device here");
    }
    cffs_program().ok_or("there is no program `cffs` beside this one (cargo build -p cffs-cli)")
}

/// Peers on the disk model. Without root, FUSE or loop devices an outcome without figures.
///
/// # Errors
/// When something that is there does not work.
pub fn peers(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let program = match able() {
        Ok(program) => program,
        Err(why) => {
            eprintln!("SKIPPED: peers on the disk model: {why}: nothing measured");
            outcome.untested.push(("cffs first in disk time".into(), why.into()));
            return Ok(outcome);
        }
    };
    let dir = tempfile::Builder::new().prefix("cffs-lab-model-").tempdir_in(images())?.keep();
    let _guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    let tree = Tree::new(1000 / scale, 80 / scale, 2026);
    let mut costs: BTreeMap<(usize, usize), Vec<(Kind, Costs)>> = BTreeMap::new();
    let mut layouts = Vec::new();
    for kind in Kind::ALL {
        if let Some(why) = kind.missing(&program) {
            eprintln!("SKIPPED: {}: {why}", kind.name());
            outcome.untested.push((format!("{} as a peer", kind.name()), why));
            continue;
        }
        'states: for (s, (state, level, defragmented)) in STATES.iter().enumerate() {
            if *defragmented && !kind.can_defragment(&program) {
                outcome.untested.push((format!("{kind}, {state}"), "it has no defragmenter here".into()));
                continue;
            }
            // Aged once for each way to format it.
            let mut images: Vec<(Vec<String>, PathBuf)> = Vec::new();
            for (d, disk) in DISKS.iter().enumerate() {
                let words = words(kind, disk)?;
                let image = match images.iter().find(|(w, _)| *w == words) {
                    Some((_, image)) => image.clone(),
                    None => {
                        let image = dir.join(format!("aged{}", images.len()));
                        let session = Session::new(kind, &program, &dir, &image, "nvme", Some((&words, BYTES)))?;
                        let found = match age(session, *level, OPERATIONS / scale, *defragmented) {
                            // A defragmenter may find too little space, and says so in words only.
                            Err(error) if *defragmented && !kind.is_ours() => {
                                eprintln!("  {kind:8} {state}: SKIPPED: {error:#}");
                                outcome.untested.push((format!("{kind}, {state}"), format!("{error:#}")));
                                continue 'states;
                            }
                            found => found.with_context(|| format!("aging {kind} to {state}"))?,
                        };
                        if let Some(found) = found {
                            let title = format!("{}, {state}", [&[kind.to_string()], &words[..]].concat().join(" "));
                            let all = found.score().last().map_or(0.0, |(share, _)| *share);
                            let a = found.adjacency();
                            layouts.push((title.clone(), vec![all, a.listed, a.alphabetical, a.best]));
                            if *level == 0.9 && !*defragmented {
                                let (cell, owners) = found.map(BYTES, 4096);
                                outcome.maps.push(DiskMap { title, cell, owners });
                            }
                        }
                        images.push((words, image.clone()));
                        image
                    }
                };
                let copy = dir.join("copy");
                crate::process::run(
                    &["cp", "--sparse=always", &image.to_string_lossy(), &copy.to_string_lossy()],
                    session::LIMIT,
                )?;
                let session = Session::new(kind, &program, &dir, &copy, disk, None)?;
                let measured = match work::measure(session, &tree, scale) {
                    Ok(measured) => measured,
                    // A peer that is full earlier than its statistics say has no figure there; the others have.
                    Err(error) if !kind.is_ours() && is_full(&error) => {
                        eprintln!("  {kind:8} {disk:10} {state:25} SKIPPED: {error:#}");
                        outcome.untested.push((format!("{kind}, {disk}, {state}"), format!("{error:#}")));
                        std::fs::remove_file(&copy)?;
                        continue;
                    }
                    Err(error) => return Err(error).with_context(|| format!("{kind} on {disk}, {state}")),
                };
                let seconds: Vec<String> =
                    WORK.iter().zip(&measured).map(|(w, c)| format!("{w} {:.3}", c.work.seconds())).collect();
                eprintln!("  {kind:8} {disk:10} {state:25} {}", seconds.join(", "));
                costs.entry((d, s)).or_default().push((kind, measured));
                std::fs::remove_file(&copy)?;
            }
            images.iter().try_for_each(|(_, image)| std::fs::remove_file(image))?;
        }
    }
    report(&mut outcome, &costs);
    let columns = ["layout score", "follows as listed", "alphabetical", "by address"].map(str::to_string);
    outcome.table("How the aged files lie (%)", "file system", &columns, layouts);
    outcome.notes = notes(&tree, scale);
    Ok(outcome)
}

fn notes(tree: &Tree, scale: u64) -> Vec<String> {
    vec![
        format!(
            "{} MiB of each disk; {} files of C-source sizes in {} directories, {:.1} MB; {} files fsynced one by one. Each from a cold \
             mount, until everything is on the medium. cffs through FUSE with its default options and the groups that mkfs would choose on such a disk, the kernel's with theirs. cffs-log is the same in the log \
             layout: it is beside the others in all tables, and no claim is about it.",
            BYTES >> 20,
            tree.files.len(),
            tree.parents.len(),
            tree.bytes() as f64 / 1e6,
            work::SYNCED / scale
        ),
        format!(
            "Aged: filled to the level with files of the distribution of figure 7, then {OPERATIONS} creations and deletions around it. Then, \
             where it says so, defragmented by `cffs regroup` and then `cffs regroup --free-space`, `e4defrag`, `xfs_fsr` or `btrfs filesystem defragment -r`. The \
             same image serves on all disks, but for groups of another size. The large file has {} MiB, and comes when the tree is gone.",
            work::LARGE >> 20
        ),
        "Programs and the kernel run in real time here, so the figures differ between runs, where writeback came at other moments up to a factor of two; everything else in this report \
         is the same to the last digit."
            .into(),
    ]
}

/// Whether the disk was full.
fn is_full(error: &anyhow::Error) -> bool {
    let full = Some(rustix::io::Errno::NOSPC.raw_os_error());
    error.chain().filter_map(|e| e.downcast_ref::<std::io::Error>()).any(|e| e.raw_os_error() == full)
        || error.chain().any(|e| e.downcast_ref::<rustix::io::Errno>() == Some(&rustix::io::Errno::NOSPC))
}

/// Words for `cffs mkfs`: the group that it would choose if it timed this disk. The time here is not the disk's.
fn words(kind: Kind, disk: &str) -> Result<Vec<String>> {
    Ok(match kind {
        Kind::Cffs | Kind::CffsLog => vec!["--group-size".into(), format!("{}K", probe(disk)?.group_size >> 10)],
        _ => Vec::new(),
    })
}

/// Fills and ages, and brings together; how the files lie then.
fn age(mut session: Session, level: f64, operations: u64, defragmented: bool) -> Result<Option<Layout>> {
    if level == 0.0 {
        session.close()?;
        return Ok(None);
    }
    session.mount()?;
    work::age(&session.root(), level, operations)?;
    if defragmented {
        session.defragment()?;
    }
    // What is not on the disk yet has no place.
    session.unmount()?;
    let layout = session.layout()?;
    session.check()?;
    session.close()?;
    Ok(layout)
}

/// Why another one needs less time, from what both asked of the disk.
fn cause(ours: &Counters, theirs: &Counters, kind: Kind) -> String {
    let bytes = |c: &Counters| (c.read_bytes + c.written_bytes) as f64;
    let each = |c: &Counters| c.seconds() / c.requests().max(1) as f64;
    let [more, larger, longer] = [
        ours.requests() as f64 / theirs.requests().max(1) as f64,
        bytes(ours) / bytes(theirs).max(1.0),
        each(ours) / each(theirs).max(1e-9),
    ];
    let reading = ours.read_bytes > ours.written_bytes;
    let why = if more > 1.1 && more >= larger {
        format!(
            "{} times the requests for {} times the bytes: the files are in more places",
            shown(more),
            shown(larger)
        )
    } else if larger > 1.02 && reading {
        format!(
            "{} times the bytes in {} times the requests: groups are read whole, and what in them is others' is read in vain",
            shown(larger),
            shown(more)
        )
    } else if larger > 1.02 {
        format!("{} times the bytes: the log, and groups that are read before they are changed", shown(larger))
    } else if ours.flushes > theirs.flushes {
        format!("{} flushes where {kind} has {}", ours.flushes, theirs.flushes)
    } else {
        format!(
            "no more requests and no more bytes, but {} times as long for each: they are farther apart",
            shown(longer)
        )
    };
    format!("cffs: {}. {kind}: {}. {why}.", asked(ours), asked(theirs))
}

fn report(outcome: &mut Outcome, costs: &BTreeMap<(usize, usize), Vec<(Kind, Costs)>>) {
    let columns = WORK.map(str::to_string);
    let mut first = [[0.0; 2]; 3];
    for ((d, s), runs) in costs {
        let place = format!("{}, {}", DISKS[*d], STATES[*s].0);
        let rows = |of: &dyn Fn(&Cost) -> f64| -> Vec<(String, Vec<f64>)> {
            runs.iter().map(|(kind, costs)| (kind.name().to_string(), costs.iter().map(of).collect())).collect()
        };
        outcome.add(&format!("{place}: disk time"), "s", "file system", &columns, rows(&|c| c.work.seconds()), false);
        outcome.table(format!("{place}: requests"), "file system", &columns, rows(&|c| c.work.requests() as f64));
        outcome.table(
            format!("{place}: disk time with the mount and the unmount (s)"),
            "file system",
            &columns,
            rows(&|c| c.whole.seconds()),
        );
        let Some((_, ours)) = runs.iter().find(|(kind, _)| *kind == Kind::Cffs) else { continue };
        for (w, work) in WORK.iter().enumerate() {
            let counted = runs.iter().filter(|(kind, _)| *kind != Kind::CffsLog);
            let warm: Vec<_> = counted.filter_map(|(kind, costs)| Some((kind, costs[w].warm.as_ref()?))).collect();
            // Who would be the best is not known while one of them has no figure.
            if !warm.is_empty() {
                outcome
                    .untested
                    .extend(warm.into_iter().map(|(kind, why)| (format!("{place}: {work}: {kind}"), why.clone())));
                continue;
            }
            let peers = || runs.iter().filter(|(kind, _)| !kind.is_ours());
            let best = peers().map(|(kind, costs)| (costs[w].work, *kind)).min_by_key(|(cost, _)| cost.time);
            let whole = peers().map(|(_, costs)| costs[w].whole.time).min();
            if let Some((theirs, kind)) = best {
                let text = format!("{place}: {work}: disk time in % of the best peer's ({kind})");
                let share = ours[w].work.seconds() / theirs.seconds().max(1e-9) * 100.0;
                let (is_first, is_first_whole) = (share <= 100.0, whole.is_some_and(|best| ours[w].whole.time <= best));
                let counted = [(w < TARGET, is_first), (true, is_first), (true, is_first_whole)];
                for ((within, is_first), [first, of]) in counted.into_iter().zip(&mut first) {
                    *of += f64::from(u8::from(within));
                    *first += f64::from(u8::from(within && is_first));
                }
                outcome.claims.push(Claim::at_most(text, 100.0, share).because(|| cause(&ours[w].work, &theirs, kind)));
            }
        }
    }
    if first[1][1] > 0.0 {
        let rows = [
            format!("{} (our target)", WORK[..TARGET].join(", ")),
            "all work".into(),
            "all work, with the mount and the unmount".into(),
        ];
        let rows = rows.into_iter().zip(first.map(|f| f.to_vec())).collect();
        outcome.table("cffs first in disk time", "", &["first".to_string(), "of".to_string()], rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_what_the_counters_say() {
        let c =
            |reads, read_bytes, ms: u64| Counters { reads, read_bytes, time: ms * 1_000_000, ..Counters::default() };
        let best = c(100, 10_000_000, 500);
        for (ours, words) in [
            (c(250, 65_000_000, 900), "6.50 times the bytes in 2.50 times the requests"),
            (c(400, 10_000_000, 900), "4.00 times the requests"),
            (c(100, 10_000_000, 900), "1.80 times as long"),
        ] {
            let why = cause(&ours, &best, Kind::Xfs);
            assert!(why.contains(words) && why.contains("xfs: 100 reads of 100 KB"), "{why}");
        }
    }
}
