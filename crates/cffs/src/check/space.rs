//! Compares the bitmaps and free counts of the allocation groups with what is in use.

use super::checker::{Checker, DAMAGED_BLOCKS_MAX};
use super::pool::{Ahead, Context};
use super::reader::Block;
use super::report::{Class, Phase};
use crate::format::ag::{BITMAP_BITS, BITMAP_INDEX, ag_free, free_runs, set_bits};
use crate::format::{BlockId, BlockKind, get_u64};

/// The blocks of an allocation group that were read.
struct GroupBlocks {
    header: Result<Block, String>,
    bitmaps: Vec<Result<Block, String>>,
}

impl GroupBlocks {
    fn read(context: &Context<'_>, ag: u64) -> GroupBlocks {
        let (fetch, g) = (&context.fetch, *context.fetch.geometry());
        let id = |kind, addr| BlockId { kind, addr, owner: ag };
        GroupBlocks {
            header: fetch.meta(id(BlockKind::AgHeader, g.ag_header(ag))),
            bitmaps: (0..g.bitmap_blocks())
                .map(|index| fetch.meta(id(BlockKind::Bitmap, g.bitmap_block(ag, index))))
                .collect(),
        }
    }
}

impl Checker<'_> {
    /// Checks groups `0..ags`, which count as initialized. Returns the free fragments of the file system by the
    /// bitmaps; `None` if some could not be read.
    pub(super) fn check_space_maps(&mut self, ags: u64) -> Option<u64> {
        let (mut free, mut damaged) = (0, 0);
        let groups = Ahead::new(self.pool, 0..ags, 1, |context: &Context<'_>, ag| (ag, GroupBlocks::read(context, ag)));
        for (ag, blocks) in groups {
            self.note_block_read(self.g.ag_header(ag));
            (0..blocks.bitmaps.len() as u64).for_each(|i| self.note_block_read(self.g.bitmap_block(ag, i)));
            match self.check_group(ag, blocks) {
                Some(n) => free += n,
                None => damaged += 1,
            }
            if damaged >= DAMAGED_BLOCKS_MAX {
                let what = "too many damaged groups: the rest is not read";
                self.problem(Class::GroupHeader, format_args!("allocation group {ag}"), what);
                return None;
            }
            self.progress(Phase::Space, ag + 1, ags);
        }
        let fpb = self.g.frags_per_block();
        if ags < self.g.ag_count {
            let start = self.g.ag_start(ags);
            if let Some(frag) = self.ownership.first_from(start * fpb) {
                let ag = self.g.ag_of(frag / fpb);
                let what = format_args!("fragment {frag} is in use, but only {ags} groups are initialized");
                self.problem(Class::GroupVirgin, format_args!("allocation group {ag}"), what);
            }
            let blocks = self.g.total_blocks - start;
            free += (blocks - (self.g.ag_count - ags) * self.g.ag_header_blocks()) * fpb;
            self.findings.layout.virgin_groups = blocks / self.g.group_blocks();
        }
        (damaged == 0).then_some(free)
    }

    /// Returns the number of free fragments by the bitmap.
    fn check_group(&mut self, ag: u64, blocks: GroupBlocks) -> Option<u64> {
        let g = self.g;
        let fpb = g.frags_per_block();
        let first = g.ag_start(ag) * fpb;
        let frags = g.ag_len(ag) * fpb;
        let name = format_args!("allocation group {ag}");
        let said = match blocks.header {
            Ok(block) => {
                self.check_sum_tables(ag, &block);
                Some(ag_free(&block))
            }
            Err(what) => {
                self.problem(Class::GroupHeader, name, what);
                None
            }
        };
        let mut fill = GroupFill::new(g.group_frags(), frags);
        let (mut complete, mut damaged) = (true, 0);
        let bits = g.bits_per_bitmap();
        let mut expected = vec![0u8; (bits / 8) as usize];
        for (index, block) in (0..g.bitmap_blocks()).zip(blocks.bitmaps) {
            if damaged >= DAMAGED_BLOCKS_MAX {
                self.problem(Class::Bitmap, name, "too many damaged blocks: the rest is not read");
                break;
            }
            let block = block.and_then(|block| {
                let found = get_u64(&block, BITMAP_INDEX);
                if found == index { Ok(block) } else { Err(format!("bitmap block {index} says it is number {found}")) }
            });
            let block = match block {
                Ok(block) => block,
                Err(what) => {
                    self.problem(Class::Bitmap, name, what);
                    complete = false;
                    damaged += 1;
                    continue;
                }
            };
            let from = index * bits;
            let within = |frag: u64| frag.saturating_sub(from).min(bits);
            expected.fill(0);
            set_bits(&mut expected, 0, within(g.ag_header_blocks() * fpb), true);
            set_bits(&mut expected, within(frags), bits, true);
            for (s, e) in self.ownership.within(first + from, first + (from + bits).min(frags).max(from)) {
                set_bits(&mut expected, within(s - first), within(e - first), true);
            }
            let found = &block[BITMAP_BITS..];
            for (start, len) in free_runs(found, bits) {
                fill.free(from + start, len);
            }
            if found != &expected[..] {
                self.compare_bits(ag, first + from, found, &expected);
            }
        }
        if !complete {
            return None;
        }
        let free = fill.total;
        fill.add_to(&mut self.findings.layout.group_fill);
        if let Some(said) = said.filter(|said| *said != free) {
            let what = format_args!("the header says {said} fragments are free, the bitmap {free}");
            self.problem(Class::GroupFree, name, what);
        }
        said.map(|_| free)
    }

    fn compare_bits(&mut self, ag: u64, first: u64, found: &[u8], expected: &[u8]) {
        let name = format_args!("allocation group {ag}");
        // Only clear bits among these are wrong.
        let bits = found.len() as u64 * 8;
        let leaked: Vec<u8> = found.iter().zip(expected).map(|(f, e)| !(f & !e)).collect();
        for (start, len) in free_runs(&leaked, bits) {
            let what = format_args!("{} marked used, but nothing uses them", run_text(first + start, len));
            self.problem(Class::FragmentsLeaked, name, what);
        }
        let unmarked: Vec<u8> = found.iter().zip(expected).map(|(f, e)| !(e & !f)).collect();
        for (start, len) in free_runs(&unmarked, bits) {
            let what = format_args!("{} in use, but marked free", run_text(first + start, len));
            self.problem(Class::FragmentsUnmarked, name, what);
        }
    }

    /// Reports fragments with several owners.
    pub(super) fn report_shared(&mut self, conflicts: &[super::ownership::Conflict]) {
        for c in conflicts {
            let owners: Vec<String> = c.owners.iter().map(|o| owner_text(*o)).collect();
            let what = format_args!("used by {}", owners.join(" and "));
            self.problem(Class::FragmentsShared, run_text(c.start, c.end - c.start), what);
        }
    }
}

