//! The names in a directory at the beginning of a recording. The bytes are in `docs/format-trace.md`.

use super::frame::{FRAME_MAX, put_listing};
use super::varint::{put, take};
use crate::format::FileType;

/// A piece of the listing of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Its inode.
    pub directory: u64,
    /// Where the next piece begins; 0: this is the last one.
    pub next: u64,
    /// What is in it, in the order of the directory.
    pub entries: Vec<Listed>,
}

/// A name in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Its inode.
    pub inode: u64,
    /// Type and permissions, as in stat(2).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names of the inode.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of space that it has.
    pub space: u64,
    /// The name.
    pub name: Vec<u8>,
}

impl Listed {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode >> 12 == FileType::Directory as u32
    }
}

impl Listing {
    /// As a frame. Longer ones than a frame can be are `None`.
    pub fn frame(&self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        put(&mut body, self.directory);
        put(&mut body, self.next);
        for e in &self.entries {
            put(&mut body, e.inode);
            [e.mode, e.uid, e.gid, e.links].iter().for_each(|n| put(&mut body, u64::from(*n)));
            put(&mut body, e.size);
            put(&mut body, e.space);
            put(&mut body, e.name.len() as u64);
            body.extend_from_slice(&e.name);
        }
        let mut out = Vec::new();
        (body.len() < FRAME_MAX).then(|| put_listing(&mut out, &body))?;
        Some(out)
    }

    pub(super) fn decode(b: &mut &[u8]) -> Option<Listing> {
        let mut listing = Listing { directory: take(b)?, next: take(b)?, entries: Vec::new() };
        while !b.is_empty() {
            let inode = take(b)?;
            let mut small = || u32::try_from(take(b)?).ok();
            let (mode, uid, gid, links) = (small()?, small()?, small()?, small()?);
            let (size, space) = (take(b)?, take(b)?);
            let len = usize::try_from(take(b)?).ok()?;
            let (name, rest) = b.split_at_checked(len)?;
            *b = rest;
            listing.entries.push(Listed { inode, mode, uid, gid, links, size, space, name: name.to_vec() });
        }
        Some(listing)
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::HEADER;
    use super::super::reader::{Item, Reader};
    use super::*;

    #[test]
    fn listings_come_back() {
        let entry = |n: u64| Listed {
            inode: n << 40,
            mode: 0o100_644,
            uid: u32::MAX,
            gid: n as u32,
            links: 1,
            size: n << 20,
            space: n,
            name: vec![b'x'; n as usize],
        };
        let listing = Listing { directory: 7, next: 3, entries: (1..100).map(entry).collect() };
        let file = [&HEADER[..], &listing.frame().unwrap()].concat();
        let mut reader = Reader::new(&file[..]).unwrap();
        assert_eq!(reader.next_item().unwrap(), Some(Item::Listing(listing.clone())));
        assert_eq!(reader.next_item().unwrap(), None);
        let many = Listing { entries: vec![entry(200); 30_000], ..listing };
        assert_eq!(many.frame(), None);
    }
}
