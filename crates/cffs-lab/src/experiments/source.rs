//! Trees of source files, made up but the same on every machine, and what developers do with them.

use anyhow::Result;
use cffs::{Caller, Fs, Ino, ROOT_INO};

use super::harness::create;
use crate::random::Random;

/// Sizes of source files: upper limits in bytes, and how many of 100 files are at most that large.
const SIZES: [(u64, u64); 8] = [
    (1 << 10, 15),
    (2 << 10, 30),
    (4 << 10, 52),
    (8 << 10, 73),
    (16 << 10, 88),
    (32 << 10, 96),
    (64 << 10, 99),
    (160 << 10, 100),
];
/// Bytes of one call.
const PIECE: usize = 64 << 10;

/// A tree: files by directory. The directories are numbered; each but the first stands in one before it.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Of each directory, the one that it stands in.
    pub parents: Vec<usize>,
    /// Directory and size of each file, in the order of an archive.
    pub files: Vec<(usize, usize)>,
}

impl Tree {
    /// So many files in so many directories.
    pub fn new(files: u64, dirs: u64, seed: u64) -> Tree {
        let mut random = Random::new(seed);
        let dirs = dirs.max(1);
        let parents = (0..dirs).map(|n| if n == 0 { 0 } else { random.below(n.min(40)) as usize }).collect();
        let mut files: Vec<(usize, usize)> =
            (0..files).map(|_| (random.below(dirs) as usize, size(&mut random))).collect();
        files.sort_by_key(|(dir, _)| *dir);
        Tree { parents, files }
    }

    /// Bytes in all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, size)| *size as u64).sum()
    }

    /// Makes it in the directory `name` of the root.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn unpack(&self, fs: &Fs, name: &str) -> Result<()> {
        self.unpack_with(fs, name, &mut |size| vec![0x5a; size])
    }

    /// The same; `content` gives the contents of files of so many bytes.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn unpack_with(&self, fs: &Fs, name: &str, content: &mut dyn FnMut(usize) -> Vec<u8>) -> Result<()> {
        let mut dirs: Vec<Ino> = Vec::new();
        let mut files = self.files.iter().enumerate().peekable();
        for (n, parent) in self.parents.iter().enumerate() {
            let (parent, name) = if n == 0 { (ROOT_INO, name.to_string()) } else { (dirs[*parent], dir_name(n)) };
            dirs.push(fs.mkdir(Caller::ROOT, parent, name.as_bytes(), 0o755)?.ino);
            while let Some((i, (_, size))) = files.next_if(|(_, (dir, _))| *dir == n) {
                create(fs, dirs[n], &file_name(i), &content(*size))?;
            }
        }
        dirs.into_iter().for_each(|ino| fs.forget(ino, 1));
        Ok(())
    }

    /// Looks the directories up.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn open(&self, fs: &Fs, name: &str) -> Result<Vec<Ino>> {
        let mut dirs: Vec<Ino> = Vec::new();
        for (n, parent) in self.parents.iter().enumerate() {
            let (parent, name) = if n == 0 { (ROOT_INO, name.to_string()) } else { (dirs[*parent], dir_name(n)) };
            dirs.push(fs.lookup(parent, name.as_bytes())?.ino);
        }
        Ok(dirs)
    }
}

impl Tree {
    /// Does something in one of the directories, on the way to which only those above it are looked up.
    ///
    /// # Errors
    /// Those of the engine and of the work.
    pub fn within(&self, fs: &Fs, top: Ino, dir: usize, work: &mut dyn FnMut(Ino) -> Result<()>) -> Result<()> {
        if dir == 0 {
            return work(top);
        }
        self.within(fs, top, self.parents[dir], &mut |parent| {
            let ino = fs.lookup(parent, dir_name(dir).as_bytes())?.ino;
            let outcome = work(ino);
            fs.forget(ino, 1);
            outcome
        })
    }
}

