//! Volumes compared with plain memory: random histories, crashes, members that fail and come back, damage.
//!
//! `CFFS_VOLUME_ROUNDS` multiplies how much is tried, `CFFS_VOLUME_SEED` is the first seed.

mod damage;
mod disk;
mod history;
mod hostile;
mod opening;
mod oracle;
mod recording;
mod striped;
mod threads;

/// How often something is tried, and the first seed.
pub fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (rounds, first): (u64, u64) = (number("CFFS_VOLUME_ROUNDS", 1), number("CFFS_VOLUME_SEED", 0));
    first..first + default * rounds
}
