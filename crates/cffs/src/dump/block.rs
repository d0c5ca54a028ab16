//! Blocks: what a block says it is, and its contents by that.

use super::contents::{contents, first_bytes};
use super::dumper::Dumper;
use super::volume::superblock_fields;
use crate::error::{Error, Result};
use crate::format::ag::BITMAP_BITS;
use crate::format::*;
use crate::journal::log_extent;
use cffs_values::{Fields, Value};

impl Dumper<'_> {
    /// Whatever is at a block address.
    pub fn block(&self, addr: BlockAddr) -> Result<Value> {
        if addr >= self.g.total_blocks {
            return Error::invalid(format!(
                "block {addr} lies outside the file system, which has {} blocks (0 to {})",
                self.g.total_blocks,
                self.g.total_blocks - 1
            ));
        }
        let mut f = Fields::of("block", addr);
        let within = addr % self.g.ag_blocks;
        f.put("group", self.g.ag_of(addr));
        let bytes = match self.read(addr) {
            Ok(bytes) => bytes,
            Err(e) => {
                f.problems([format!("cannot be read: {e}")]);
                return Ok(f.into());
            }
        };
        if let Some(bits) = self.used_bits(addr) {
            f.put("fragments_in_use", bits);
        }
        let (log_at, log_len) = log_extent(&self.sb);
        let at = addr << self.g.block_shift;
        if within == 0 && bytes[..8] == superblock::MAGIC {
            f.put("kind", "superblock");
            f.append(superblock_fields(&bytes));
        } else if self.sb.log_start != 0 && (log_at..log_at + log_len).contains(&at) {
            f.put("kind", if at == log_at { "log header" } else { "log" });
            f.put("bytes", first_bytes(&bytes));
        } else if BlockKind::from_magic(get_u32(&bytes, 0)).is_some() {
            f.append(self.meta(addr, &bytes, None));
        } else if bytes.iter().all(|b| *b == 0) {
            f.put("kind", "zeros");
        } else {
            f.put("kind", "contents of a file, or space that is not in use");
            f.put("bytes", first_bytes(&bytes));
        }
        Ok(f.into())
    }

    /// By the bitmap; `None` where that cannot be read.
    fn used_bits(&self, addr: BlockAddr) -> Option<String> {
        let (ag, fpb) = (self.g.ag_of(addr), self.g.frags_per_block());
        let bit = self.g.frag_of_block(addr - self.g.ag_start(ag));
        let bits = self.g.bits_per_bitmap();
        let id = BlockId { kind: BlockKind::Bitmap, addr: self.g.bitmap_block(ag, bit / bits), owner: ag };
        let block = self.read(id.addr).ok()?;
        verify_block(&block, self.g.fsid, id).ok()?;
        let used = |i: u64| block[BITMAP_BITS + ((bit + i) % bits / 8) as usize] >> ((bit + i) % 8) & 1 == 1;
        // Bits of a block never lie across two bitmap blocks: both sizes are multiples of eight.
        Some((0..fpb).map(|i| if used(i) { '1' } else { '0' }).collect())
    }

    /// A block that is referred to as this; contents that do not belong there are shown all the same.
    pub(super) fn meta_at(&self, id: BlockId) -> Fields {
        let mut f = Fields::of("block", id.addr);
        match self.read(id.addr) {
            Err(e) => f.problems(vec![format!("cannot be read: {e}")]),
            Ok(bytes) => drop(f.append(self.meta(id.addr, &bytes, Some(id)))),
        }
        f
    }

    /// Header and contents of a metadata block.
    pub(super) fn meta(&self, addr: BlockAddr, bytes: &[u8], expected: Option<BlockId>) -> Fields {
        let mut f = Fields::new();
        let magic = get_u32(bytes, 0);
        let kind = BlockKind::from_magic(magic);
        let zeros = kind.is_none() && bytes.iter().all(|b| *b == 0);
        match kind {
            Some(kind) => f.put("kind", kind.name()),
            None if zeros => f.put("kind", "zeros"),
            None => f.put("kind", "unknown").put("magic", Value::hex(magic, 8)),
        };
        let mut wrong = Vec::new();
        if kind.is_some() {
            f.put("checksum_ok", crc_ok(bytes));
            f.put("owner", block_owner(bytes));
            f.put("sequence", block_seq(bytes));
        }
        let id = expected.or(kind.map(|kind| BlockId { kind, addr, owner: block_owner(bytes) }));
        if let Some(Err(c)) = id.map(|id| verify_block(bytes, self.g.fsid, id)) {
            wrong.push(c.0);
        }
        if let Some(kind) = kind {
            contents(&mut f, &self.g, (kind, addr), bytes, &mut wrong);
        } else if !zeros {
            f.put("bytes", first_bytes(bytes));
        }
        f.problems(wrong);
        f
    }
}
