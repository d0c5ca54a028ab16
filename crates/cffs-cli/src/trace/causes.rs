//! For which operations a request was made.

use super::load::Trace;
use cffs::trace::Kind;

/// Name of what no operation has caused, as far as the trace knows.
pub const NOBODY: &str = "unknown";

fn name(origin: Option<Kind>) -> &'static str {
    origin.map_or(NOBODY, Kind::name)
}

/// The operations for which a span was done, with shares that add up to one. Work that is done for many (a writeback, a commit,
/// a checkpoint) counts for those it was done for, each with the share of what it made dirty, and not for the one who had it done.
pub fn shares(trace: &Trace, at: usize) -> Vec<(&'static str, f64)> {
    for ancestor in std::iter::once(at).chain(trace.ancestors(at)) {
        let Some(causes) = &trace.records[ancestor].causes else { continue };
        let all: Vec<_> = causes.shares().map(|(origin, share)| (name(origin), share)).collect();
        if !all.is_empty() {
            return all;
        }
    }
    vec![(name(trace.records[at].cause.origin), 1.0)]
}

/// The operation that waited for a span, if one did.
pub fn waiting(trace: &Trace, at: usize) -> Option<usize> {
    let within = |ancestor: &usize| trace.is_within(at, *ancestor);
    trace.ancestors(at).take_while(within).filter(|a| trace.records[*a].kind.is_origin()).last()
}
