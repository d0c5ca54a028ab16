//! Tables of data checksums. A damaged table is dropped. That loses its checksums but no data: contents without a checksum
//! are accepted as they are.

use super::repairer::Repairer;
use super::volume::BlockError;
use crate::check::Class;
use crate::check::data_sums::{check_index, table_id};
use crate::error::Result;
use crate::format::sums::{self, AG_SUM_BLOCKS, NONE, SUM_SIZE, sum_offset};
use crate::format::superblock::State;
use crate::format::{BlockId, BlockKind, FragAddr};

impl Repairer<'_> {
    /// Which table blocks of an allocation group exist, as its header has it, without those that cannot be used. Empty if
    /// the feature is off.
    pub(super) fn usable_sums(&mut self, ag: u64, place: &str) -> Result<Vec<u8>> {
        let g = self.g;
        if !g.data_sums {
            return Ok(Vec::new());
        }
        let header = BlockId { kind: BlockKind::AgHeader, addr: g.ag_header(ag), owner: ag };
        let mut bits = vec![0; AG_SUM_BLOCKS + g.sum_blocks().div_ceil(8) as usize];
        let Ok(old) = self.vol.meta(header) else { return Ok(bits.split_off(AG_SUM_BLOCKS)) };
        let exist: Vec<u64> = (0..g.sum_blocks()).filter(|i| sums::exists(&old, *i)).collect();
        let untrusted = self.sb.state == State::Unjournaled && !exist.is_empty();
        let dropped = untrusted && {
            let text = "data checksums cannot be trusted after a crash of a mount without a journal".to_string();
            self.fix(Class::SumsUntrusted, place, text, "drop them; data gets new ones when it is written")?
        };
        for index in exist.into_iter().filter(|_| !dropped) {
            let good = self.vol.meta(table_id(&g, ag, index)).map_err(BlockError::text);
            let good = good.and_then(|b| check_index(&b, index));
            let drop = match good {
                Ok(()) => false,
                Err(what) => self.fix(
                    Class::SumTable,
                    place,
                    what,
                    "drop it; the data it was for gets checksums when it is written",
                )?,
            };
            sums::set_exists(&mut bits, index, !drop);
        }
        Ok(bits.split_off(AG_SUM_BLOCKS))
    }

    /// Gives copied fragments the checksums of their originals.
    pub(super) fn copy_sums(&mut self) {
        if !self.g.data_sums {
            return;
        }
        for c in self.vol.copies.clone() {
            for i in 0..c.len {
                let sum = self.sum(c.from + i).unwrap_or(NONE);
                self.set_sum(c.to + i, sum);
            }
        }
    }

    /// The table block of a fragment, if it exists and is good, and the number of the fragment in it.
    fn table_of(&mut self, frag: FragAddr) -> Option<(BlockId, u64, Vec<u8>)> {
        let g = self.g;
        let (ag, index, n) = g.sum_place(frag);
        let header = BlockId { kind: BlockKind::AgHeader, addr: g.ag_header(ag), owner: ag };
        self.vol.meta(header).ok().filter(|h| sums::exists(h, index))?;
        let id = table_id(&g, ag, index);
        let table = self.vol.meta(id).ok().filter(|b| check_index(b, index).is_ok())?;
        Some((id, n, table))
    }

    fn sum(&mut self, frag: FragAddr) -> Option<u32> {
        self.table_of(frag).map(|(_, n, table)| sums::get(&table, n))
    }

    fn set_sum(&mut self, frag: FragAddr, sum: u32) {
        if let Some((id, n, mut table)) = self.table_of(frag) {
            let at = sum_offset(n);
            table[at..at + SUM_SIZE].copy_from_slice(&sum.to_le_bytes());
            self.vol.put(id.addr, table);
        }
    }
}
