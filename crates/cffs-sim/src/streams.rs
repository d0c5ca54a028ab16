//! Files that come in long writes, woven into a sequence: on mounts with direct writes ([`Setup::direct_write`])
//! their mapping is committed many writes later, and everything can happen between two of them.

use crate::ops::{FALLOCATE, Op, Path, SLOTS};
use crate::setup::Setup;
use cffs::{Fallocate, RenameFlags};
use fastrand::Rng;

/// A file that is being written, from its start to `end`.
struct Stream {
    path: Path,
    end: u64,
    /// It has no name: the slot that holds it.
    slot: Option<usize>,
}

/// The setup in which such files are written directly.
pub fn setup(setup: Setup, seed: u64) -> Setup {
    // With checksums the mapping of each write is committed at once.
    Setup { direct_write: true, data_sums: setup.data_sums && seed.is_multiple_of(4), ..setup }
}

/// Puts long writes to two files between the operations of a sequence, and what else can happen to them. No write is longer than
/// `most` bytes, or one block.
pub fn with_streams(ops: Vec<Op>, seed: u64, block: u32, most: usize) -> Vec<Op> {
    let mut rng = Rng::with_seed(!seed);
    let unit = u64::from(block.max(4096));
    let mut tag = (1 << 62) ^ (seed << 20);
    let named = |i: usize| Stream { path: Path::new(format!("/stream{i}")), end: 0, slot: None };
    let mut streams = [named(0), named(1)];
    let mut out: Vec<Op> = streams.iter().map(|s| Op::Create { path: s.path.clone(), perm: 0o644, uid: 0 }).collect();
    for op in ops {
        out.push(op);
        for _ in 0..rng.usize(..3) {
            let i = rng.usize(..2);
            step(&mut streams[i], &mut rng, unit, most as u64 / unit, &mut tag, &mut out);
            let Stream { path, end, slot } = &streams[i];
            if slot.is_none() && rng.u8(..40) == 0 {
                // Nobody is to reach it by name any more; or the other one is, by this one's.
                let (to, from, end) = (streams[1 - i].path.clone(), path.clone(), *end);
                match rng.usize(..SLOTS + 1) {
                    SLOTS if streams[1 - i].slot.is_none() => {
                        let flags = RenameFlags { no_replace: false, exchange: false };
                        out.push(Op::Rename { from: from.clone(), to, flags });
                        out.push(Op::Create { path: from, perm: 0o644, uid: 0 });
                        (streams[i].end, streams[1 - i].end) = (0, end);
                    }
                    SLOTS => {}
                    slot => {
                        out.push(Op::Close { slot });
                        out.push(Op::Open { slot, path: from.clone() });
                        out.push(Op::Unlink { path: from });
                        streams[i].path = Path::new(format!("@{slot}"));
                        streams[i].slot = Some(slot);
                    }
                }
            } else if let Some(slot) = *slot
                && rng.u8(..12) == 0
            {
                out.push(Op::Close { slot });
                streams[i] = named(i);
                out.push(Op::Create { path: streams[i].path.clone(), perm: 0o644, uid: 0 });
            }
        }
    }
    out
}

/// What happens next to a file: mostly a write at its end.
fn step(stream: &mut Stream, rng: &mut Rng, unit: u64, most: u64, tag: &mut u64, out: &mut Vec<Op>) {
    let Stream { path, end, .. } = stream;
    let path = path.clone();
    let mut write = |offset: u64, len: u64| {
        *tag += 1;
        Op::Write { path: path.clone(), offset, len: len as usize, tag: *tag }
    };
    let within = rng.u64(..=*end / unit) * unit;
    let op = match rng.u32(..32) {
        0..=19 => {
            let len = rng.u64(1..=most.max(1)) * unit;
            let op = write(*end, len);
            *end += len;
            op
        }
        20 => {
            // Over what it has, and more.
            let len = rng.u64(1..=most.max(1)) * unit;
            *end = (*end).max(within + len);
            write(within, len)
        }
        21 => write(within.min(end.saturating_sub(1)), rng.u64(1..3000).min((*end).max(1))),
        22 => Op::Fsync { path },
        23 => Op::Fdatasync { path },
        24..=25 => Op::Read { path, offset: within.saturating_sub(5000), len: rng.usize(1..200_000) },
        26 => Op::Seek { path, offset: within },
        27 => {
            *end = within;
            Op::Truncate { path, size: within }
        }
        28..=29 => {
            let what = FALLOCATE[rng.usize(..FALLOCATE.len())].1;
            let len = rng.u64(1..5) * unit;
            // Those that leave its end where it is.
            match what {
                Fallocate::Collapse | Fallocate::Insert => Op::Sync,
                Fallocate::Allocate { keep_size: true } => {
                    Op::Fallocate { path, what, offset: *end + rng.u64(..4) * unit, len }
                }
                _ if *end < len => Op::Sync,
                what => Op::Fallocate { path, what, offset: within.min(*end - len), len },
            }
        }
        30 => Op::SetXattr { path, name: "user.a".into(), len: rng.usize(..600), tag: *tag },
        _ => Op::Chown { path, uid: rng.u32(..2) * 1000, gid: 0 },
    };
    out.push(op);
}
