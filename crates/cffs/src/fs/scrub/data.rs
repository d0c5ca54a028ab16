//! Data of files against its checksums, where the file system keeps any.
//!
//! It is read in the order of the device, a batch of inodes at a time, and compared with the sums as memory has them, or
//! else the device. A file that is being written, cut or removed meanwhile may look damaged: such a fragment is looked at
//! again with its file locked and nothing committed or written home, by the map in memory.

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
/// Longest gap that is read along, in bytes.
const GAP_MAX: u64 = 32 << 10;
/// Pieces that are noted before they are read.
const PIECES_MAX: usize = 1 << 16;

/// What the comparison of a fragment came to.
enum Verdict {
    Good,
    /// No sum is known.
    Unknown,
    /// It is newer in memory, or on its way.
    Newer,
    /// It is not that file's any more.
    Gone,
    /// It is damaged.
    Bad(String),
}

/// A table of sums as it was read.
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
    /// The tables of an allocation group, by its header: they are verified like other metadata.
    pub(super) fn sum_tables(&mut self, ag: u64, header: &[u8]) -> Result<()> {
        let g = self.g;
        for index in (0..g.sum_blocks()).filter(|i| table::exists(header, *i)) {
            self.meta(BlockId { kind: BlockKind::DataSums, addr: g.sum_block(ag, index), owner: ag }, Place::Fixed)?;
        }
        Ok(())
    }

    /// Notes the data of a file.
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

    /// Reads what was noted, and compares it.
    pub(super) fn data(&mut self) -> Result<()> {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.sort_unstable();
        let (most, gap) = (READ_MAX >> self.g.frag_shift, GAP_MAX >> self.g.frag_shift);
        let mut buf = AlignedBuf::zeroed(READ_MAX as usize);
        let mut sums: Option<Table> = None;
        let mut rest = &pieces[..];
        while let Some(first) = rest.first() {
            self.go_on()?;
            let mut end = first.start + first.len;
            let together = rest.iter().take_while(|p| {
                let fits = p.start <= end + gap && p.start + p.len <= first.start + most;
                if fits {
                    end = end.max(p.start + p.len);
                }
                fits
            });
            let n = together.count().max(1);
            let bytes = &mut buf[..((end - first.start) << self.g.frag_shift) as usize];
            let read = self.dev.read_at(IoKind::Data, first.start << self.g.frag_shift, bytes).is_ok();
            self.go_on()?;
            for piece in &rest[..n] {
                let from = ((piece.start - first.start) << self.g.frag_shift) as usize;
                let bytes = &buf[from..from + (piece.len << self.g.frag_shift) as usize];
                self.piece(piece, read.then_some(bytes), &mut sums)?;
            }
            rest = &rest[n..];
        }
        pieces.clear();
        self.pieces = pieces;
        Ok(())
    }

    /// Compares a piece; without bytes it could not be read along with what is around it.
    fn piece(&mut self, piece: &Piece, bytes: Option<&[u8]>, sums: &mut Option<Table>) -> Result<()> {
        let fs = self.g.frag_size();
        let mut bad: Option<Run> = None;
        let mut counts = [0u64; 4];
        for at in 0..piece.len {
            let frag = piece.start + at;
            let contents = bytes.map(|b| &b[at as usize * fs..(at as usize + 1) * fs]);
            let verdict = match (contents, self.sum(frag, sums)?) {
                (Some(_), NONE) => Verdict::Unknown,
                (Some(contents), sum) if sum_of(contents) == sum => Verdict::Good,
                _ => {
                    let verdict = self.look_again(piece.ino, piece.logical + at, frag);
                    // Paid for afterwards: nobody is to wait for that.
                    self.dev.pay(fs as u64);
                    self.go_on()?;
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
        });
        Ok(())
    }

    /// The sum of a fragment as memory has it, or the device; [`NONE`] if none is known.
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
        // That the group's header is damaged was reported.
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
            // Newer in memory, or damaged and reported.
            None => Ok(self.fs.cache.peek(id.addr).filter(|buf| buf.is_verified()).map(|buf| buf.read().to_vec())),
        }
    }

    /// Looks at a fragment of a file again, while the file does not change and nothing is written home.
    fn look_again(&self, ino: Ino, logical: u64, frag: FragAddr) -> Verdict {
        let (fs, g) = (self.fs, self.g);
        let Some(sums) = fs.sums.as_deref() else { return Verdict::Unknown };
        fs.journal.quiesce(|| {
            let look = || -> Result<Verdict> {
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
            match look() {
                Ok(verdict) => verdict,
                Err(Error::Stale | Error::NotFound) => Verdict::Gone,
                // Of what leads to it something is damaged, and was reported as that.
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
