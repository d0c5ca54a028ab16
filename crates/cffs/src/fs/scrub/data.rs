//! Verifying file data against its checksums.
//!
//! Data is read in the order of the device, a batch of inodes at a time, and compared with the checksums in memory or
//! else on the device. A fragment of a file that is being written, truncated or removed may look damaged. It is
//! verified again by the mapping in memory, with its file locked and the journal quiesced.

use super::piece::Piece;
use super::{Place, Walk};
use crate::check::check_index;
use crate::error::{Error, Result};
use crate::extent::{self, Mapping};
use crate::format::sums::{self as table, NONE, sum_of};
use crate::format::*;
use crate::sums::Sums;
use cffs_buf::AlignedBuf;
use cffs_device::{Device, IoKind};

/// Data read at a time, in bytes.
const READ_MAX: u64 = 1 << 20;
/// Longest gap within one request, in bytes.
const GAP_MAX: u64 = 32 << 10;
/// Most pieces that are noted before they are read.
const PIECES_MAX: usize = 1 << 16;

/// Result of verifying a fragment.
enum Verdict {
    Good,
    /// Its checksum is not known.
    Unknown,
    /// The fragment is newer in memory, or being written.
    Newer,
    /// The file does not have the fragment any more.
    Gone,
    /// The fragment is damaged.
    Bad(String),
}

/// A checksum table: allocation group, index, and contents if it exists.
type Table = (u64, u64, Option<Vec<u8>>);

/// Neighbouring fragments of a file with the same damage.
struct Run {
    ino: Ino,
    logical: u64,
    start: FragAddr,
    len: u64,
    what: String,
}

