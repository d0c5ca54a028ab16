//! The best that any choice of free places can do: lower bounds for reading, or writing, what is put into the free space of
//! a disk as it is, without moving anything that is there. Which places are the cheapest for so many blocks is a problem of
//! choice that need not be solved: its Lagrangian dual, a price paid for each free block, is solved exactly by one pass over
//! the disk for each price, and is never above the true optimum.
//!
//! There are two of them. [`least`] is for who does not know at which angle a sector stands, as no file system does: blocks are
//! taken from *places*, stretches that pass under the head from end to end, whatever of them is in use. A place costs the
//! shortest way of the arm, a command, and half a rotation: the mean, which luck can beat. A block of it costs its passing,
//! wanted or not. [`least_by_angle`] is for who knows every angle, needs no time for commands, and takes the free blocks in
//! their order on the disk: from one to the next the arm moves, and waits for as long as that sector takes to come.

use anyhow::{Context, Result};
use cffs::Geometry;
use cffs::device::IoKind;
use cffs::format::ag::{BITMAP_BITS, free_runs};
use cffs::format::{BlockKind, get_u32};
use cffs::mkfs::read_superblock;
use cffs_disk::{Mechanical, Model, SECTOR, SimDevice, profiles};

/// Steps of the search for the best price.
const STEPS: usize = 40;
/// Free blocks for which all ways from one to another are looked at.
const ANGLES_MAX: usize = 5000;

/// What it costs to get at blocks, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Price {
    /// A place, before its first block.
    pub place: f64,
    /// A block that passes.
    pub block: f64,
}

impl Price {
    /// On a disk with an arm, for blocks of so many bytes near its outer edge.
    ///
    /// # Errors
    /// When no disk with an arm has that name.
    pub fn of(profile: &str, block: u64) -> Result<Price> {
        let disk = disk(profile)?;
        let (spec, track) = (disk.spec(), disk.layout().place(0).track);
        let ms = |ns: f64| ns / 1e6;
        let rotation = ms(spec.rotation as f64);
        // The next head is there after the switch, and a sector later at most.
        let switch = ms(spec.head_switch as f64);
        let nearest = switch.min(ms(disk.seek().time(1) as f64));
        Ok(Price {
            place: ms(spec.overhead as f64) + nearest + rotation / 2.0,
            block: (rotation + switch) / (track * SECTOR) as f64 * block as f64,
        })
    }
}

fn disk(profile: &str) -> Result<Box<Mechanical>> {
    match profiles::find(profile).with_context(|| format!("no disk is called {profile}"))?.model() {
        Model::Mechanical(disk) => Ok(disk),
        Model::FlatCost(_) => anyhow::bail!("{profile} has no arm"),
    }
}

/// Which blocks of a file system are free as a whole, by its bitmaps. The disk is not charged.
///
/// # Errors
/// When there is no sound file system.
pub fn free_blocks(device: &SimDevice) -> Result<Vec<bool>> {
    let dev = device.contents();
    let g = Geometry::new(&read_superblock(dev)?)?;
    let mut free = vec![false; g.total_blocks as usize];
    let mut block = vec![0; g.block_size()];
    let per_block = g.frags_per_block();
    for ag in 0..g.ag_count {
        for index in 0..g.bitmap_blocks() {
            dev.read_at(IoKind::Meta, g.bitmap_block(ag, index) << g.block_shift, &mut block)?;
            if get_u32(&block, 0) != BlockKind::Bitmap as u32 {
                // Never used: all is free but the place of its own structures.
                let (start, end) = (g.ag_start(ag), g.ag_start(ag) + g.ag_len(ag));
                free[(start + g.ag_header_blocks()).min(end) as usize..end as usize].fill(true);
                break;
            }
            let first = g.frag_of_block(g.ag_start(ag)) + index * g.bits_per_bitmap();
            let len = g.bits_per_bitmap().min(g.frag_of_block(g.ag_start(ag) + g.ag_len(ag)).saturating_sub(first));
            for (start, n) in free_runs(&block[BITMAP_BITS..], len) {
                let (from, to) = ((first + start).div_ceil(per_block), (first + start + n) / per_block);
                free[from as usize..to.max(from) as usize].fill(true);
            }
        }
    }
    Ok(free)
}

