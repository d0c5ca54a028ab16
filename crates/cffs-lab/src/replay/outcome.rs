//! What a replay found: what the disk was asked, and which operations ended otherwise than recorded.

use cffs_disk::Counters;
use serde::Serialize;

use super::workload::{ByPurpose, Op};

/// What a workload costs somewhere.
#[derive(Debug, Default, Serialize)]
pub struct Predicted {
    /// What the disk was asked until the last operation ended; its time is that in which it was busy.
    pub disk: Counters,
    /// Nanoseconds in which it was busy.
    pub busy: u64,
    /// Nanoseconds of each operation, where that can be known.
    #[serde(skip)]
    pub by_operation: Vec<u64>,
    /// The same requests by purpose, where that can be known.
    pub purposes: Option<ByPurpose>,
    /// What was still to be written then.
    pub sync: Option<Counters>,
    /// Operations that ended otherwise.
    pub differences: Differences,
}

/// Operations that ended otherwise than recorded.
#[derive(Debug, Default, Serialize)]
pub struct Differences {
    /// All that were repeated.
    pub repeated: u64,
    /// Those with another outcome.
    pub other_outcome: u64,
    /// Those of files that the trace does not tell the name of.
    pub unknown: u64,
    /// What the first of them was.
    pub first: Option<String>,
}

impl Differences {
    /// Compares the outcome of an operation with the recorded one. `None`: its file is not known.
    pub fn compare(&mut self, op: &Op, errno: Option<u64>) {
        match errno {
            // What fails because there is no such file fails here as well, one way or the other.
            None if op.detail.errno != 0 => self.repeated += 1,
            None => self.note(op, "its file is not in the trace's tree".into(), true),
            Some(errno) => {
                self.repeated += 1;
                if (errno == 0) != (op.detail.errno == 0) {
                    self.note(op, format!("errno {errno}, recorded {}", op.detail.errno), false);
                }
            }
        }
    }

    fn note(&mut self, op: &Op, what: String, unknown: bool) {
        *(if unknown { &mut self.unknown } else { &mut self.other_outcome }) += 1;
        let name = String::from_utf8_lossy(op.detail.name(0)).into_owned();
        let at = op.start as f64 / 1e9;
        self.first.get_or_insert_with(|| format!("{} {:?} {name:?} at {at:.3} s: {what}", op.kind.name(), op.args));
    }
}
