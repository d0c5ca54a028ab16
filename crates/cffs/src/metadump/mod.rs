//! Metadata images: copies of a file system for bug reports, with everything that a check reads and without contents of files.
//!
//! The copy is sparse and as large as the original. A check of it finds the same problems. It has the blocks that the check
//! reads ([`crate::check`]), and the log with contents of files replaced by zeros. Names, targets of symbolic links and
//! extended attributes can be obfuscated ([`Obfuscator`]).

mod index;
mod log;
mod obfuscate;
mod redact;

pub use obfuscate::Obfuscator;

use crate::check::metadata_blocks;
use crate::check::repair::{Choice, copies_of, read_super, usable_superblock};
use crate::error::{Error, Result};
use crate::format::superblock::{INCOMPAT_EXTERNAL_LOG, LABEL_MAX, MAGIC, State};
use crate::format::xattr::{ChainBlock, chain_max};
use crate::format::*;
use crate::journal::recovery::replay;
use crate::superblocks::{backup_ags, find_copies};
use cffs_device::{Device, IoKind, OverlayDevice};
use log::Log;
use redact::{LongLink, Redactor, Seen};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Longest read in bytes.
const READ_MAX: u64 = 1 << 20;
/// Blocks between two calls of the progress function.
const PROGRESS_STEP: u64 = 256;