/// The size of one more file.
pub fn size(random: &mut Random) -> usize {
    let share = random.below(100);
    let at = SIZES.iter().position(|(_, up_to)| share < *up_to).unwrap_or(0);
    let from = if at == 0 { 64 } else { SIZES[at - 1].0 };
    (from + random.below(SIZES[at].0 - from)) as usize
}

fn dir_name(n: usize) -> String {
    format!("dir{n}")
}

/// Name of the file with this number.
pub fn file_name(n: usize) -> String {
    format!("file{n}.c")
}

/// Reads a file to its end.
///
/// # Errors
/// Those of the engine.
pub fn read_whole(fs: &Fs, ino: Ino) -> cffs::Result<u64> {
    let mut buf = vec![0; PIECE];
    let mut at = 0;
    loop {
        match fs.read(ino, at, &mut buf)? {
            0 => return Ok(at),
            n => at += n as u64,
        }
    }
}

/// Everything below a directory in the order of its listings, as `grep -r` does it: reads files, returns how many.
///
/// # Errors
/// Those of the engine.
pub fn search(fs: &Fs, dir: Ino) -> Result<u64> {
    let mut read = 0;
    for (name, is_dir) in list(fs, dir)? {
        let ino = fs.lookup(dir, &name)?.ino;
        let found = if is_dir { search(fs, ino) } else { read_whole(fs, ino).map(|_| 1).map_err(Into::into) };
        fs.forget(ino, 1);
        read += found?;
    }
    Ok(read)
}

/// Looks at the attributes of everything below a directory, as `find -ls` does it; returns how many.
///
/// # Errors
/// Those of the engine.
pub fn walk(fs: &Fs, dir: Ino) -> Result<u64> {
    let mut seen = 0;
    for (name, is_dir) in list(fs, dir)? {
        let ino = fs.lookup(dir, &name)?.ino;
        let below = if is_dir { walk(fs, ino) } else { Ok(0) };
        fs.forget(ino, 1);
        seen += 1 + below?;
    }
    Ok(seen)
}

/// Removes everything below a directory, as `rm -r` does it.
///
/// # Errors
/// Those of the engine.
pub fn remove_below(fs: &Fs, dir: Ino) -> Result<()> {
    for (name, is_dir) in list(fs, dir)? {
        if is_dir {
            let ino = fs.lookup(dir, &name)?.ino;
            let removed = remove_below(fs, ino);
            fs.forget(ino, 1);
            removed?;
            fs.rmdir(dir, &name)?;
        } else {
            fs.unlink(dir, &name)?;
        }
    }
    Ok(())
}

/// Names and whether they are directories, without `.` and `..`.
fn list(fs: &Fs, dir: Ino) -> Result<Vec<(Vec<u8>, bool)>> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, false, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name, entry.file_type == cffs::FileType::Directory));
        }
        true
    })?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::harness::{Harness, Setup};

    #[test]
    fn a_tree_is_made_read_and_removed() {
        let tree = Tree::new(60, 9, 3);
        assert_eq!((tree.files.len(), tree.parents.len()), (60, 9));
        assert!(tree.parents.iter().enumerate().skip(1).all(|(n, parent)| *parent < n));
        let mut harness = Harness::new(&Setup { bytes: 32 << 20, ..Setup::today("nvme") }).unwrap();
        let empty = harness.used_bytes().unwrap();
        harness.phase(|fs| tree.unpack(fs, "tree")).unwrap();
        assert!(harness.used_bytes().unwrap() > empty + tree.bytes() / 2);
        harness
            .phase(|fs| {
                let dirs = tree.open(fs, "tree")?;
                assert_eq!(search(fs, dirs[0])?, 60);
                assert_eq!(walk(fs, dirs[0])?, 60 + 8);
                remove_below(fs, dirs[0])?;
                assert_eq!(walk(fs, dirs[0])?, 0);
                dirs.into_iter().for_each(|ino| fs.forget(ino, 1));
                Ok(())
            })
            .unwrap();
        harness.check().unwrap();
    }
}
