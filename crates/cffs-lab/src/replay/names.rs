//! The name space of the recording, as it is at a moment of the replay: inodes are those of the recording.

use std::collections::HashMap;

use cffs::ROOT_INO;

use super::workload::StartTree;

/// Names, and where each inode has one.
#[derive(Debug, Default)]
pub struct Names {
    entries: HashMap<(u64, Vec<u8>), u64>,
    places: HashMap<u64, (u64, Vec<u8>)>,
}

impl Names {
    /// Those of the beginning.
    pub fn new(tree: &StartTree) -> Names {
        let mut names = Names::default();
        for (directory, entries) in &tree.directories {
            entries.iter().for_each(|e| names.add(*directory, &e.name, e.inode));
        }
        names
    }

    /// A name appears, perhaps in the place of another file's.
    pub fn add(&mut self, directory: u64, name: &[u8], inode: u64) {
        if self.get(directory, name) == Some(inode) {
            return;
        }
        self.remove(directory, name);
        self.entries.insert((directory, name.to_vec()), inode);
        self.places.insert(inode, (directory, name.to_vec()));
    }

    /// A name disappears.
    pub fn remove(&mut self, directory: u64, name: &[u8]) {
        let Some(inode) = self.entries.remove(&(directory, name.to_vec())) else { return };
        let was_place = self.places.get(&inode).is_some_and(|(d, n)| *d == directory && n == name);
        if was_place {
            self.places.remove(&inode);
            // Rare: another name of a file with several.
            if let Some((place, _)) = self.entries.iter().find(|(_, i)| **i == inode) {
                self.places.insert(inode, place.clone());
            }
        }
    }

    /// As rename(2) with its flags.
    pub fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) {
        let Some(moved) = self.get(from.0, from.1) else { return };
        let there = self.get(to.0, to.1);
        if there == Some(moved) {
            return;
        }
        self.remove(from.0, from.1);
        self.add(to.0, to.1, moved);
        if let Some(there) = there.filter(|_| exchange) {
            self.add(from.0, from.1, there);
        }
    }

    /// The inode with a name.
    pub fn get(&self, directory: u64, name: &[u8]) -> Option<u64> {
        self.entries.get(&(directory, name.to_vec())).copied()
    }

    /// A name of an inode.
    pub fn place(&self, inode: u64) -> Option<&(u64, Vec<u8>)> {
        self.places.get(&inode)
    }

    /// The names from the root to an inode; `None` if it has none.
    pub fn path(&self, inode: u64) -> Option<Vec<&[u8]>> {
        let mut path = Vec::new();
        let mut at = inode;
        while at != ROOT_INO {
            let (directory, name) = self.places.get(&at)?;
            path.push(name.as_slice());
            // A damaged trace may have a circle.
            if path.len() > 4096 {
                return None;
            }
            at = *directory;
        }
        path.reverse();
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_move_and_files_with_several_keep_one() {
        let mut n = Names::default();
        n.add(ROOT_INO, b"d", 20);
        n.add(20, b"a", 30);
        n.add(20, b"b", 31);
        n.add(ROOT_INO, b"other", 30);
        assert_eq!(n.path(31), Some(vec![&b"d"[..], b"b"]));
        n.rename((20, b"a"), (20, b"b"), false);
        assert_eq!((n.get(20, b"a"), n.get(20, b"b"), n.place(31)), (None, Some(30), None));
        n.rename((20, b"b"), (ROOT_INO, b"d"), true);
        assert_eq!((n.get(ROOT_INO, b"d"), n.get(20, b"b")), (Some(30), Some(20)));
        n.remove(ROOT_INO, b"d");
        assert_eq!(n.path(30), Some(vec![&b"other"[..]]));
        // A directory below itself has no path.
        assert_eq!(n.path(20), None);
    }
}