/// Runs of free blocks.
pub fn runs(free: &[bool]) -> usize {
    free.iter().zip(std::iter::once(&false).chain(free)).filter(|(now, before)| **now && !**before).count()
}

/// How many of the longest runs of free blocks it takes to hold `need` blocks: the fewest pieces that a file of so many can
/// lie in. `None` if there are not so many.
pub fn fewest_runs(free: &[bool], need: u64) -> Option<usize> {
    let mut lens: Vec<u64> = free.split(|f| !f).map(|run| run.len() as u64).filter(|len| *len > 0).collect();
    lens.sort_unstable_by(|a, b| b.cmp(a));
    let mut sum = 0;
    let last = lens.iter().position(|len| {
        sum += len;
        sum >= need
    })?;
    Some(last + 1)
}

/// A time, in milliseconds, that no choice of `need` free blocks can be below. `None` if there are not so many.
pub fn least(free: &[bool], need: u64, price: Price) -> Option<f64> {
    if (free.iter().filter(|f| **f).count() as u64) < need {
        return None;
    }
    // At this price the best choice of places is found in one pass.
    Some(best_price(price.place + price.block, free.len(), |paid| {
        let (mut outside, mut inside) = (0.0_f64, f64::INFINITY);
        for f in free {
            inside = inside.min(outside + price.place) + price.block - if *f { paid } else { 0.0 };
            outside = outside.min(inside);
        }
        outside + paid * need as f64
    }))
}

/// The largest value of a concave function of a price between 0 and `most` for each of `blocks` blocks.
fn best_price(most: f64, blocks: usize, dual: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, most * blocks as f64);
    for _ in 0..STEPS * 2 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if dual(a) < dual(b) { low = a } else { high = b }
    }
    dual((low + high) / 2.0)
}

