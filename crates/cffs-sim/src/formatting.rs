//! Crashes while a file system is made, on a blank device, over garbage, and over another file system.
//!
//! After each of them there is the whole new file system, or the whole old one, or none: a device whose superblock is
//! good belongs to a file system that is good.

use crate::crash::{Coverage, Failure, History, guarded};
use crate::disk::{CrashStates, Image, Survival, Trace};
use crate::ops::Op;
use crate::setup::{Setup, check, check_unmounted};
use crate::walk::walk;
use cffs::ROOT_INO;
use cffs::check::repair::{RepairOptions, repair};
use cffs::device::Device;
use cffs::mkfs::read_superblock;
use fastrand::Rng;
use std::sync::Arc;

const NEW: [u8; 16] = *b"cffs-sim uuid 02";

/// What mkfs finds on the device.
fn found_there(setup: Setup, ops: &[Op], seed: u64) -> Result<Vec<Image>, String> {
    let mut images = setup.blank();
    match seed % 3 {
        0 => {}
        1 => {
            let mut rng = Rng::with_seed(seed);
            for _ in 0..200 {
                let sector = rng.u64(..(images[0].size() / 512).min(1 << 14));
                images[0].write(sector * 512, &std::array::from_fn::<u8, 512, _>(|_| rng.u8(..)));
            }
        }
        _ => {
            let h = History::record(setup, ops)?;
            let mut states = CrashStates::new(h.before.clone(), &h.events);
            states.advance(h.events.len());
            images = states.crash(Survival::All, &mut Rng::with_seed(seed));
        }
    }
    Ok(images)
}

/// Makes a file system and crashes that at each of its writes and flushes; `ops` is what an old one was used for.
pub fn explore(setup: Setup, ops: &[Op], seed: u64, coverage: &mut Coverage) -> Result<(), Failure> {
    let failure = |event, survival, text| Failure { event, op: None, survival, second: None, text };
    let before = guarded(|| found_there(setup, ops, seed)).map_err(|t| failure(0, None, t))?;
    let old = guarded(|| tree(setup, &before)).ok();
    let trace = Trace::new(before.clone());
    guarded(|| setup.make_on(&trace, NEW)).map_err(|t| failure(0, None, t))?;
    let events = trace.events();
    let mut rng = Rng::with_seed(seed);
    let mut states = CrashStates::new(before, &events);
    for event in 0..=events.len() {
        states.advance(event);
        for _ in 0..if states.undecided() == 0 { 1 } else { 4 } {
            let survival = Survival::EVERY[rng.usize(..Survival::EVERY.len())];
            let images = states.crash(survival, &mut rng);
            coverage.states += 1;
            let ended = event == events.len();
            guarded(|| judge(setup, images, old, ended, &mut rng)).map_err(|t| failure(event, Some(survival), t))?;
        }
    }
    Ok(())
}

/// A number for the tree that a mount shows.
fn tree(setup: Setup, images: &[Image]) -> Result<u64, String> {
    let trace = Trace::new(images.to_vec());
    let fs = setup.mount_read_only(&trace).map_err(|e| format!("mount: {e}"))?;
    Ok(walk(&fs)?.namespace.digest())
}

fn judge(setup: Setup, images: Vec<Image>, old: Option<u64>, ended: bool, rng: &mut Rng) -> Result<(), String> {
    let trace = Trace::new(images.clone());
    match read_superblock(&*trace.device(0)) {
        Ok(sb) if sb.uuid == NEW => {
            check_unmounted(&images).map_err(|t| format!("the new file system: {t}"))?;
            let fs = setup.mount(&trace).map_err(|e| format!("mount of the new file system: {e}"))?;
            let root = fs.getattr(ROOT_INO).map_err(|e| format!("getattr /: {e}"))?;
            if root.nlink != 2 {
                return Err(format!("the new file system is not empty: {root:?}"));
            }
            fs.close().map_err(|e| format!("unmount of the new file system: {e}"))?;
            return check_unmounted(&trace.images());
        }
        _ if ended => return Err("mkfs has ended, and there is no file system".into()),
        Ok(_) => {
            check(&images).map_err(|t| format!("the old file system: {t}"))?;
            if old != Some(tree(setup, &images)?) {
                return Err("the old file system has lost something".into());
            }
        }
        Err(_) => {
            if setup.mount(&trace).is_ok() {
                return Err("a device without a good superblock was mounted".into());
            }
            if rng.u8(..4) == 0 {
                // Whatever a repair makes of what is left: it comes to an end, and what it calls clean is clean. Contents may be
                // overwritten already; it has to look at those that have checksums to know.
                let trace = Trace::new(images.clone());
                let log = setup.external_log.then(|| trace.device(1) as Arc<dyn Device>);
                let o = RepairOptions::default().data(true);
                let done = repair(trace.device(0), log, &o, &mut |_| true, &|_, _, _| {});
                if done.is_ok_and(|d| d.after.is_clean()) {
                    check(&trace.images()).map_err(|t| format!("repair of what was left: {t}"))?;
                }
            }
        }
    }
    let again = Trace::new(images);
    setup.make_on(&again, NEW).map_err(|t| format!("once more: {t}"))?;
    check_unmounted(&again.images()).map_err(|t| format!("made once more: {t}"))
}
