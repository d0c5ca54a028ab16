//! McKusick et al. 1984: space wasted, and large transfers by block size.

use std::fs;
use std::path::Path;

use anyhow::Result;
use cffs::MetadataMode;

use super::harness::{Harness, Setup, Variant};
use super::large::{self, raw};
use super::outcome::{Claim, Outcome, shown};
use super::source::Tree;

/// Most files of a tree of this machine.
const FILES_MAX: usize = 4000;
/// Trees of this machine, where they are there.
const REAL: [&str; 3] = ["/usr/include", "/usr/share/doc", "/usr/lib/python3"];
/// Bytes of an inode, of a name with its entry, and of a block address in the file system that the paper replaced.
const OLD_INODE: u64 = 64;
const OLD_ENTRY: u64 = 16;
const OLD_ADDRESS: u64 = 4;
const OLD_DIRECT: u64 = 10;

/// Bytes that the file system of before 1984 takes for the tree, with blocks of this size.
fn old_unix(tree: &Tree, block: u64) -> u64 {
    let mut entries = vec![2u64; tree.parents.len()];
    tree.files.iter().for_each(|(dir, _)| entries[*dir] += 1);
    tree.parents.iter().skip(1).for_each(|parent| entries[*parent] += 1);
    let files = tree.files.iter().map(|(_, size)| *size as u64);
    files.chain(entries.iter().map(|n| n * OLD_ENTRY)).map(|size| OLD_INODE + old_blocks(size, block) * block).sum()
}

/// Blocks of a file with their indirect ones.
fn old_blocks(size: u64, block: u64) -> u64 {
    let (data, per) = (size.div_ceil(block), block / OLD_ADDRESS);
    let single = data.saturating_sub(OLD_DIRECT).div_ceil(per);
    data + single + if single > 1 { (single - 1).div_ceil(per) } else { 0 }
}

/// What is on the disk beyond the contents, in % of them; and the part of it that fragments leave unused at the ends of files.
fn waste(tree: &Tree, fragment: u32, variant: Variant) -> Result<[f64; 2]> {
    let bytes = (tree.bytes() * 2 + (64 << 20)).next_multiple_of(1 << 20);
    let mut harness = Harness::new(&Setup { bytes, fragment, variant, ..Setup::today("nvme") })?;
    let empty = harness.used_bytes()?;
    harness.phase(|fs| tree.unpack(fs, "tree"))?;
    let used = harness.used_bytes()? - empty;
    harness.check()?;
    let ends: u64 =
        tree.files.iter().map(|(_, size)| (*size as u64).next_multiple_of(u64::from(fragment)) - *size as u64).sum();
    let share = |bytes: f64| bytes / tree.bytes() as f64 * 100.0;
    Ok([share(used as f64) - 100.0, share(ends as f64)])
}

/// Sizes and directories of files of this machine, in sorted order.
fn real_tree(root: &Path) -> Option<Tree> {
    let mut tree = Tree { parents: vec![0], files: Vec::new() };
    let mut open = vec![(root.to_path_buf(), 0)];
    let mut next = 0;
    while next < open.len() && tree.files.len() < FILES_MAX {
        let (path, dir) = open[next].clone();
        next += 1;
        let mut entries: Vec<_> = fs::read_dir(path).ok()?.flatten().map(|e| e.path()).collect();
        entries.sort();
        for path in entries {
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if meta.is_dir() {
                tree.parents.push(dir);
                open.push((path, tree.parents.len() - 1));
            } else if meta.is_file() && meta.len() <= 1 << 20 {
                tree.files.push((dir, meta.len() as usize));
            }
        }
    }
    tree.files.sort_by_key(|(dir, _)| *dir);
    (!tree.files.is_empty()).then_some(tree)
}