/// Settings of a copy.
#[derive(Clone, Debug, Default)]
pub struct MetadumpOptions {
    /// Obfuscate names, targets and values.
    pub obfuscate: Option<Obfuscator>,
    /// Copy blocks with a wrong checksum whole. Without, only their header is: parts of a file may be in them.
    pub keep_damaged: bool,
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Copied {
    /// Metadata blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks whose checksum does not match.
    pub damaged: u64,
    /// Blocks that are no metadata although something refers to them as such: left out.
    pub foreign: u64,
    /// Blocks that could not be read: left out.
    pub unreadable: u64,
    /// Transactions in the log.
    pub transactions: u64,
    /// Targets of symbolic links that stand outside their inodes.
    pub long_links: u64,
}

/// Called now and then with what is being done, how much is done, and how much there is to do.
pub type Progress<'a> = &'a dyn Fn(&'static str, u64, u64);

/// The devices of a file system, or of its copy.
pub struct Devices<D> {
    /// The file system.
    pub dev: D,
    /// Its log, where that is on another device.
    pub log: Option<D>,
}

struct Copier<'a> {
    g: Geometry,
    /// The original as it is after a replay.
    view: &'a dyn Device,
    target: &'a dyn Device,
    redactor: Redactor,
    seen: Seen,
    copied: Copied,
}

/// Copies the metadata of `source` to `target`, which is as long and all zeros. A file system without any good superblock
/// cannot be copied.
pub fn copy_metadata(
    source: &Devices<Arc<dyn Device>>,
    target: &Devices<&dyn Device>,
    options: &MetadumpOptions,
    progress: Progress<'_>,
) -> Result<Copied> {
    let Choice { superblock: sb, g, .. } = usable_superblock(&*source.dev)?;
    let external = sb.incompat & INCOMPAT_EXTERNAL_LOG != 0;
    let log_dev = match (&source.log, external) {
        (Some(log), true) => Some(log),
        (None, false) => Some(&source.dev),
        (None, true) if sb.state == State::Clean => None,
        (None, true) => return Error::invalid("not unmounted, and its log is on another device, which was not given"),
        (Some(_), false) => return Error::invalid("this file system has its log within itself: give no other"),
    };
    let redactor = Redactor {
        fsid: g.fsid,
        seed: sb.hash_seed,
        obfuscate: options.obfuscate.clone(),
        keep_damaged: options.keep_damaged,
    };
    // A check replays in memory what can be replayed, and so does this.
    let log = log_dev.map(|d| Log::open(&**d, &sb));
    let mut replayed: Option<Arc<dyn Device>> = None;
    if log.as_ref().is_some_and(|l| l.header.is_some()) {
        let view: Arc<dyn Device> = Arc::new(OverlayDevice::new(source.dev.clone()));
        let log_view = source.log.clone().map(OverlayDevice::new);
        if replay(&*view, log_view.as_ref().map(|d| d as &dyn Device), &sb, &g).is_ok() {
            replayed = Some(view);
        }
    }
    let view = replayed.as_ref().unwrap_or(&source.dev);
    let mut copier =
        Copier { g, view: &**view, target: target.dev, redactor, seen: Seen::default(), copied: Copied::default() };
    copier.superblocks(&*source.dev)?;
    let walk = |phase: crate::check::Phase, done, total| progress(phase.name(), done, total);
    let blocks = metadata_blocks(&**view, &sb, &g, &walk);
    let in_log = log.as_ref().map(|l| l.blocks(g.block_size())).transpose()?.unwrap_or_default();
    copier.blocks(&blocks, &*source.dev, &in_log, progress)?;
    if let (Some(log), Some(to)) = (&log, if external { target.log } else { Some(target.dev) }) {
        let obfuscates = options.obfuscate.is_some();
        let at_home = |addr| read_block(target.dev, &g, addr);
        let after = |addr| read_block(&**view, &g, addr);
        // Obfuscated blocks are in place in their last version already. The records repeat them.
        let read: &dyn Fn(BlockAddr) -> Option<Vec<u8>> = if obfuscates { &at_home } else { &after };
        let plain = Redactor { obfuscate: None, keep_damaged: true, ..copier.redactor };
        copier.copied.transactions = log.copy(to, &g, &plain, replayed.as_ref().map(|_| read), obfuscates)?;
        to.flush()?;
    }
    target.dev.flush()?;
    Ok(copier.copied)
}

fn read_block(dev: &dyn Device, g: &Geometry, addr: BlockAddr) -> Option<Vec<u8>> {
    let mut b = vec![0; g.block_size()];
    (addr < g.total_blocks && dev.read_at(IoKind::Meta, addr << g.block_shift, &mut b).is_ok()).then_some(b)
}

impl Copier<'_> {
    /// The superblock and its copies, good or not.
    fn superblocks(&mut self, source: &dyn Device) -> Result<()> {
        let mut places: BTreeSet<u64> =
            backup_ags(&self.g).map(|ag| self.g.ag_start(ag) << self.g.block_shift).collect();
        places.insert(0);
        let good = read_super(source, 0).is_ok_and(|b| Superblock::decode(&b).is_ok());
        let copies = if good { find_copies(source) } else { copies_of(source) };
        places.extend(copies.into_iter().map(|(at, _)| at));
        for at in places {
            let Some(mut sb) = read_super(source, at).ok().filter(|b| b.starts_with(&MAGIC)) else { continue };
            if let Some(s) = &self.redactor.obfuscate {
                obfuscate_label(s, &mut sb);
            }
            self.target.write_at(IoKind::Super, at, &sb)?;
        }
        Ok(())
    }

    fn blocks(
        &mut self,
        list: &[BlockAddr],
        source: &dyn Device,
        in_log: &HashSet<BlockAddr>,
        progress: Progress<'_>,
    ) -> Result<()> {
        let obfuscates = self.redactor.obfuscate.is_some();
        let mut buckets: Vec<BlockAddr> = Vec::new();
        if obfuscates {
            // The indexed directories have to be known before their names are read.
            self.each(self.view, list, "directory indexes", progress, |me, addr, b| {
                if b.is_some_and(|b| me.is_ours(b, BlockKind::DirIndex)) {
                    buckets.push(addr);
                    me.seen.names.entry(block_owner(b.unwrap_or_default())).or_default();
                }
                Ok(())
            })?;
        }
        let from = if obfuscates { self.view } else { source };
        let view = self.view;
        self.each(from, list, "copying", progress, |me, addr, b| {
            let Some(mut raw) = b.map(<[u8]>::to_vec) else {
                me.copied.unreadable += 1;
                return Ok(());
            };
            if obfuscates && me.is_ours(&raw, BlockKind::DirIndex) && crc_ok(&raw) {
                return Ok(()); // copied with the whole index
            }
            // A block that was not checkpointed, or only in part, is replaced by the result of the replay.
            if in_log.contains(&addr) && !(me.is_ours_at_all(&raw) && crc_ok(&raw)) {
                raw = read_block(view, &me.g, addr).unwrap_or(raw);
            }
            match me.redactor.block(&raw, &mut me.seen) {
                Some(copy) => {
                    me.copied.damaged += u64::from(!crc_ok(&raw));
                    me.write(addr, &copy)?;
                }
                None if raw.iter().all(|b| *b == 0) => {}
                None => me.copied.foreign += 1,
            }
            Ok(())
        })?;
        for (ino, first) in std::mem::take(&mut self.seen.chains) {
            self.chain(ino, first)?;
        }
        self.indexes(&buckets)?;
        // Targets of links never overwrite metadata.
        let taken: HashSet<BlockAddr> = list.iter().copied().collect();
        for link in std::mem::take(&mut self.seen.links) {
            self.long_link(&link, &taken)?;
        }
        Ok(())
    }

