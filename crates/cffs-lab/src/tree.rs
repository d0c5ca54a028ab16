//! Real files of this machine, selected the same way each time.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::run_command;

/// Where a Debian machine keeps many small files, in order of preference.
const ROOTS: [&str; 4] = ["/usr/include", "/usr/lib", "/usr/share", "/usr/local"];
/// Larger files are left out: this is about many small ones.
const MAX_FILE: u64 = 1 << 20;

/// Arguments of `cffs-lab tree`.
#[derive(clap::Args)]
pub struct Args {
    /// The directory to make; must not exist
    dir: PathBuf,
    /// How many files to take from this machine
    #[arg(long, default_value_t = 6000)]
    files: usize,
    /// Fail when fewer are found
    #[arg(long, default_value_t = 5000)]
    at_least: usize,
}

/// Which files were taken.
#[derive(Debug, Default)]
pub struct Selection {
    /// Paths relative to `/`; every directory comes before what is in it.
    pub paths: Vec<PathBuf>,
    /// Regular files among them.
    pub files: u64,
    /// Symbolic links among them.
    pub symlinks: u64,
    /// Directories among them.
    pub dirs: u64,
    /// Bytes in the regular files.
    pub bytes: u64,
}

/// Takes up to `wanted` files (regular files and symbolic links) from the
/// usual places, in sorted order. An equal share of each place comes first,
/// so that headers, programs' modules, documentation and data are all there.
pub fn select(wanted: usize) -> Selection {
    let mut chosen = BTreeSet::new();
    let mut left = wanted;
    for (i, root) in ROOTS.iter().enumerate() {
        let share = left.div_ceil(ROOTS.len() - i);
        left -= take(Path::new(root), share, &mut chosen);
    }
    // Where a place had less than its share, the others give more.
    for root in ROOTS {
        left -= take(Path::new(root), left, &mut chosen);
    }
    let mut selection = Selection::default();
    for path in chosen {
        let Ok(meta) = fs::symlink_metadata(Path::new("/").join(&path)) else {
            continue;
        };
        if meta.is_dir() {
            selection.dirs += 1;
        } else if meta.is_symlink() {
            selection.symlinks += 1;
        } else {
            selection.files += 1;
            selection.bytes += meta.len();
        }
        selection.paths.push(path);
    }
    selection
}

/// Adds up to `share` not yet chosen files below `dir`; returns how many.
fn take(dir: &Path, share: usize, chosen: &mut BTreeSet<PathBuf>) -> usize {
    let mut added = 0;
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if added >= share {
            break;
        }
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        if meta.is_dir() {
            added += take(&path, share - added, chosen);
            continue;
        }
        let fits = meta.is_file() && meta.len() <= MAX_FILE && fs::File::open(&path).is_ok();
        let Ok(relative) = path.strip_prefix("/") else {
            continue;
        };
        if (fits || meta.is_symlink()) && chosen.insert(relative.to_path_buf()) {
            added += 1;
            for parent in relative.ancestors().skip(1) {
                if parent.as_os_str().is_empty() || !chosen.insert(parent.to_path_buf()) {
                    break;
                }
            }
        }
    }
    added
}

/// Packs a selection into a tar archive.
///
/// # Errors
/// When the list or the archive cannot be written.
pub fn pack(selection: &Selection, archive: &Path) -> Result<()> {
    let list_path = archive.with_extension("list");
    let mut list = Vec::new();
    for path in &selection.paths {
        list.extend_from_slice(path.as_os_str().as_bytes());
        list.push(0);
    }
    fs::write(&list_path, list).with_context(|| format!("cannot write {}", list_path.display()))?;
    let mut tar = Command::new("tar");
    tar.args(["-C", "/", "--null", "--no-recursion", "--verbatim-files-from"])
        .arg("-T")
        .arg(&list_path)
        .arg("-cf")
        .arg(archive);
    run_command(tar, Duration::from_secs(600))?;
    fs::remove_file(&list_path)?;
    Ok(())
}

/// Runs the subcommand.
///
/// # Errors
/// When too few files are found, or the tree cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let selection = select(args.files);
    let found = selection.files + selection.symlinks;
    if found < args.at_least as u64 {
        bail!("only {found} files below {}; {} are needed", ROOTS.join(", "), args.at_least);
    }
    fs::create_dir(&args.dir).with_context(|| format!("cannot make {}", args.dir.display()))?;
    let archive = args.dir.with_extension("tar");
    pack(&selection, &archive)?;
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&args.dir).arg("-xpf").arg(&archive);
    let unpacked = run_command(tar, Duration::from_secs(600));
    fs::remove_file(&archive)?;
    unpacked?;
    let odd = add_odd_things(&args.dir).context("cannot add the unusual files")?;
    println!(
        "{} files, {} symbolic links, {} directories, {} bytes from this machine, and {odd} unusual objects of our own",
        selection.files, selection.symlinks, selection.dirs, selection.bytes
    );
    Ok(ExitCode::SUCCESS)
}

