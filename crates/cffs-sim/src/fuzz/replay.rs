//! Replay of damaged logs.
//!
//! What must hold: no panic, a bounded number of requests, and a replay that succeeds leaves a log with nothing in it.

use super::corpus::{Corpus, Sample, layers};
use super::limits::{Limited, no_panic};
use super::mutate::{damage, interesting};
use super::outcome::{Done, Failure};
use super::units::{Unit, UnitKind, transactions};
use cffs::device::{Device, IoKind};
use cffs::format::log::{LOG_HEADER_AREA, LogHeader, Record, TXN_HEADER, put_block, put_revoke, records, seal_txn};
use cffs::format::{get_u64, put_u64};
use cffs::journal::log_extent;
use cffs::journal::recovery::replay;
use fastrand::Rng;
use std::sync::Arc;

/// Requests that a replay may need: the log twice, and each block that it can hold read and written on its own.
const REQUESTS: u64 = 60_000;

/// Damages a log and replays it.
pub fn case(corpus: &Corpus, rng: &mut Rng) -> Result<Done, Failure> {
    let crashed: Vec<&Sample> = corpus.samples.iter().filter(|s| s.spec.crashed).collect();
    let s = crashed[rng.usize(..crashed.len())];
    let devices = s.copies();
    if rng.bool() {
        damage_in_place(rng, s, &devices);
    } else {
        rewrite(rng, s, &devices);
    }
    run(s, &devices)
}

fn run(s: &Sample, devices: &[Arc<dyn Device>]) -> Result<Done, Failure> {
    let overwrites_log = writes_into_log(s, devices);
    let top = layers(devices);
    let dev = Limited::new(top[0].clone(), REQUESTS);
    let log = top.get(1).cloned();
    let log_ref = log.as_deref();
    let first = no_panic("replay", || replay(&*dev, log_ref, &s.sb, &s.g))?;
    if dev.exceeded() {
        return Err(Failure::new("replay: requests", format!("replay: more than {REQUESTS} requests")));
    }
    let requests = dev.used() * 1000 / REQUESTS;
    let Ok(first) = first else { return Ok(Done { requests, ..Done::default() }) };
    if !overwrites_log {
        let second = no_panic("second replay", || replay(&*dev, log_ref, &s.sb, &s.g))?;
        match second {
            Ok(n) if n.transactions == 0 && n.header == first.header => {}
            other => {
                let text = format!("replay: the first gave {first:?}, the second {other:?}");
                return Err(Failure::new("replay: not finished by the first", text));
            }
        }
    }
    Ok(Done { accepted: first.transactions > 0, requests, ..Done::default() })
}

/// Whether a record has the log itself for a target. Then nothing can be said of what a second replay finds.
fn writes_into_log(s: &Sample, devices: &[Arc<dyn Device>]) -> bool {
    if devices.len() > 1 {
        return false;
    }
    let range = s.g.log_start..s.g.log_start + s.g.log_blocks;
    transactions(devices, &s.sb, &s.g).into_iter().any(|(at, len)| {
        let mut b = vec![0; len];
        devices[0].read_at(IoKind::Log, at, &mut b).expect("a device in memory");
        let payload = usize::try_from(get_u64(&b, 32)).unwrap_or(0).min(len - TXN_HEADER);
        records(&b[TXN_HEADER..TXN_HEADER + payload], s.g.block_size())
            .is_ok_and(|list| list.iter().any(|r| matches!(r, Record::Block { addr, .. } if range.contains(addr))))
    })
}

/// Damages header and transactions where they stand.
fn damage_in_place(rng: &mut Rng, s: &Sample, devices: &[Arc<dyn Device>]) {
    let units: Vec<&Unit> = s.units.iter().filter(|u| matches!(u.kind, UnitKind::LogHeader | UnitKind::Txn)).collect();
    for _ in 0..[1, 1, 2, 5][rng.usize(..4)] {
        let unit = units[rng.usize(..units.len())];
        let same: Vec<&&Unit> = units.iter().filter(|u| u.kind == unit.kind).collect();
        let mut b = unit.read(devices);
        damage(rng, unit, &s.pool, &mut b, &mut |rng| same[rng.usize(..same.len())].read(&s.devices));
        if rng.u8(..16) != 0 {
            unit.reseal(&mut b);
        }
        unit.write(devices, &b);
    }
}

/// A record that belongs to nobody's memory.
#[derive(Clone)]
enum Own {
    Block { addr: u64, init: bool, data: bool, ranges: Vec<(usize, Vec<u8>)> },
    Revoke { frag: u64, len: u64 },
}

