//! Aging and the measured work, with plain system calls in one thread.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::cost::{BYTES, Cost, Costs};
use super::session::Session;
use crate::cache_check::{self, Returned};
use crate::experiments::aging::size;
use crate::experiments::source::{Tree, file_name};
use crate::random::Random;

/// Files that are created and fsynced one by one, and those in one directory.
pub const SYNCED: u64 = 200;
const PER_DIR: u64 = 20;
/// Bytes of the large file, and of a call.
pub const LARGE: usize = 16 << 20;
const PIECE: usize = 1 << 20;
/// How often it is read; the middle one counts, because the order in which a kernel's requests come decides over a few of a hundred.
const READS: usize = 3;
/// Directories that the aging works in.
const DIRS: u64 = 50;
/// Files of which one part is small: those are overwritten.
const SMALL: usize = 16 << 10;

/// Fills to `level` and works on around it, as figure 7 does.
///
/// # Errors
/// When a call fails, but for a full disk.
pub fn age(root: &Path, level: f64, operations: u64) -> Result<()> {
    let mut random = Random::new(1997);
    for n in 0..DIRS {
        fs::create_dir(root.join(format!("old{n}")))?;
    }
    let content: Vec<u8> = (0..512 << 10).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let used = || -> Result<f64> {
        let s = rustix::fs::statvfs(root)?;
        Ok(1.0 - (s.f_bfree * s.f_frsize) as f64 / BYTES as f64)
    };
    let mut files: Vec<PathBuf> = Vec::new();
    let (mut next, mut done, mut reached, mut now) = (0u64, 0, false, used()?);
    while done < operations {
        if (next + done).is_multiple_of(16) {
            now = used()?;
        }
        reached |= now >= level;
        done += u64::from(reached);
        let creates = !reached || files.is_empty() || (random.below(1000) as f64) < 500.0 + (level - now) * 10_000.0;
        if creates {
            let path = root.join(format!("old{}/f{next}", random.below(DIRS)));
            next += 1;
            match File::create_new(&path).and_then(|mut f| f.write_all(&content[..size(&mut random)])) {
                Ok(()) => files.push(path),
                // Fuller than its statistics say.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOSPC.raw_os_error()) => {
                    let _ = fs::remove_file(&path);
                    reached = true;
                    now = 1.0;
                }
                Err(error) => return Err(error).with_context(|| format!("cannot create {}", path.display())),
            }
        } else {
            let path = files.swap_remove(random.below(files.len() as u64) as usize);
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        // A file that is removed before it is written leaves no trace.
        if (next + done).is_multiple_of(50) {
            sync(root)?;
        }
    }
    sync(root)
}

/// Everything on the disk; a mount of type `fuse` does not hear of syncfs(2).
fn sync(root: &Path) -> Result<()> {
    let dir = File::open(root)?;
    rustix::fs::syncfs(&dir).context("cannot sync")?;
    dir.sync_all().context("cannot sync the top directory")
}