/// What a system tree seldom has, and a file system must keep all the same:
/// hard links, holes, odd names, modes, owners and times. Returns how many.
fn add_odd_things(dir: &Path) -> Result<u64> {
    let odd = dir.join("unusual");
    let mut made = 1 + add_hard_links(&odd)?;
    let targets = [
        "relative/../target".to_string(),
        "/absolute/and/dangling".to_string(),
        "linked-000".to_string(),
        "x".repeat(1000),
        "long/".repeat(800),
    ];
    for (i, target) in targets.iter().enumerate() {
        symlink(target, odd.join(format!("symlink-{i}")))?;
        made += 1;
    }
    for name in [" leading blank", "new\nline", "-dash", "quote'\"\\", "ümläut-文件-🗂", &"n".repeat(255)] {
        fs::write(odd.join(name), name)?;
        made += 1;
    }
    fs::write(odd.join("empty"), b"")?;
    add_large_files(&odd)?;
    made += 3;
    for (size, name) in [(1, "one"), (1023, "1023"), (1024, "1024"), (4097, "4097")] {
        fs::write(odd.join(format!("bytes-{name}")), vec![0xa5; size])?;
        made += 1;
    }
    made += add_modes_and_owners(&odd)?;
    for (secs, nanos) in [(0, 1), (1, 999_999_999), (2_000_000_000, 7), (4_000_000_000, 123_456_789)] {
        let file = fs::File::create(odd.join(format!("time-{secs}")))?;
        file.set_modified(std::time::UNIX_EPOCH + Duration::new(secs, nanos))?;
        made += 1;
    }
    let fifo = odd.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o640), 0)?;
    let mut deep = odd.clone();
    for level in 0..40 {
        deep.push(format!("level-{level}"));
    }
    fs::create_dir_all(&deep)?;
    fs::write(deep.join("bottom"), b"down here")?;
    Ok(made + 42)
}

/// Files with one to three more names in a directory of their own. Returns how many entries it made.
fn add_hard_links(odd: &Path) -> Result<u64> {
    let links = odd.join("hard links");
    fs::create_dir_all(&links)?;
    let mut made = 1;
    for i in 0..100 {
        let file = odd.join(format!("linked-{i:03}"));
        fs::write(&file, format!("file {i} with several names\n"))?;
        for copy in 0..=i % 3 {
            fs::hard_link(&file, links.join(format!("name-{i:03}-{copy}")))?;
            made += 1;
        }
        made += 1;
    }
    let groups = fs::metadata(odd.join("linked-002"))?.nlink();
    if groups != 4 {
        bail!("the host's file system lost a hard link: {groups} names");
    }
    Ok(made)
}

/// A file that is mostly a hole, and one without.
fn add_large_files(odd: &Path) -> Result<()> {
    let sparse = fs::File::create(odd.join("sparse"))?;
    sparse.set_len(64 << 20)?;
    write_at(&sparse, b"in the middle of a hole", 40 << 20)?;
    let mut large = fs::File::create(odd.join("large"))?;
    for i in 0u32..(8 << 20) / 4096 {
        let mut block = [0u8; 4096];
        for (j, byte) in block.iter_mut().enumerate() {
            *byte = (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ j as u8;
        }
        large.write_all(&block)?;
    }
    Ok(())
}

/// Files of many modes and, as root, of other owners. Returns how many entries it made.
fn add_modes_and_owners(odd: &Path) -> Result<u64> {
    let mut made = 0;
    let root = rustix::process::geteuid().is_root();
    // Only root can read, and so compare, what nobody may read.
    let least = if root { 0o000 } else { 0o444 };
    for mode in [least, 0o400, 0o755, 0o1777, 0o2755, 0o4755, 0o6711] {
        let path = odd.join(format!("mode-{mode:04o}"));
        fs::write(&path, b"mode")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        made += 1;
    }
    if root {
        for (uid, gid) in [(1, 2), (1000, 1000), (65534, 65534), (4_000_000_000, 3_000_000_000)] {
            let path = odd.join(format!("owner-{uid}"));
            fs::write(&path, b"owner")?;
            std::os::unix::fs::chown(&path, Some(uid), Some(gid))?;
            made += 1;
        }
    }
    Ok(made)
}

fn write_at(file: &fs::File, bytes: &[u8], at: u64) -> Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_deterministic_and_lists_parents_first() {
        let one = select(300);
        let two = select(300);
        assert_eq!(one.paths, two.paths);
        assert!(one.files + one.symlinks <= 300);
        for (i, path) in one.paths.iter().enumerate() {
            let parent = path.parent().unwrap();
            if !parent.as_os_str().is_empty() {
                assert!(one.paths[..i].iter().any(|p| p == parent), "{} before {}", path.display(), parent.display());
            }
        }
    }

    #[test]
    fn a_packed_selection_unpacks_to_the_same_files() {
        let base = tempfile::tempdir().unwrap();
        let selection = select(50);
        let archive = base.path().join("a.tar");
        pack(&selection, &archive).unwrap();
        let listed = run_command(
            {
                let mut tar = Command::new("tar");
                tar.arg("-tf").arg(&archive);
                tar
            },
            Duration::from_secs(60),
        )
        .unwrap();
        assert_eq!(listed.lines().count(), selection.paths.len());
    }
}
