//! Damage that knows what it damages.

use super::corpus::{Pool, Sample};
use super::units::{Unit, UnitKind};
use cffs::device::Device;
use cffs::format::dirblock::ENTRY_HEADER;
use cffs::format::{BlockKind, META_HEADER_SIZE, get_u16, get_u64, put_u64};
use fastrand::Rng;
use std::fmt;
use std::sync::Arc;

/// A change of one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub unit: Unit,
    /// What is written where in it.
    pub patches: Vec<(usize, Vec<u8>)>,
    /// The checksum is made right afterwards.
    pub reseal: bool,
}

impl Change {
    /// Makes it.
    pub fn apply(&self, devices: &[Arc<dyn Device>]) {
        let mut b = self.unit.read(devices);
        for (at, bytes) in &self.patches {
            b[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        if self.reseal {
            self.unit.reseal(&mut b);
        }
        self.unit.write(devices, &b);
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unit { kind, device, at, .. } = self.unit;
        write!(f, "{kind:?} at byte {at:#x} of device {device}")?;
        if !self.reseal {
            write!(f, ", checksum as it was")?;
        }
        for (at, bytes) in &self.patches {
            let hex: String = bytes.iter().take(24).map(|b| format!("{b:02x}")).collect();
            let more = if bytes.len() > 24 { "..." } else { "" };
            write!(f, "; byte {at}: {hex}{more} ({})", bytes.len())?;
        }
        Ok(())
    }
}

/// A number that is likely to matter, for a field that has `now`.
pub fn interesting(rng: &mut Rng, pool: &Pool, now: u64) -> u64 {
    let pick = |rng: &mut Rng, list: &[u64]| if list.is_empty() { 0 } else { list[rng.usize(..list.len())] };
    match rng.u8(..16) {
        0 | 1 => [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 63, 64, 100, 255][rng.usize(..14)],
        2 => u64::MAX - rng.u64(..4),
        3 => (1u64 << rng.u32(..64)).wrapping_add(rng.u64(..3)).wrapping_sub(1),
        4 | 5 => now.wrapping_add(1 + rng.u64(..8)),
        6 => now.wrapping_sub(1 + rng.u64(..8)),
        7 => now ^ 1 << rng.u32(..64),
        8 | 9 => pick(rng, &pool.blocks),
        10 => pick(rng, &pool.frags),
        11 | 12 => pick(rng, &pool.inos),
        13 => pick(rng, &pool.sizes).wrapping_add(rng.u64(..3)).wrapping_sub(1),
        14 => now.wrapping_shl(rng.u32(1..20)),
        _ => rng.u64(..),
    }
}

fn get(b: &[u8], at: usize, len: usize) -> u64 {
    (0..len).rev().fold(0, |v, i| v << 8 | u64::from(b[at + i]))
}

/// Damages the bytes of a unit in one way. `others` gives bytes of another unit of the same kind.
pub fn damage(rng: &mut Rng, unit: &Unit, pool: &Pool, b: &mut [u8], others: &mut dyn FnMut(&mut Rng) -> Vec<u8>) {
    let len = b.len();
    match rng.u8(..32) {
        0..=15 => {
            let fields = unit.fields(b);
            let (at, n) = fields[rng.usize(..fields.len())];
            let value = interesting(rng, pool, get(b, at, n));
            b[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
        }
        16..=18 => {
            let at = if rng.bool() { rng.usize(..len) } else { rng.usize(..len.min(512)) };
            b[at] ^= 1 << rng.u32(..8);
        }
        19 => {
            let at = rng.usize(..len);
            let n = rng.usize(1..=16).min(len - at);
            b[at..at + n].iter_mut().for_each(|x| *x = rng.u8(..));
        }
        20 | 21 => {
            // A field gets what another one has.
            let fields = unit.fields(b);
            let (to, n) = fields[rng.usize(..fields.len())];
            let same: Vec<usize> = fields.iter().filter(|f| f.1 == n).map(|f| f.0).collect();
            let from = same[rng.usize(..same.len())];
            b.copy_within(from..from + n, to);
        }
        22 => {
            let n = rng.usize(1..=len.min(300));
            let (from, to) = (rng.usize(..=len - n), rng.usize(..=len - n));
            b.copy_within(from..from + n, to);
        }
        23 | 24 => {
            // A piece of another unit, at its place.
            let other = others(rng);
            let most = len.min(other.len());
            let from = rng.usize(..most);
            let n = rng.usize(1..=most - from);
            b[from..from + n].copy_from_slice(&other[from..from + n]);
        }
        25 | 26 => {
            // All of another unit, which says that it belongs here.
            let other = others(rng);
            let n = len.min(other.len());
            let (addr, owner) = if n >= 32 { (get_u64(b, 16), get_u64(b, 24)) } else { (0, 0) };
            b[..n].copy_from_slice(&other[..n]);
            if let (UnitKind::Meta(_), true) = (unit.kind, n >= 32) {
                put_u64(b, 16, addr);
                if rng.bool() {
                    put_u64(b, 24, owner);
                }
            }
        }
        27 => {
            let from = if rng.bool() { 0 } else { rng.usize(..len) };
            b[from..].fill([0, 0xff][rng.usize(..2)]);
        }
        28 => {
            let kind = BlockKind::ALL[rng.usize(..BlockKind::ALL.len())];
            b[..4].copy_from_slice(&(kind as u32).to_le_bytes());
        }
        29 | 30 => extents(rng, unit, pool, b),
        _ => entries(rng, unit, b),
    }
}

/// Gives some extent or child pointer another place.
fn extents(rng: &mut Rng, unit: &Unit, pool: &Pool, b: &mut [u8]) {
    let words: Vec<usize> =
        unit.fields(b).iter().filter(|f| f.1 == 8 && f.0 >= META_HEADER_SIZE).map(|f| f.0).collect();
    if words.is_empty() || pool.frags.is_empty() {
        return;
    }
    let at = words[rng.usize(..words.len())];
    let word = get_u64(b, at);
    let frag = pool.frags[rng.usize(..pool.frags.len())];
    let new = match rng.u8(..4) {
        // Device fragment, length as it was.
        0 | 1 => word >> 54 << 54 | frag & ((1 << 54) - 1),
        // Length.
        2 => word << 10 >> 10 | rng.u64(..1024) << 54,
        _ => pool.blocks[rng.usize(..pool.blocks.len())],
    };
    put_u64(b, at, new);
}

/// Damages the entries of a directory block so that the chain stays whole: twice the same name or inode, swapped ones.
fn entries(rng: &mut Rng, unit: &Unit, b: &mut [u8]) {
    if unit.kind != UnitKind::Meta(BlockKind::Dir) {
        return;
    }
    let mut list = Vec::new();
    let mut at = META_HEADER_SIZE;
    while at + ENTRY_HEADER <= b.len() {
        let len = get_u16(b, at) as usize;
        if len < ENTRY_HEADER || at + len > b.len() {
            break;
        }
        if b[at + 2] & 0xf != 0 {
            list.push((at, len));
        }
        at += len;
    }
    if list.len() < 2 {
        return;
    }
    let ((from, n), (to, m)) = (list[rng.usize(..list.len())], list[rng.usize(..list.len())]);
    match rng.u8(..4) {
        0 if n <= m => b.copy_within(from + 2..from + n, to + 2),
        1 => b.copy_within(from + 3..from + ENTRY_HEADER, to + 3),
        2 => b.copy_within(from + 8..from + 16, to + 8),
        _ => b[to + 2] = b[to + 2] & 0xf0 | rng.u8(..4),
    }
}

/// Which units are damaged how often: those that decide about much more often than their number would have it.
fn choose(rng: &mut Rng, s: &Sample) -> Unit {
    let wanted = match rng.u8(..20) {
        0 | 1 => Some(UnitKind::Super),
        2 => Some(UnitKind::LogHeader),
        3 | 4 => Some(UnitKind::Txn),
        5 => Some(UnitKind::Meta(BlockKind::Counters)),
        6 | 7 => Some(UnitKind::Meta(BlockKind::SystemInodes)),
        n @ 8..=15 => Some(UnitKind::Meta(
            [
                BlockKind::Dir,
                BlockKind::DirIndex,
                BlockKind::ExtentNode,
                BlockKind::Locator,
                BlockKind::ExternalInodes,
                BlockKind::TableMap,
                BlockKind::Xattr,
                BlockKind::Bitmap,
            ][n as usize - 8],
        )),
        _ => None,
    };
    let of_kind: Vec<&Unit> = s.units.iter().filter(|u| wanted.is_none_or(|k| k == u.kind)).collect();
    match of_kind.len() {
        0 => s.units[rng.usize(..s.units.len())],
        n => *of_kind[rng.usize(..n)],
    }
}

/// Changes of an image: one to a dozen, most of them with a right checksum.
pub fn changes(rng: &mut Rng, s: &Sample) -> Vec<Change> {
    let count = match rng.u8(..8) {
        0..=3 => 1,
        4 | 5 => 2,
        6 => rng.usize(3..=6),
        _ => rng.usize(4..=12),
    };
    (0..count).map(|_| change(rng, s)).collect()
}

fn change(rng: &mut Rng, s: &Sample) -> Change {
    let unit = choose(rng, s);
    let before = unit.read(&s.devices);
    let mut b = before.clone();
    let same: Vec<&Unit> = s.units.iter().filter(|u| u.kind == unit.kind).collect();
    for _ in 0..[1, 1, 1, 2, 4][rng.usize(..5)] {
        damage(rng, &unit, &s.pool, &mut b, &mut |rng| same[rng.usize(..same.len())].read(&s.devices));
    }
    let patches = difference(&before, &b);
    Change { unit, patches, reseal: rng.u8(..16) != 0 }
}

/// The runs of bytes that differ, those close to each other as one.
fn difference(before: &[u8], after: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let mut out: Vec<(usize, Vec<u8>)> = Vec::new();
    for at in 0..after.len() {
        if before[at] == after[at] {
            continue;
        }
        match out.last_mut() {
            Some((from, bytes)) if at - *from - bytes.len() < 8 => {
                let from = *from + bytes.len();
                bytes.extend_from_slice(&after[from..=at]);
            }
            _ => out.push((at, vec![after[at]])),
        }
    }
    out
}

/// The smallest part of some changes that still `fails`, as far as leaving out goes. Asks at most `tries` times.
pub fn shrink(changes: Vec<Change>, tries: usize, mut fails: impl FnMut(&[Change]) -> bool) -> Vec<Change> {
    let mut left = tries;
    let mut best = changes;
    let mut attempt = |candidate: &[Change], left: &mut usize| {
        if *left == 0 {
            return false;
        }
        *left -= 1;
        fails(candidate)
    };
    let mut again = true;
    while again && left > 0 {
        again = false;
        for i in (0..best.len()).rev() {
            let mut candidate = best.clone();
            candidate.remove(i);
            if best.len() > 1 && attempt(&candidate, &mut left) {
                best = candidate;
                again = true;
            }
        }
        for i in 0..best.len() {
            for p in (0..best[i].patches.len()).rev() {
                let mut candidate = best.clone();
                candidate[i].patches.remove(p);
                if best[i].patches.len() > 1 && attempt(&candidate, &mut left) {
                    best = candidate;
                    again = true;
                }
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_restore_what_they_were_made_from() {
        let mut rng = Rng::with_seed(1);
        for _ in 0..200 {
            let before: Vec<u8> = (0..200).map(|_| rng.u8(..3)).collect();
            let after: Vec<u8> = before.iter().map(|b| if rng.u8(..9) == 0 { rng.u8(..) } else { *b }).collect();
            let mut b = before.clone();
            for (at, bytes) in difference(&before, &after) {
                b[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            assert_eq!(b, after);
        }
    }

    #[test]
    fn shrinking_keeps_the_one_that_matters() {
        let unit = Unit { kind: UnitKind::Super, device: 0, at: 0, len: 512 };
        let change = |n: u8| Change { unit, patches: vec![(1, vec![n]), (9, vec![n])], reseal: true };
        let all: Vec<Change> = (0..9).map(change).collect();
        let small = shrink(all, 500, |c| c.iter().any(|c| c.patches.contains(&(9, vec![5]))));
        assert_eq!(small, [Change { unit, patches: vec![(9, vec![5])], reseal: true }]);
    }
}