impl Walk<'_> {
    /// Verifies the checksum tables of an allocation group, which its header lists.
    pub(super) fn sum_tables(&mut self, ag: u64, header: &[u8]) -> Result<()> {
        let g = self.g;
        for index in (0..g.sum_blocks()).filter(|i| table::exists(header, *i)) {
            self.meta(BlockId { kind: BlockKind::DataSums, addr: g.sum_block(ag, index), owner: ag }, Place::Fixed)?;
        }
        Ok(())
    }

    /// Notes the data of a file, to be verified later.
    pub(super) fn note_data(&mut self, inode: &Inode) -> Result<()> {
        let (ino, most) = (inode.ino, READ_MAX >> self.g.frag_shift);
        let mut list = std::mem::take(&mut self.pieces);
        let noted = self.extents(inode, &mut |e| {
            if !e.unwritten {
                let cuts = (0..e.len).step_by(most as usize);
                list.extend(cuts.map(|at| Piece {
                    start: e.start + at,
                    len: most.min(e.len - at),
                    ino,
                    logical: e.logical + at,
                }));
            }
        });
        self.pieces = list;
        noted?;
        if self.pieces.len() >= PIECES_MAX { self.data() } else { Ok(()) }
    }

    /// Reads and verifies the noted data.
    pub(super) fn data(&mut self) -> Result<()> {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.sort_unstable();
        let (most, gap) = (READ_MAX >> self.g.frag_shift, GAP_MAX >> self.g.frag_shift);
        let mut buf = AlignedBuf::zeroed(READ_MAX as usize);
        let mut sums: Option<Table> = None;
        let mut rest = &pieces[..];
        while let Some(first) = rest.first() {
            self.check_stopped()?;
            let mut end = first.start + first.len;
            let batch = rest.iter().take_while(|p| {
                let fits = p.start <= end + gap && p.start + p.len <= first.start + most;
                if fits {
                    end = end.max(p.start + p.len);
                }
                fits
            });
            let n = batch.count().max(1);
            let bytes = &mut buf[..((end - first.start) << self.g.frag_shift) as usize];
            let at = first.start << self.g.frag_shift;
            let copies = self.read_copies(at, bytes.len());
            let read = match copies.first() {
                Some((_, first)) => {
                    bytes.copy_from_slice(first);
                    true
                }
                None => self.dev.read_at(IoKind::Data, at, bytes).is_ok(),
            };
            self.check_stopped()?;
            for piece in &rest[..n] {
                let from = ((piece.start - first.start) << self.g.frag_shift) as usize;
                let range = from..from + (piece.len << self.g.frag_shift) as usize;
                let copies: Vec<(usize, &[u8])> = copies.iter().map(|(n, b)| (*n, &b[range.clone()])).collect();
                self.piece(piece, read.then_some(&buf[range]), &copies, &mut sums)?;
            }
            rest = &rest[n..];
        }
        pieces.clear();
        self.pieces = pieces;
        Ok(())
    }

    /// Verifies a piece. Without `bytes`, a request for it and its neighbours has failed; its fragments are read one by
    /// one. `copies` is what the copies of a mirror have.
    fn piece(
        &mut self,
        piece: &Piece,
        bytes: Option<&[u8]>,
        copies: &[(usize, &[u8])],
        sums: &mut Option<Table>,
    ) -> Result<()> {
        let fs = self.g.frag_size();
        let mut bad: Option<Run> = None;
        let mut counts = [0u64; 4];
        let mut differing = 0;
        for at in 0..piece.len {
            let frag = piece.start + at;
            let range = at as usize * fs..(at as usize + 1) * fs;
            let contents = bytes.map(|b| &b[range.clone()]);
            let copies: Vec<(usize, &[u8])> = copies.iter().map(|(n, b)| (*n, &b[range.clone()])).collect();
            let differ = copies.windows(2).any(|two| two[0].1 != two[1].1);
            let verdict = match (contents, self.sum(frag, sums)?) {
                (Some(_), NONE) => {
                    differing += u64::from(differ);
                    Verdict::Unknown
                }
                (_, sum) if differ && self.right_data(piece.ino, piece.logical + at, frag, sum, &copies) => {
                    Verdict::Good
                }
                (Some(contents), sum) if sum_of(contents) == sum => Verdict::Good,
                _ => {
                    let verdict = self.recheck_data(piece.ino, piece.logical + at, frag);
                    // Throttled afterwards, so that nobody waits for it.
                    self.dev.throttle(fs as u64);
                    self.check_stopped()?;
                    verdict
                }
            };
            match verdict {
                Verdict::Good => counts[0] += 1,
                Verdict::Unknown => counts[1] += 1,
                Verdict::Newer => counts[2] += 1,
                Verdict::Gone => {}
                Verdict::Bad(what) => {
                    counts[3] += 1;
                    match &mut bad {
                        Some(run) if run.start + run.len == frag && run.what == what => run.len += 1,
                        _ => {
                            self.report_data(bad.take());
                            let (ino, logical) = (piece.ino, piece.logical + at);
                            bad = Some(Run { ino, logical, start: frag, len: 1, what });
                        }
                    }
                }
            }
        }
        self.report_data(bad);
        let shift = self.g.frag_shift;
        self.count(|s| {
            s.data_verified += counts[0] << shift;
            s.data_unsummed += counts[1] << shift;
            s.data_newer += counts[2] << shift;
            s.data_failed += counts[3] << shift;
            s.data_differing += differing << shift;
        });
        Ok(())
    }

    /// The checksum of a fragment, in memory or else on the device; [`NONE`] if it is not known.
    fn sum(&mut self, frag: FragAddr, held: &mut Option<Table>) -> Result<u32> {
        let (ag, index, n) = self.g.sum_place(frag);
        if held.as_ref().is_none_or(|(a, i, _)| (*a, *i) != (ag, index)) {
            *held = Some((ag, index, self.sum_table(ag, index)?));
        }
        let table = held.as_ref().and_then(|(_, _, bytes)| bytes.as_ref());
        Ok(table.map_or(NONE, |bytes| table::get(bytes, n)))
    }

    fn sum_table(&mut self, ag: u64, index: u64) -> Result<Option<Vec<u8>>> {
        let id = BlockId { kind: BlockKind::DataSums, addr: self.g.sum_block(ag, index), owner: ag };
        let sums: Option<&Sums> = self.fs.sums.as_deref();
        // A damaged header of the group was reported before.
        if !sums.is_some_and(|s| s.has_table(ag, index).unwrap_or(false)) {
            return Ok(None);
        }
        if let Some(buf) = self.fs.cache.peek(id.addr).filter(|buf| buf.is_verified()) {
            return Ok(Some(buf.read().to_vec()));
        }
        match self.meta(id, Place::Fixed)? {
            Some(bytes) if check_index(&bytes, index).is_ok() => Ok(Some(bytes.to_vec())),
            Some(_) => {
                self.report_block(id, Place::Fixed, "it is another table".into());
                Ok(None)
            }
            // The table is newer in memory, or damaged and reported.
            None => Ok(self.fs.cache.peek(id.addr).filter(|buf| buf.is_verified()).map(|buf| buf.read().to_vec())),
        }
    }

    /// Verifies a fragment again while its file is locked and the journal is quiesced.
    fn recheck_data(&self, ino: Ino, logical: u64, frag: FragAddr) -> Verdict {
        let (fs, g) = (self.fs, self.g);
        let Some(sums) = fs.sums.as_deref() else { return Verdict::Unknown };
        fs.journal.quiesce(|| {
            let verify = || -> Result<Verdict> {
                let node = fs.node(ino)?;
                let st = node.state.read();
                if st.freed {
                    return Ok(Verdict::Gone);
                }
                match extent::lookup(&fs.cache, &st.inode, logical)? {
                    Mapping::Data(e) if !e.unwritten && e.start + (logical - e.logical) == frag => {}
                    _ => return Ok(Verdict::Gone),
                }
                // A page stays until its data is in place, and inode and checksums are committed.
                let block = g.block_of_frag(frag);
                let pinned = fs.cache.peek(block).is_some_and(|buf| buf.is_pinned());
                if pinned || st.data.pages.contains_key(&(logical / g.frags_per_block())) {
                    return Ok(Verdict::Newer);
                }
                let mut bytes = AlignedBuf::zeroed(g.frag_size());
                if let Err(e) = fs.dev.read_at(IoKind::Data, frag << g.frag_shift, &mut bytes) {
                    return Ok(Verdict::Bad(format!("cannot be read: {e}")));
                }
                Ok(match sums.sum(frag)? {
                    NONE => Verdict::Unknown,
                    sum if sum == sum_of(&bytes) => Verdict::Good,
                    _ => Verdict::Bad("is not what was written: its checksum does not match".into()),
                })
            };
            match verify() {
                Ok(verdict) => verdict,
                Err(Error::Stale | Error::NotFound) => Verdict::Gone,
                // The path to the fragment is damaged, which is reported elsewhere.
                Err(_) => Verdict::Unknown,
            }
        })
    }

    fn report_data(&mut self, run: Option<Run>) {
        let Some(Run { ino, logical, start, len, what }) = run else { return };
        let shift = self.g.frag_shift;
        let (from, to) = (logical << shift, ((logical + len) << shift) - 1);
        let what = format!("the data of bytes {from} to {to} (from fragment {start} on) {what}");
        self.report_contents(format!("inode {ino}"), what, ino, self.g.block_of_frag(start));
    }
}