    fn is_ours(&self, b: &[u8], kind: BlockKind) -> bool {
        get_u32(b, 0) == kind as u32 && get_u64(b, 8) == self.g.fsid
    }

    fn is_ours_at_all(&self, b: &[u8]) -> bool {
        BlockKind::from_magic(get_u32(b, 0)).is_some_and(|kind| self.is_ours(b, kind))
    }

    fn write(&mut self, addr: BlockAddr, block: &[u8]) -> Result<()> {
        self.target.write_at(IoKind::Meta, addr << self.g.block_shift, block)?;
        self.copied.blocks += 1;
        self.copied.bytes += block.len() as u64;
        Ok(())
    }

    /// Reads blocks in order, neighbours together; `None` for those that cannot be read.
    fn each(
        &mut self,
        dev: &dyn Device,
        list: &[BlockAddr],
        what: &'static str,
        progress: Progress<'_>,
        mut f: impl FnMut(&mut Self, BlockAddr, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let (bs, shift) = (self.g.block_size(), self.g.block_shift);
        let most = (READ_MAX as usize / bs).max(1);
        let (mut done, mut told) = (0, 0);
        for neighbours in list.chunk_by(|a, b| a + 1 == *b) {
            for run in neighbours.chunks(most) {
                let mut bytes = vec![0; run.len() * bs];
                let whole = dev.read_at(IoKind::Meta, run[0] << shift, &mut bytes).is_ok();
                for (addr, b) in run.iter().zip(bytes.chunks_exact(bs)) {
                    let one = if whole { None } else { read_block(dev, &self.g, *addr) };
                    f(self, *addr, if whole { Some(b) } else { one.as_deref() })?;
                }
                done += run.len() as u64;
            }
            if done - told >= PROGRESS_STEP {
                progress(what, done, list.len() as u64);
                told = done;
            }
        }
        Ok(())
    }

    /// A chain of extended attributes, whose entries may lie across the ends of its blocks.
    fn chain(&mut self, ino: Ino, first: BlockAddr) -> Result<()> {
        let (mut blocks, mut list, mut addr) = (Vec::new(), Vec::new(), first);
        while addr != 0 && blocks.len() < chain_max(self.g.block_size()) {
            let Some(b) = read_block(self.view, &self.g, addr) else { break };
            let good = verify_block(&b, self.g.fsid, BlockId { kind: BlockKind::Xattr, addr, owner: ino }).is_ok();
            let head = ChainBlock::decode(&b).ok().filter(|h| good && h.index as usize == blocks.len());
            let Some(head) = head else { break };
            list.extend_from_slice(&b[META_HEADER_SIZE..META_HEADER_SIZE + head.used]);
            blocks.push((addr, head.used, b));
            addr = head.next;
        }
        self.redactor.attributes(&mut list, false);
        let mut rest = &list[..];
        for (addr, used, mut b) in blocks {
            let (mine, others) = rest.split_at(used);
            rest = others;
            b[META_HEADER_SIZE..META_HEADER_SIZE + used].copy_from_slice(mine);
            b[META_HEADER_SIZE + used..].fill(0);
            let seq = block_seq(&b);
            seal(&mut b, seq);
            // The block was counted when it was met.
            self.target.write_at(IoKind::Meta, addr << self.g.block_shift, &b)?;
        }
        Ok(())
    }

    /// The indexes of directories whose names were obfuscated.
    fn indexes(&mut self, list: &[BlockAddr]) -> Result<()> {
        let mut by_owner: HashMap<Ino, HashMap<u32, (BlockAddr, Vec<u8>)>> = HashMap::new();
        let mut others = Vec::new();
        for addr in list {
            let Some(b) = read_block(self.view, &self.g, *addr).filter(|b| crc_ok(b)) else { continue };
            let owner = block_owner(&b);
            let number = get_u32(&b, dirindex::BUCKET_NUMBER);
            let total = self.seen.buckets.get(&owner).copied().unwrap_or(0);
            let good = dirindex::validate(&b).is_ok() && number < total && get_u64(&b, 16) == *addr;
            let mine = by_owner.entry(owner).or_default();
            if good && !mine.contains_key(&number) {
                mine.insert(number, (*addr, b));
            } else {
                others.push((*addr, b));
            }
        }
        for (owner, mut buckets) in by_owner {
            let total = self.seen.buckets.get(&owner).copied().unwrap_or(0);
            if total == 0 {
                continue;
            }
            let names = self.seen.names.remove(&owner).unwrap_or_default();
            index::rebuild(total, &mut buckets, &names);
            for (addr, block) in buckets.into_values() {
                self.write(addr, &block)?;
            }
        }
        // Hashes reveal names. Of blocks that are no valid bucket only the header stays.
        for (addr, mut b) in others {
            b[META_HEADER_SIZE..].fill(0);
            let seq = block_seq(&b);
            seal(&mut b, seq);
            self.write(addr, &b)?;
        }
        Ok(())
    }

    /// Copies the target of a symbolic link in data blocks.
    fn long_link(&mut self, link: &LongLink, taken: &HashSet<BlockAddr>) -> Result<()> {
        let fs = self.g.frag_size();
        let frags = self.g.frags_for(link.size as u64);
        let mut target = vec![0; frags as usize * fs];
        for e in &link.extents {
            let inside = !e.unwritten && e.end() <= frags && self.g.contains(e.start, e.len);
            let blocks = self.g.block_of_frag(e.start)..=self.g.block_of_frag(e.start.saturating_add(e.len - 1));
            if !inside || blocks.clone().any(|b| taken.contains(&b)) {
                return Ok(());
            }
            let part = &mut target[e.logical as usize * fs..e.end() as usize * fs];
            if self.view.read_at(IoKind::Data, e.start << self.g.frag_shift, part).is_err() {
                return Ok(());
            }
        }
        // With a damaged map the data may be something else. What cannot be a target is not copied.
        let (text, rest) = target.split_at_mut(link.size);
        if text.iter().any(|b| b.is_ascii_control()) {
            return Ok(());
        }
        rest.fill(0);
        if let Some(s) = &self.redactor.obfuscate {
            s.target(text);
        }
        for e in &link.extents {
            let part = &target[e.logical as usize * fs..e.end() as usize * fs];
            self.target.write_at(IoKind::Data, e.start << self.g.frag_shift, part)?;
        }
        self.copied.long_links += 1;
        Ok(())
    }
}

/// The label is a name too.
fn obfuscate_label(s: &Obfuscator, sb: &mut [u8]) {
    let crc = |sb: &[u8]| {
        let mut copy = sb.to_vec();
        copy[8..12].fill(0);
        crate::format::crc32c(&copy)
    };
    let good = crc(sb) == get_u32(sb, 8);
    let label = &mut sb[32..32 + LABEL_MAX];
    let end = label.iter().position(|b| *b == 0).unwrap_or(LABEL_MAX);
    // A label is UTF-8: only what stays so.
    if label[..end].is_ascii() {
        s.name(&mut label[..end]);
    } else {
        label[..end].fill(b'x');
    }
    if good {
        let crc = crc(sb);
        put_u32(sb, 8, crc);
    }
}