/// All the work, each part from a cold mount; then everything is taken down.
///
/// # Errors
/// When a call fails.
pub fn measure(mut session: Session, tree: &Tree, scale: u64) -> Result<Costs> {
    let root = session.root();
    let paths = paths(tree, &root.join("tree"));
    let content = vec![0x5a; tree.files.iter().map(|(_, size)| *size).max().unwrap_or(0)];
    let new = vec![0xa5; SMALL];
    let names = (tree.files.len() + tree.parents.len()) as u64;
    let named = Returned { contents: 0, names };
    let unpack = phase(&mut session, Returned::default(), 1, || {
        for dir in &paths.0 {
            fs::create_dir(dir)?;
        }
        for (path, (_, size)) in paths.1.iter().zip(&tree.files) {
            File::create_new(path)?.write_all(&content[..*size])?;
        }
        sync(&root)
    })?;
    let mut buffer = Vec::new();
    let read = phase(&mut session, Returned { contents: tree.bytes(), names }, cache_check::TRIES, || {
        for (path, (_, size)) in paths.1.iter().zip(&tree.files) {
            buffer.clear();
            File::open(path)?.read_to_end(&mut buffer)?;
            ensure!(buffer == content[..*size], "{} has wrong bytes", path.display());
        }
        Ok(())
    })?;
    let walked = phase(&mut session, named, cache_check::TRIES, || {
        let seen = walk(&root.join("tree"))?;
        ensure!(seen == tree.files.len() + tree.parents.len() - 1, "{seen} names in the tree");
        Ok(())
    })?;
    let small = || paths.1.iter().zip(&tree.files).filter(|(_, (_, size))| *size <= SMALL);
    let overwritten = phase(&mut session, Returned { contents: 0, names: small().count() as u64 }, 1, || {
        for (path, (_, size)) in small() {
            OpenOptions::new().write(true).open(path)?.write_all(&new[..*size])?;
        }
        sync(&root)
    })?;
    let synced = phase(&mut session, Returned::default(), 1, || {
        for n in 0..SYNCED / scale {
            let dir = root.join(format!("synced{}", n / PER_DIR));
            if n.is_multiple_of(PER_DIR) {
                fs::create_dir(&dir)?;
            }
            let mut file = File::create_new(dir.join(format!("file{n}")))?;
            file.write_all(&new[..4096])?;
            file.sync_all()?;
        }
        Ok(())
    })?;
    let removed = phase(&mut session, named, 1, || {
        fs::remove_dir_all(root.join("tree"))?;
        sync(&root)
    })?;
    let (large, piece) = (root.join("large"), vec![0x5a; PIECE]);
    let written = phase(&mut session, Returned::default(), 1, || {
        let mut file = File::create_new(&large)?;
        (0..LARGE / PIECE).try_for_each(|_| file.write_all(&piece))?;
        sync(&root)
    })?;
    let mut back = vec![0; PIECE];
    let whole = Returned { contents: LARGE as u64, names: 1 };
    let mut rounds = Vec::new();
    for _ in 0..READS {
        rounds.push(phase(&mut session, whole, cache_check::TRIES, || {
            let mut file = File::open(&large)?;
            for _ in 0..LARGE / PIECE {
                file.read_exact(&mut back)?;
                ensure!(back == piece, "the large file has wrong bytes");
            }
            Ok(())
        })?);
    }
    // Warm ones, which have no figure, last.
    rounds.sort_by_key(|cost| (cost.warm.is_some(), cost.work.time));
    let cold = rounds.iter().filter(|cost| cost.warm.is_none()).count();
    let large_read = rounds.swap_remove(cold / 2);
    session.check()?;
    session.close()?;
    Ok([unpack, read, walked, overwritten, synced, removed, written, large_read])
}

/// Directories, each before what is in it, and files in the order in which they are made.
fn paths(tree: &Tree, top: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut dirs: Vec<PathBuf> = Vec::new();
    for (n, parent) in tree.parents.iter().enumerate() {
        dirs.push(if n == 0 { top.to_path_buf() } else { dirs[*parent].join(format!("dir{n}")) });
    }
    let files = tree.files.iter().enumerate().map(|(n, (dir, _))| dirs[*dir].join(file_name(n))).collect();
    (dirs, files)
}

/// Attributes of everything below; returns how many.
fn walk(dir: &Path) -> io::Result<usize> {
    let mut seen = 0;
    let mut below = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        seen += 1;
        if entry.metadata()?.is_dir() {
            below.push(entry.path());
        }
    }
    for dir in below {
        seen += walk(&dir)?;
    }
    Ok(seen)
}

/// What the disk was asked from the mount's end to the end of the work, and from the mount's beginning to the end of the unmount. What was not cold although it
/// should have been is done again, up to `tries` times in all.
fn phase(
    session: &mut Session,
    returned: Returned,
    tries: usize,
    mut work: impl FnMut() -> Result<()>,
) -> Result<Cost> {
    let mut left = tries;
    loop {
        let unmounted_before = session.flushed()?;
        session.mount()?;
        let before = session.flushed()?;
        work()?;
        let done = session.flushed()?;
        session.unmount()?;
        let unmounted = session.flushed()?;
        // A mount may bring some of it already.
        let read = done.read_bytes - unmounted_before.read_bytes;
        let warm = returned.was_warm(read).then(|| returned.said(read));
        left -= 1;
        if let Some(why) = &warm {
            eprintln!("  {why}{}", if left > 0 { "; once more" } else { "" });
        }
        if warm.is_none() || left == 0 {
            return Ok(Cost { work: done - before, whole: unmounted - unmounted_before, warm });
        }
    }
}
