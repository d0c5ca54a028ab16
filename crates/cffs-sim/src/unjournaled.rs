//! Crashes of mounts without a journal (`metadata=sync` and `delayed`): nothing is promised but that a repair brings the
//! file system back to clean, with what it can still find.

use crate::crash::{Coverage, Failure, History, guarded, use_again};
use crate::disk::{CrashStates, Image, Survival, Trace};
use crate::ops::Op;
use crate::setup::{Setup, check, check_unmounted};
use crate::walk::{read, walk};
use cffs::check::repair::{RepairOptions, repair};
use cffs::device::Device;
use fastrand::Rng;
use std::sync::Arc;

/// Runs the sequence once and crashes it at so many points.
pub fn explore(setup: Setup, ops: &[Op], seed: u64, points: usize, coverage: &mut Coverage) -> Result<(), Failure> {
    let h = guarded(|| History::record(setup, ops));
    let h = h.map_err(|text| Failure { event: 0, op: None, survival: None, second: None, text })?;
    let mut rng = Rng::with_seed(seed);
    let mut states = CrashStates::new(h.before.clone(), &h.events);
    let mut chosen: Vec<usize> = (0..points).map(|_| rng.usize(..=h.events.len())).collect();
    chosen.sort_unstable();
    for event in chosen {
        states.advance(event);
        let survival = Survival::EVERY[rng.usize(..Survival::EVERY.len())];
        let images = states.crash(survival, &mut rng);
        coverage.states += 1;
        guarded(|| bring_back(setup, images)).map_err(|text| {
            let op = h.starts.partition_point(|s| *s < event).checked_sub(1);
            let op = op.map(|i| Box::new((i, h.ops[i].clone())));
            Failure { event, op, survival: Some(survival), second: None, text }
        })?;
    }
    Ok(())
}

/// Repairs, then uses what there is.
pub(crate) fn bring_back(setup: Setup, images: Vec<Image>) -> Result<(), String> {
    let trace = Trace::new(images);
    let log = setup.external_log.then(|| trace.device(1) as Arc<dyn Device>);
    let done = repair(trace.device(0), log, &RepairOptions::default(), &mut |_| true, &|_, _, _| {});
    let done = done.map_err(|e| format!("repair: {e}"))?;
    let report = check(&trace.images()).map_err(|t| {
        let did: Vec<String> = done.actions.iter().take(20).map(|a| format!("\n  {a}")).collect();
        format!("check after the repair: {t}\ndone:{}", did.concat())
    })?;
    if report.state != "clean" {
        return Err(format!("state {} after the repair", report.state));
    }
    let fs = setup.mount(&trace).map_err(|e| format!("mount after the repair: {e}"))?;
    let found = walk(&fs)?;
    for (ino, (attr, path)) in &found.files {
        let end = attr.size.min(1 << 17) as usize;
        let got = read(&fs, *ino, 0, end).map_err(|e| format!("{}: {e}", String::from_utf8_lossy(path)))?;
        if got.len() != end {
            return Err(format!("{}: {} bytes read of {end}", String::from_utf8_lossy(path), got.len()));
        }
    }
    use_again(&fs, &found)?;
    fs.close().map_err(|e| format!("unmount after the repair: {e}"))?;
    // What the mount leaves out of the log is complete at its end.
    check_unmounted(&trace.images()).map_err(|t| format!("check after using it: {t}"))
}