/// A time, in milliseconds, in which no choice of `need` free blocks of so many bytes can be passed in their order on the disk,
/// wherever the head begins. `None` if there are not so many, or too many to look at.
///
/// # Errors
/// When no disk with an arm has that name.
pub fn least_by_angle(free: &[bool], need: u64, profile: &str, block: u64) -> Result<Option<f64>> {
    struct Node {
        cylinder: u64,
        head: u64,
        begins: f64,
        ends: f64,
        passes: f64,
        last: (u64, u64),
    }
    let disk = disk(profile)?;
    let rotation = disk.spec().rotation as f64 / 1e6;
    let switch = disk.spec().head_switch as f64 / 1e6;
    let sectors = block / SECTOR;
    let nodes: Vec<Node> = free
        .iter()
        .zip(0_u64..)
        .filter(|(free, _)| **free)
        .map(|(_, at)| {
            let (first, last) = (disk.layout().place(at * sectors), disk.layout().place((at + 1) * sectors - 1));
            let ends = (last.angle + 1.0 / last.track as f64).fract();
            let turn = (ends - first.angle).rem_euclid(1.0);
            Node {
                cylinder: first.cylinder,
                head: first.head,
                begins: first.angle,
                ends,
                passes: turn * rotation,
                last: (last.cylinder, last.head),
            }
        })
        .collect();
    if (nodes.len() as u64) < need || nodes.len() > ANGLES_MAX {
        return Ok(None);
    }
    let way = |from: &Node, to: &Node| {
        let moved = match from.last.0.abs_diff(to.cylinder) {
            0 if from.last.1 == to.head => 0.0,
            0 => switch,
            distance => disk.seek().time(distance) as f64 / 1e6,
        };
        let wait = (to.begins - from.ends - moved / rotation).rem_euclid(1.0);
        // What comes just in time must not cost a turn by rounding.
        moved + if wait > 0.999 { 0.0 } else { wait * rotation }
    };
    let ways: Vec<Vec<f32>> =
        (0..nodes.len()).map(|to| nodes[..to].iter().map(|from| way(from, &nodes[to]) as f32).collect()).collect();
    Ok(Some(best_price(2.0 * rotation, 8, |paid| {
        let mut best: Vec<f64> = Vec::with_capacity(nodes.len());
        for (node, ways) in nodes.iter().zip(&ways) {
            let before = best.iter().zip(ways).map(|(b, w)| b + f64::from(*w)).fold(0.0, f64::min);
            best.push(before + node.passes - paid);
        }
        best.into_iter().fold(0.0, f64::min) + paid * need as f64
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The least time by trying every set of places.
    fn tried(free: &[bool], need: u64, price: Price) -> f64 {
        (0_u32..1 << free.len())
            .filter(|set| {
                let has = |at: usize| set >> at & 1 == 1;
                (0..free.len()).filter(|at| has(*at) && free[*at]).count() as u64 >= need
            })
            .map(|set| {
                let places = (set & !(set << 1)).count_ones();
                f64::from(places) * price.place + f64::from(set.count_ones()) * price.block
            })
            .fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn the_bound_is_never_above_the_best_choice_and_reaches_it_for_all() {
        let mut random = Random::new(3);
        let price = Price { place: 6.9, block: 1.1 };
        for _ in 0..50 {
            let free: Vec<bool> = (0..12).map(|_| random.below(3) == 0).collect();
            let all = free.iter().filter(|f| **f).count() as u64;
            for need in 1..=all {
                let (bound, best) = (least(&free, need, price).unwrap(), tried(&free, need, price));
                assert!(bound <= best + 1e-6, "{bound} for {need} of {free:?}, which can be had for {best}");
                assert!(need < all || bound > best - 1e-3, "{bound} is not {best} for all of {free:?}");
            }
            assert!(least(&free, all + 1, price).is_none());
        }
    }

    #[test]
    fn by_angle_a_run_costs_its_passing_and_knowing_more_never_costs_more() {
        let (profile, block) = ("st31200", 4096);
        let price = Price::of(profile, block).unwrap();
        let run = least_by_angle(&[true; 10], 10, profile, block).unwrap().unwrap();
        // The first ten blocks of a track of 84 sectors, at 5400 rotations a minute.
        assert!((run - 80.0 / 84.0 * 60_000.0 / 5400.0).abs() < 0.05, "{run} ms");
        let mut random = Random::new(4);
        for _ in 0..5 {
            let free: Vec<bool> = (0..600).map(|_| random.below(5) == 0).collect();
            let by_angle = least_by_angle(&free, 60, profile, block).unwrap().unwrap();
            assert!(by_angle > 60.0 && by_angle <= least(&free, 60, price).unwrap() + 12.0, "{by_angle}");
        }
        assert!(least_by_angle(&[true; 10], 11, profile, block).unwrap().is_none());
    }

    #[test]
    fn a_short_gap_is_passed_and_a_long_one_is_not() {
        let price = Price { place: 7.0, block: 1.0 };
        let of = |gap: usize| [vec![true; 4], vec![false; gap], vec![true; 4]].concat();
        assert!((least(&of(3), 8, price).unwrap() - (7.0 + 11.0)).abs() < 1e-3);
        assert!((least(&of(30), 8, price).unwrap() - (14.0 + 8.0)).abs() < 1e-3);
        assert_eq!((runs(&of(3)), runs(&[true]), runs(&[])), (2, 1, 0));
        let free = [of(3), vec![false], vec![true; 2]].concat();
        let fewest = [1, 4, 5, 8, 9, 10, 11].map(|need| fewest_runs(&free, need));
        assert_eq!(fewest, [Some(1), Some(1), Some(2), Some(2), Some(3), Some(3), None]);
    }
}
