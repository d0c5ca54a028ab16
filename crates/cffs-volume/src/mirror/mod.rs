//! Members that each have everything.
//!
//! From below: `divide` (who reads what, of several reads), `shadow` (what was overwritten after a crash), `state` (who is there, and how a change is recorded), `failure` (a member is dropped), `intent` (which regions may
//! differ), `write`, `read`, `repair`, `resync`, `scrub`, `membership`; `device` puts them behind the trait.

mod device;
mod divide;
mod failure;
mod intent;
mod membership;
mod read;
mod repair;
mod resync;
mod scrub;
mod shadow;
mod state;
mod write;

pub use membership::{MemberState, MemberStatus, MirrorStatus};
pub(crate) use membership::{read_bitmap, used_apart, what_it_lacks};
pub use resync::Progress;
pub use scrub::{Difference, ScrubReport, Verdict};
pub(crate) use state::{Member, MirrorParts};
pub use state::{Mirror, MirrorStats};