fn run_text(first: u64, len: u64) -> String {
    if len == 1 { format!("fragment {first}") } else { format!("fragments {first} to {}", first + len - 1) }
}

fn owner_text(owner: u64) -> String {
    match owner {
        super::ownership::FIXED => "the file system itself".into(),
        ino => format!("inode {ino}"),
    }
}

/// Sorts the groups of an allocation group by how full they are, from free runs in order.
struct GroupFill {
    group_frags: u64,
    frags: u64,
    /// Group that is being counted, and its free fragments so far.
    group: u64,
    free: u64,
    /// Free fragments in all.
    total: u64,
    /// Empty, up to 25, 50, 75, below 100 percent, full.
    classes: [u64; 6],
}

impl GroupFill {
    fn new(group_frags: u64, frags: u64) -> GroupFill {
        GroupFill { group_frags, frags, group: 0, free: 0, total: 0, classes: [0; 6] }
    }

    /// Adds a free run. Bits beyond the end were reported when the bitmap was compared.
    fn free(&mut self, start: u64, len: u64) {
        let end = (start + len).min(self.frags);
        let mut at = start;
        while at < end {
            let group = at / self.group_frags;
            self.go_to(group);
            let n = ((group + 1) * self.group_frags).min(end) - at;
            self.free += n;
            self.total += n;
            at += n;
        }
    }

    /// Counts the groups before this one. Between the current group and this one nothing is free.
    fn go_to(&mut self, group: u64) {
        if group == self.group {
            return;
        }
        let size = self.group_frags.min(self.frags - self.group * self.group_frags);
        let used = size - self.free;
        let class = match (used * 4).div_ceil(size) {
            0 => 0,
            _ if used == size => 5,
            quarter => quarter as usize,
        };
        self.classes[class] += 1;
        self.classes[5] += group - self.group - 1;
        (self.group, self.free) = (group, 0);
    }

    fn add_to(mut self, fill: &mut [u64; 6]) {
        self.go_to(self.frags.div_ceil(self.group_frags));
        for (sum, n) in fill.iter_mut().zip(self.classes) {
            *sum += n;
        }
    }
}
