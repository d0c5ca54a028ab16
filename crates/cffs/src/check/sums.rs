//! Tables of data checksums and, on request, the data itself.

use super::checker::{Checker, DAMAGED_BLOCKS_MAX};
use super::data_sums::{WrittenRun, check_index, table_id};
use super::pool::{Ahead, Context};
use super::reader::Block;
use super::report::{Class, Phase};
use crate::copies::right_copy;
use crate::format::sums::{self, NONE};
use crate::format::superblock::State;
use crate::format::{Extent, FragAddr, Ino};
use cffs_device::IoKind;

/// Data read at a time, in bytes.
const READ_MAX: u64 = 1 << 20;

impl Checker<'_> {
    /// Checks the tables that the header of an allocation group says exist.
    pub(super) fn check_sum_tables(&mut self, ag: u64, header: &[u8]) {
        let g = self.g;
        if !g.data_sums {
            return;
        }
        let name = format_args!("allocation group {ag}");
        if (g.sum_blocks()..sums::blocks_max(g.block_size())).any(|i| sums::exists(header, i)) {
            let text = "the header lists impossible tables of data checksums";
            self.problem(Class::GroupHeader, name, text);
        }
        let tables: Vec<u64> = (0..g.sum_blocks()).filter(|i| sums::exists(header, *i)).collect();
        if self.sb.state == State::Unjournaled {
            if !tables.is_empty() {
                let text = "data checksums cannot be trusted after a crash of a mount without a journal";
                self.problem(Class::SumsUntrusted, name, text);
            }
            return;
        }
        if self.data_sums.written.is_some() {
            // Read when their sums are needed.
            self.data_sums.unread.extend(tables.into_iter().map(|index| (ag, index)));
            return;
        }
        let mut damaged = 0;
        let read = move |context: &Context<'_>, index: u64| {
            let id = table_id(&g, ag, index);
            (id.addr, context.fetch.meta(id).and_then(|b| check_index(&b, index)))
        };
        for (addr, read) in Ahead::new(self.pool, tables.into_iter(), self.pool.piece_blocks(), read) {
            self.note_block_read(addr);
            if let Err(what) = read {
                self.problem(Class::SumTable, name, what);
                damaged += 1;
                if damaged >= DAMAGED_BLOCKS_MAX {
                    let text = "too many damaged tables of data checksums: the rest is not read";
                    self.problem(Class::SumTable, name, text);
                    return;
                }
            }
        }
    }

    /// Notes written data of a file, if it is to be read.
    pub(super) fn note_data(&mut self, ino: Ino, e: &Extent) {
        if let Some(list) = &mut self.data_sums.written
            && !e.unwritten
        {
            list.push(WrittenRun { start: e.start, len: e.len, ino, logical: e.logical });
        }
    }

    /// Reads all data that was noted, in the order of the device, and compares it with its checksums.
    pub(super) fn check_data(&mut self) {
        let Some(mut list) = self.data_sums.written.take().filter(|_| self.g.data_sums) else { return };
        list.sort_unstable_by_key(|w| w.start);
        self.data_sums.unread.reverse();
        let total: u64 = list.iter().map(|w| w.len).sum();
        let (mut done, mut buf) = (0, cffs_buf::AlignedBuf::zeroed(READ_MAX as usize));
        let per_read = READ_MAX >> self.g.frag_shift;
        for w in list {
            let mut at = 0;
            // Neighbouring fragments make one problem.
            let mut bad: Option<(u64, u64, &'static str)> = None;
            while at < w.len {
                let n = (w.len - at).min(per_read);
                let bytes = &mut buf[..(n << self.g.frag_shift) as usize];
                let offset = (w.start + at) << self.g.frag_shift;
                let whole = self.dev.read_at(IoKind::Data, offset, bytes).is_ok();
                for (i, piece) in bytes.chunks_exact_mut(self.g.frag_size()).enumerate() {
                    let frag = w.start + at + i as u64;
                    let readable = whole || self.dev.read_at(IoKind::Data, frag << self.g.frag_shift, piece).is_ok();
                    let sum = self.sum(frag);
                    if let Some(sum) = sum.filter(|sum| !readable || *sum != sums::sum_of(piece)) {
                        self.take_right_data(frag, sum, piece);
                    }
                    let wrong = match sum {
                        Some(sum) if sum == sums::sum_of(piece) => {
                            self.findings.counts.frags_verified += 1;
                            None
                        }
                        _ if !readable => Some("cannot be read"),
                        None => {
                            self.findings.counts.frags_unsummed += 1;
                            None
                        }
                        Some(_) => Some("is not what was written: its checksum does not match"),
                    };
                    match (&mut bad, wrong) {
                        (Some((_, len, what)), Some(wrong)) if *what == wrong => *len += 1,
                        (_, wrong) => {
                            self.report_data(&w, bad.take());
                            bad = wrong.map(|what| (at + i as u64, 1, what));
                        }
                    }
                }
                at += n;
                self.progress(Phase::Data, done + at, total);
            }
            self.report_data(&w, bad);
            done += w.len;
        }
        // The remaining tables have sums of free space only.
        while let Some((ag, index)) = self.data_sums.unread.pop() {
            self.read_sum_table(ag, index);
        }
    }

    /// Takes a fragment from a copy of the device in which it has this sum, if there is one.
    fn take_right_data(&self, frag: FragAddr, sum: u32, piece: &mut [u8]) {
        let mut is_right = |bytes: &[u8]| sums::sum_of(bytes) == sum;
        let offset = frag << self.g.frag_shift;
        if let Some(right) = right_copy(self.dev, IoKind::Data, offset, piece.len(), &mut is_right) {
            piece.copy_from_slice(&right);
        }
    }

    /// Reads a table that exists, and reports it if it is damaged.
    fn read_sum_table(&mut self, ag: u64, index: u64) -> Option<Block> {
        if self.data_sums.damaged.0 != ag {
            self.data_sums.damaged = (ag, 0);
        }
        if self.data_sums.damaged.1 >= DAMAGED_BLOCKS_MAX {
            return None;
        }
        let table = self.meta(table_id(&self.g, ag, index));
        match table.and_then(|b| check_index(&b, index).map(|()| b)) {
            Ok(block) => Some(block),
            Err(what) => {
                let name = format_args!("allocation group {ag}");
                self.problem(Class::SumTable, name, what);
                self.data_sums.damaged.1 += 1;
                if self.data_sums.damaged.1 == DAMAGED_BLOCKS_MAX {
                    let text = "too many damaged tables of data checksums: the rest is not read";
                    self.problem(Class::SumTable, name, text);
                }
                None
            }
        }
    }

    fn report_data(&mut self, w: &WrittenRun, bad: Option<(u64, u64, &'static str)>) {
        let Some((from, len, what)) = bad else { return };
        self.findings.counts.frags_failed += len;
        let shift = self.g.frag_shift;
        let (first, frag) = ((w.logical + from) << shift, w.start + from);
        let text = format_args!(
            "the data of bytes {first} to {} (from fragment {frag} on) {what}",
            first + (len << shift) - 1
        );
        self.inode_problem(Class::DataSum, w.ino, text);
    }

    /// The sum of a fragment; `None` if none is known. Fragments are asked for in order.
    fn sum(&mut self, frag: FragAddr) -> Option<u32> {
        let g = self.g;
        if self.sb.state == State::Unjournaled {
            return None;
        }
        let (ag, index, n) = g.sum_place(frag);
        if self.data_sums.current.as_ref().is_none_or(|(a, i, _)| (*a, *i) != (ag, index)) {
            let mut table = None;
            while let Some(next) = self.data_sums.unread.pop_if(|next| *next <= (ag, index)) {
                let read = self.read_sum_table(next.0, next.1);
                table = read.filter(|_| next == (ag, index));
            }
            self.data_sums.current = Some((ag, index, table));
        }
        let (_, _, table) = self.data_sums.current.as_ref()?;
        Some(sums::get(table.as_ref()?, n)).filter(|sum| *sum != NONE)
    }
}
