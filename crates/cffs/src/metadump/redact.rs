//! Redaction: removes contents of files from a block, and obfuscates names if that is asked for.
//!
//! A check finds the same in the redacted block: an impossible value stays impossible, and a wrong checksum stays wrong.

use super::obfuscate::Obfuscator;
use crate::dump::entry_chain;
use crate::format::dirblock::{self, DIR_LBLOCK, ENTRY_HEADER};
use crate::format::dirindex::name_hash;
use crate::format::geometry::INODE_SLOT_SIZE;
use crate::format::inode::{INODE_CORE_SIZE, INODE_XATTRS, XATTR_BLOCK_BITS};
use crate::format::xattr::{Namespace, XATTR_NAME_MAX, XATTR_VALUE_MAX};
use crate::format::*;
use std::collections::HashMap;

/// A name in an indexed directory: hash stored with it before and now, block of the directory.
pub(super) type IndexedName = (u32, u32, u32);

/// A symbolic link whose target does not fit the inode.
pub(super) struct LongLink {
    pub(super) extents: Vec<Extent>,
    pub(super) size: usize,
}

/// Structures met in the blocks that are copied separately.
#[derive(Default)]
pub(super) struct Seen {
    /// Names of the directories that have an entry here.
    pub(super) names: HashMap<Ino, Vec<IndexedName>>,
    /// Index buckets of directories.
    pub(super) buckets: HashMap<Ino, u32>,
    pub(super) links: Vec<LongLink>,
    /// Chains of extended attributes: whose, and the first block.
    pub(super) chains: Vec<(Ino, BlockAddr)>,
}

/// Removes what must not be in a metadata image.
pub(super) struct Redactor {
    pub(super) fsid: u64,
    pub(super) seed: [u64; 2],
    pub(super) obfuscate: Option<Obfuscator>,
    /// Copy blocks whole whose checksum does not match.
    pub(super) keep_damaged: bool,
}

fn keep_wrong(b: &mut [u8]) {
    if crc_ok(b) {
        b[META_CRC] ^= 1;
    }
}

impl Redactor {
    /// A block as it goes into the copy; `None` for what is no metadata of this file system.
    pub(super) fn block(&self, raw: &[u8], seen: &mut Seen) -> Option<Vec<u8>> {
        let kind = BlockKind::from_magic(get_u32(raw, 0)).filter(|_| get_u64(raw, 8) == self.fsid)?;
        let good = crc_ok(raw);
        let mut b = raw.to_vec();
        if !good && !self.keep_damaged {
            // Part of the block may be contents of a file by now.
            b[META_HEADER_SIZE..].fill(0);
            keep_wrong(&mut b);
            return Some(b);
        }
        match kind {
            BlockKind::Dir => self.dir(raw, &mut b, good, seen),
            BlockKind::SystemInodes | BlockKind::ExternalInodes => {
                for slot in b[META_HEADER_SIZE..].chunks_exact_mut(INODE_SLOT_SIZE) {
                    if get_u64(slot, 0) == 0 {
                        slot.fill(0);
                    } else {
                        self.inode(slot, seen);
                    }
                }
            }
            // Checksums reveal contents, so the copy has none.
            BlockKind::DataSums => b[META_HEADER_SIZE..].fill(0),
            // Blocks of a chain are written later, with the whole chain.
            BlockKind::Xattr if self.obfuscate.is_some() => b[META_HEADER_SIZE..].fill(0),
            BlockKind::AgHeader
            | BlockKind::Bitmap
            | BlockKind::Counters
            | BlockKind::DirIndex
            | BlockKind::ExtentNode
            | BlockKind::Locator
            | BlockKind::TableMap
            | BlockKind::Xattr
            | BlockKind::Quota => {}
        }
        if good {
            seal(&mut b, block_seq(raw))
        } else {
            keep_wrong(&mut b)
        }
        Some(b)
    }