/// Table 1.
///
/// # Errors
/// Those of the engine.
pub fn table1(scale: u64) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let tree = Tree::new(5955 / scale, 952 / scale, 43);
    let percent = |bytes: u64| (bytes as f64 / tree.bytes() as f64 - 1.0) * 100.0;
    let sectors: u64 = tree.files.iter().map(|(_, size)| (*size as u64).next_multiple_of(512)).sum();
    let old: Vec<f64> = [512, 1024, 2048, 4096].map(|block| percent(old_unix(&tree, block))).to_vec();
    let fragments = [512, 1024, 2048, 4096];
    let ours = |variant| fragments.iter().map(|f| waste(&tree, *f, variant)).collect::<Result<Vec<[f64; 2]>>>();
    let first = |found: &[[f64; 2]]| found.iter().map(|w| w[0]).collect::<Vec<f64>>();
    let (found, embedding) = (ours(Variant::BOTH)?, first(&ours(Variant { embed: true, group: false })?));
    let both = first(&found);
    let why = |at: usize| {
        let [all, ends] = found[at];
        let entries = (tree.files.len() + tree.parents.len()) as f64;
        format!(
            "The ends of files take {}% with fragments of {} bytes; the other {}% are {} bytes for each file and directory: an entry with its inode (120 \
             bytes, 64 for extents or contents, the name), the tables, and a block for each of {} directories. Then it was {} bytes for an inode \
             and {} for an entry.",
            shown(ends),
            fragments[at],
            shown(all - ends),
            shown((all - ends) / 100.0 * tree.bytes() as f64 / entries),
            tree.parents.len(),
            OLD_INODE,
            OLD_ENTRY
        )
    };
    let at = fragments.map(|f| f.to_string());
    let rows = vec![
        ("the paper: data and inodes, blocks of this size".to_string(), vec![6.9, 11.8, 22.4, 45.6]),
        ("that file system with our tree (calculated)".to_string(), old.clone()),
        ("cffs, blocks of 4096, fragments of this size".to_string(), both.clone()),
        ("the same without groups".to_string(), embedding),
    ];
    outcome.add("Space beyond the contents", "%", "unit of allocation in bytes", &at, rows, false);
    let mut real = Vec::new();
    for root in REAL {
        if let Some(tree) = real_tree(Path::new(root)) {
            let row = fragments.iter().map(|f| Ok(waste(&tree, *f, Variant::BOTH)?[0])).collect::<Result<_>>()?;
            real.push((format!("{root}: {} files, {:.1} MB", tree.files.len(), tree.bytes() as f64 / 1e6), row));
        }
    }
    outcome.table("Trees of this machine: cffs, space beyond the contents (%)", "tree, by fragment", &at, real);
    outcome.claims = vec![
        Claim::at_most("4096/1024: waste in % (about that of 1024-byte blocks with the same tree)", old[1], both[1])
            .because(|| why(1)),
        Claim::at_most("4096/512: waste in % (about that of 512-byte blocks with the same tree)", old[0], both[0])
            .because(|| why(0)),
        Claim::at_most("4096/1024: waste in % of that with 4096-byte blocks", 50.0, both[1] / old[3] * 100.0),
    ];
    outcome.notes = vec![
        format!(
            "Our tree: {} files of C-source sizes in {} directories, {:.1} MB; 512-byte boundaries alone waste {:.1}% of it \
             (paper: 4.2%).",
            tree.files.len(),
            tree.parents.len(),
            tree.bytes() as f64 / 1e6,
            percent(sectors)
        ),
        "Ours counts everything: contents, inodes, directories, tables, extent trees, and what groups keep free for neighbours.".into(),
        "The trees of this machine are other ones on another machine.".into(),
    ];
    Ok(outcome)
}

/// MB/s of reading and writing a file of so many bytes.
fn rates(setup: &Setup, bytes: u64) -> Result<[f64; 2]> {
    let mut harness = Harness::new(setup)?;
    let [write, read, _] = large::benchmark(&mut harness, bytes)?;
    harness.check()?;
    Ok([read, write])
}

/// Table 2.
///
/// # Errors
/// Those of the engine.
pub fn table2() -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let bytes = 32 << 20;
    let blocks = [1024, 4096, 8192, 16384];
    let [raw_read, raw_write] = raw("st31200", bytes, 0);
    let mut read = Vec::new();
    let mut write = Vec::new();
    for variant in [Variant::NEITHER, Variant::BOTH] {
        let mut row = [Vec::new(), Vec::new()];
        for block in blocks {
            let group = (64 << 10).max(block);
            let setup =
                Setup { block, fragment: (block / 4).max(512), group, ..Setup::ganger(variant, MetadataMode::Journal) };
            let [r, w] = rates(&Setup { scatter: false, ..setup }, bytes)?;
            row[0].push(r / raw_read * 100.0);
            row[1].push(w / raw_write * 100.0);
        }
        let [r, w] = row;
        read.push((variant.name().to_string(), r));
        write.push((variant.name().to_string(), w));
    }
    let least = |rows: &[(String, Vec<f64>)], row: usize| rows[row].1.iter().copied().fold(f64::MAX, f64::min);
    for (name, rows, paper) in [("read", &read, 47.0), ("write", &write, 39.0)] {
        for (row, variant) in ["conventional", "both techniques"].iter().enumerate() {
            let text = format!("{name}, {variant}: worst block size, share of the disk in % (paper)");
            outcome.claims.push(Claim::at_least(text, paper, least(rows, row)));
        }
        let text = format!("{name}, both techniques: worst block size, share of the disk in % (our target)");
        outcome.claims.push(Claim::at_least(text, 95.0, least(rows, 1)));
    }
    let at = blocks.map(|b| b.to_string());
    outcome.add("Read, share of the disk", "%", "block in bytes", &at, read, false);
    outcome.add("Write, share of the disk", "%", "block in bytes", &at, write, false);
    outcome.untested = vec![
        ("3 to 5% of the bandwidth with the old file system".into(), "no such file system is here to run".into()),
        ("share of the processor's time".into(), "virtual time has disk time alone".into()),
    ];
    outcome.notes.push("A file of 32 MB on a fresh file system, disk of the 1997 paper; writeback joins blocks, so that the block size hardly shows.".into());
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_file_system_is_counted_as_it_was() {
        assert_eq!(old_blocks(1, 512), 1);
        assert_eq!(old_blocks(10 * 512, 512), 10);
        assert_eq!(old_blocks(11 * 512, 512), 12, "an indirect block");
        let tree = Tree { parents: vec![0], files: vec![(0, 100), (0, 600)] };
        // Inodes of both files and the directory, three blocks of data, one of four entries.
        assert_eq!(old_unix(&tree, 512), 3 * 64 + 4 * 512);
    }
}