/// Writes another log: the records of the old one in another order, to other addresses, revoked, twice, in more or fewer
/// transactions, all of them well-formed.
fn rewrite(rng: &mut Rng, s: &Sample, devices: &[Arc<dyn Device>]) {
    let bs = s.g.block_size();
    let mut groups: Vec<Vec<Own>> = Vec::new();
    for unit in s.units.iter().filter(|u| u.kind == UnitKind::Txn) {
        let b = unit.read(devices);
        let payload = get_u64(&b, 32) as usize;
        let list = records(&b[TXN_HEADER..TXN_HEADER + payload], bs).unwrap_or_default();
        let own = |r: Record<'_>| match r {
            Record::Block { addr, init, data, ranges, .. } => {
                Own::Block { addr, init, data, ranges: ranges.into_iter().map(|(at, b)| (at, b.to_vec())).collect() }
            }
            Record::Revoke { frag, len } => Own::Revoke { frag, len },
        };
        groups.push(list.into_iter().map(own).collect());
    }
    for _ in 0..rng.usize(1..12) {
        change(rng, s, &mut groups);
    }
    let (at, len) = log_extent(&s.sb);
    let ring = len - LOG_HEADER_AREA;
    let log = &devices[devices.len() - 1];
    let unit = s.g.frag_size() as u64;
    let first_seq = rng.u64(1..1000);
    let mut pos = rng.u64(..ring / unit) * unit;
    // Newer than what stands in the other place, and even: it belongs to this one.
    let header = LogHeader { fsid: s.g.fsid, tail: pos, tail_seq: first_seq, epoch: 1 << 50 };
    let mut head = header.encode().to_vec();
    head.resize(4096, 0);
    log.write_at(IoKind::Super, at, &head).expect("a device in memory");
    for (n, group) in groups.iter().enumerate() {
        let mut b = vec![0; TXN_HEADER];
        for r in group {
            match r {
                Own::Revoke { frag, len } => put_revoke(&mut b, (*frag).min(u64::MAX - len), *len),
                Own::Block { addr, init, data, ranges } => {
                    let mut block = vec![0; bs];
                    let mut runs = Vec::new();
                    for (at, bytes) in ranges {
                        block[*at..at + bytes.len()].copy_from_slice(bytes);
                        runs.push((*at as u32 / 8, bytes.len() as u32 / 8));
                    }
                    put_block(&mut b, *addr, *init, *data, &block, &runs);
                }
            }
        }
        let payload = (b.len() - TXN_HEADER) as u64;
        b.resize(b.len().next_multiple_of(unit as usize), 0);
        seal_txn(&mut b, s.g.fsid, first_seq + n as u64, header.epoch, payload);
        if b.len() as u64 > ring {
            break;
        }
        // Around the end, if it comes to that.
        let here = (ring - pos).min(b.len() as u64) as usize;
        log.write_at(IoKind::Log, at + LOG_HEADER_AREA + pos, &b[..here]).expect("a device in memory");
        if here < b.len() {
            log.write_at(IoKind::Log, at + LOG_HEADER_AREA, &b[here..]).expect("a device in memory");
        }
        pos = (pos + b.len() as u64) % ring;
    }
}

fn change(rng: &mut Rng, s: &Sample, groups: &mut Vec<Vec<Own>>) {
    if groups.is_empty() {
        return;
    }
    let (g, other) = (rng.usize(..groups.len()), rng.usize(..groups.len()));
    match rng.u8(..12) {
        0 => groups.swap(g, other),
        1 => drop(groups.remove(g)),
        2 if groups.len() < 12 => {
            let copy = groups[other].clone();
            groups.insert(g, copy);
        }
        3 => {
            let frag = s.pool.frags[rng.usize(..s.pool.frags.len())];
            let len = [1, 4, 100, s.g.total_frags(), rng.u64(1..1000)][rng.usize(..5)];
            groups[g].push(Own::Revoke {
                frag: frag.min(s.g.total_frags() - 1),
                len: len.min(s.g.total_frags() - frag.min(s.g.total_frags() - 1)),
            });
        }
        _ if groups[g].is_empty() => {}
        n => {
            let at = rng.usize(..groups[g].len());
            let moved = groups[g][at].clone();
            match (n, &mut groups[g][at]) {
                (4, _) => groups[other].push(moved),
                (5, Own::Block { addr, .. }) => *addr = interesting(rng, &s.pool, *addr),
                (6, Own::Block { addr, .. }) => *addr = s.pool.blocks[rng.usize(..s.pool.blocks.len())],
                (7, Own::Block { init, .. }) => *init = !*init,
                (8, Own::Block { data, .. }) => *data = !*data,
                (9, Own::Block { ranges, .. }) => {
                    for (_, bytes) in ranges.iter_mut().filter(|(_, b)| b.len() >= 8) {
                        let at = rng.usize(..bytes.len() / 8) * 8;
                        let new = interesting(rng, &s.pool, get_u64(bytes, at));
                        put_u64(bytes, at, new);
                    }
                }
                (10, Own::Block { ranges, .. }) => ranges.truncate(ranges.len() / 2),
                (_, Own::Revoke { frag, len }) => {
                    *frag = interesting(rng, &s.pool, *frag);
                    *len = interesting(rng, &s.pool, *len).min(1 << 33);
                }
                _ => {}
            }
        }
    }
}
