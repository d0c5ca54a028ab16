//! What a case came to.

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Alike for failures that probably have one cause: the place of a panic, or the stage and the sort of complaint.
    pub key: String,
    /// All there is to say.
    pub text: String,
}

impl Failure {
    /// A failure of a stage.
    pub fn new(key: impl Into<String>, text: impl Into<String>) -> Failure {
        Failure { key: key.into(), text: text.into() }
    }
}

/// What a case that did not fail has done, for the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The damage was believed: something was decoded, replayed, or mounted.
    pub accepted: bool,
    /// Images: stages run (checks, walks, workloads, repairs).
    pub stages: u64,
    /// Images: repairs that put something right.
    pub repaired: u64,
    /// Images: repairs that were refused for a reason that is allowed (no superblock, no space).
    pub refused: u64,
    /// Images: the most device requests that a stage needed, in thousandths of its limit.
    pub requests: u64,
}

impl Done {
    /// Adds another one.
    pub fn add(&mut self, other: &Done) {
        self.accepted |= other.accepted;
        self.stages += other.stages;
        self.repaired += other.repaired;
        self.refused += other.refused;
        self.requests = self.requests.max(other.requests);
    }
}
