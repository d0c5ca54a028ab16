//! What a check has found so far.

use super::report::{Class, Counts, Layout, Phase, PhaseTime, Problem};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Instant;

/// The parts of the future report.
pub(super) struct Findings {
    pub(super) problems: Problems,
    pub(super) counts: Counts,
    pub(super) layout: Layout,
    pub(super) phases: Vec<PhaseTime>,
    phase_began: Instant,
}

impl Findings {
    /// No findings yet but these problems. The first phase began at `began`.
    pub(super) fn new(problems: Problems, began: Instant) -> Findings {
        Findings {
            problems,
            counts: Counts::default(),
            layout: Layout::default(),
            phases: Vec::new(),
            phase_began: began,
        }
    }

    /// Notes how long a phase took; the next one begins.
    pub(super) fn phase_done(&mut self, phase: Phase) {
        let now = Instant::now();
        self.phases.push(PhaseTime { phase, seconds: (now - self.phase_began).as_secs_f64() });
        self.phase_began = now;
    }
}

/// Collects problems, and counts those beyond the limit.
pub(super) struct Problems {
    pub(super) list: Vec<Problem>,
    pub(super) total: u64,
    pub(super) by_class: BTreeMap<Class, u64>,
    limit: usize,
}

impl Problems {
    pub(super) fn new(limit: usize) -> Problems {
        Problems { list: Vec::new(), total: 0, by_class: BTreeMap::new(), limit }
    }
    pub(super) fn add(&mut self, class: Class, place: impl Display, text: impl Display) {
        self.total += 1;
        *self.by_class.entry(class).or_default() += 1;
        if self.list.len() < self.limit {
            self.list.push(Problem { class, place: place.to_string(), text: text.to_string() });
        }
    }
}