    fn dir(&self, raw: &[u8], b: &mut [u8], good: bool, seen: &mut Seen) {
        let valid = good && dirblock::validate(raw).is_ok();
        let (owner, lblock) = (block_owner(raw), get_u64(raw, DIR_LBLOCK) as u32);
        let mut names = seen.names.remove(&owner);
        let mut end = META_HEADER_SIZE;
        for e in entry_chain(raw) {
            end = e.offset + e.len;
            let (body, name_end) = (e.offset + ENTRY_HEADER, e.offset + ENTRY_HEADER + e.name.len());
            match e.kind {
                0 => b[e.offset + 4..end].fill(0),
                1..=3 => {
                    if let Some(s) = &self.obfuscate {
                        s.name(&mut b[body..name_end]);
                        let stored = get_u32(raw, e.offset + 4);
                        // A hash that was wrong stays wrong.
                        let wrong_by = stored ^ name_hash(self.seed, e.name);
                        let hash = name_hash(self.seed, &b[body..name_end]) ^ wrong_by;
                        put_u32(b, e.offset + 4, hash);
                        if let Some(list) = names.as_mut().filter(|_| valid && e.kind != 3) {
                            list.push((stored, hash, lblock));
                        }
                    }
                    b[name_end..e.inode_offset()].fill(0);
                    let room = &mut b[e.inode_offset()..end];
                    if e.kind == 2 { room.fill(0) } else { self.inode(room, seen) }
                }
                _ => b[body..end].fill(0),
            }
        }
        // Where the chain breaks zeros break it too.
        b[end..].fill(0);
        if let Some(names) = names {
            seen.names.insert(owner, names);
        }
    }

    /// An inode; `b` is all the room that it has.
    fn inode(&self, b: &mut [u8], seen: &mut Seen) {
        let Ok(mut inode) = Inode::decode(b) else { return self.damaged_inode(b) };
        let link = inode.file_type() == FileType::Symlink;
        match &mut inode.format {
            InodeFormat::Inline(target) if link => {
                if let Some(s) = &self.obfuscate {
                    s.target(target);
                }
            }
            InodeFormat::Inline(data) => data.fill(0),
            InodeFormat::Extents(list) if link && inode.size <= SYMLINK_MAX as u64 => {
                seen.links.push(LongLink { extents: list.clone(), size: inode.size as usize });
            }
            _ => {}
        }
        if self.obfuscate.is_some() {
            self.attributes(&mut inode.xattrs, true);
            if inode.xattr_block != 0 {
                seen.chains.push((inode.ino, inode.xattr_block));
            }
        }
        if inode.is_dir() && inode.index_buckets > 0 {
            seen.buckets.insert(inode.ino, inode.index_buckets);
        }
        let len = inode.encoded_len();
        inode.encode(&mut b[..len]);
        b[len..].fill(0);
    }

    /// Keeps the fields and extents of an inode that does not decode, because a check reports them.
    fn damaged_inode(&self, b: &mut [u8]) {
        if b.len() < INODE_CORE_SIZE {
            return b.fill(0);
        }
        let maps = (2..=10).contains(&b[14]);
        let xattrs = (get_u64(b, INODE_XATTRS) >> XATTR_BLOCK_BITS) as usize * 8;
        let inline = b[15] as usize * 8;
        let area = &mut b[INODE_CORE_SIZE..];
        let kept = if maps && inline <= area.len() { inline.saturating_sub(xattrs) } else { 0 };
        area[kept..].fill(0);
    }

    /// A list of extended attributes, as far as it decodes; the rest becomes something that does not decode either.
    pub(super) fn attributes(&self, list: &mut [u8], padded: bool) {
        let Some(s) = &self.obfuscate else { return };
        let mut at = 0;
        while list.len() - at >= 4 {
            let word = get_u32(list, at);
            let (name_len, value_len) = ((word >> 4 & 0xff) as usize, (word >> 12 & 0x1_ffff) as usize);
            let (name_at, value_at) = (at + 4, at + 4 + name_len);
            let end = value_at + value_len;
            let next = end.next_multiple_of(4);
            let namespace = Namespace::ALL.into_iter().find(|n| *n as u32 == word & 0xf);
            let possible = |n: &Namespace| {
                word >> 29 == 0
                    && value_len <= XATTR_VALUE_MAX
                    && n.is_acl() == (name_len == 0)
                    && n.prefix().len() + name_len <= XATTR_NAME_MAX
                    && next <= list.len()
            };
            let Some(namespace) = namespace.filter(possible) else {
                let ends = word == 0 && padded && list[at..].iter().all(|b| *b == 0);
                if !ends {
                    list[at + 4..].fill(1);
                }
                return;
            };
            if matches!(namespace, Namespace::User | Namespace::Trusted) {
                s.name(&mut list[name_at..value_at]);
            }
            // Access control lists are numbers, and have to agree with the mode.
            if !namespace.is_acl() {
                s.value(&mut list[value_at..end]);
            }
            if list[end..next].iter().any(|b| *b != 0) {
                list[end..next].fill(1);
            }
            at = next;
        }
    }
}
