//! What an operation waited for, as far as a trace knows.

use super::load::{Trace, time};
use super::requests::{Requests, described};
use cffs::trace::{Kind, Record};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// Why an operation took its time. The parts add up to the whole.
#[derive(Default)]
pub struct Explanation {
    /// Requests that it waited for, by purpose.
    pub requests: BTreeMap<&'static str, Requests>,
    /// Of the time of these, that in which the device had requests of others as well, in nanoseconds: a queue, perhaps.
    pub beside_requests: u64,
    /// Waiting for the transfers of others, and for the commits of others, in nanoseconds.
    pub transfers: u64,
    /// See `transfers`.
    pub commits: u64,
    /// What was left of its parts by their kind, without the requests and waits in them: copying, computing, locks, waiting for a processor.
    pub work: BTreeMap<&'static str, u64>,
    /// The same of the operation itself.
    pub own: u64,
    /// The operation of another thread on the same inode that went on longest meanwhile, and how long: it may have had the lock.
    pub other: Option<(String, u64)>,
}

/// Time that requests, waits or parts took, while it is collected for an operation.
#[derive(Default)]
struct Collected {
    why: Explanation,
    /// Nanoseconds by kind of the parts, less what is in them.
    left: BTreeMap<Kind, f64>,
    /// When requests of it were under way, and requests of others.
    own: Vec<(u64, u64)>,
    others: Vec<(u64, u64)>,
}

/// Explains operations: what they led to in their thread, in their time, and what that led to.
pub fn explain(trace: &Trace, ops: &[usize]) -> Vec<Explanation> {
    let mut all: Vec<Collected> = ops.iter().map(|_| Collected::default()).collect();
    let mut by_thread: HashMap<u64, Vec<(usize, usize)>> = HashMap::new();
    for (n, op) in ops.iter().enumerate() {
        by_thread.entry(trace.records[*op].thread).or_default().push((n, *op));
    }
    for (at, r) in trace.records.iter().enumerate() {
        for (n, op) in by_thread.get(&r.thread).into_iter().flatten() {
            let within = |at: &usize| trace.is_within(*at, *op);
            if at == *op || !within(&at) || !trace.ancestors(at).take_while(within).any(|above| above == *op) {
                continue;
            }
            let parent = trace.parent(at).filter(|parent| parent == op || within(parent));
            let above = parent.filter(|parent| parent != op).map(|parent| trace.records[parent].kind);
            all[*n].part(r, above);
        }
        if r.request().is_some() || r.kind.is_origin() {
            for (n, op) in ops.iter().enumerate() {
                all[n].other(r, &trace.records[*op]);
            }
        }
    }
    all.into_iter().zip(ops).map(|(c, op)| c.finish(&trace.records[*op])).collect()
}

impl Collected {
    /// A part of the operation, and the kind of the part that it is in, unless that is the operation.
    fn part(&mut self, r: &Record, above: Option<Kind>) {
        let request = r.request();
        let took = r.duration as f64 / request.map_or(1, |q| q.batch) as f64;
        if let Some(above) = above {
            *self.left.entry(above).or_default() -= took;
        }
        let e = &mut self.why;
        match r.kind {
            Kind::Wait => e.transfers = e.transfers.saturating_add(r.duration),
            Kind::CommitWait => e.commits = e.commits.saturating_add(r.duration),
            _ if request.is_none() => *self.left.entry(r.kind).or_default() += took,
            _ => {}
        }
        if let Some(request) = request {
            e.requests.entry(request.purpose.name()).or_default().add(r, 1.0);
            self.own.push((r.start, r.end()));
        }
    }

    /// What went on in another thread.
    fn other(&mut self, r: &Record, op: &Record) {
        let (start, end) = (r.start.max(op.start), r.end().min(op.end()));
        if r.thread == op.thread || start >= end {
            return;
        }
        if r.request().is_some() {
            self.others.push((start, end));
        } else if !r.kind.arg_names().is_empty() && !op.kind.arg_names().is_empty() && r.args[0] == op.args[0] {
            let longest = self.why.other.as_ref().map_or(0, |(_, ns)| *ns);
            if end - start > longest {
                self.why.other = Some((described(r), end - start));
            }
        }
    }

    fn finish(mut self, op: &Record) -> Explanation {
        let e = &mut self.why;
        e.beside_requests = overlap(&mut self.own, &mut self.others);
        let mut known = e.transfers.saturating_add(e.commits);
        known = e.requests.values().fold(known, |sum, q| sum.saturating_add(q.ns as u64));
        for (kind, left) in self.left {
            let left = left.max(0.0) as u64;
            known = known.saturating_add(left);
            *e.work.entry(kind.name()).or_default() += left;
        }
        e.own = op.duration.saturating_sub(known);
        self.why
    }
}

/// How long both were under way at once.
fn overlap(a: &mut Vec<(u64, u64)>, b: &mut Vec<(u64, u64)>) -> u64 {
    let union = |all: &mut Vec<(u64, u64)>| {
        all.sort_unstable();
        all.dedup_by(|next, before| {
            let joins = next.0 <= before.1;
            before.1 = if joins { before.1.max(next.1) } else { before.1 };
            joins
        });
    };
    union(a);
    union(b);
    let (mut sum, mut from) = (0u64, 0);
    for (start, end) in a.iter() {
        while b.get(from).is_some_and(|other| other.1 <= *start) {
            from += 1;
        }
        for other in b[from..].iter().take_while(|other| other.0 < *end) {
            sum = sum.saturating_add(other.1.min(*end) - other.0.max(*start));
        }
    }
    sum
}

impl Explanation {
    /// For people: what it waited for, the longest first, and what is left.
    pub fn text(&self) -> String {
        let mut parts: Vec<(u64, String)> = Vec::new();
        for (purpose, q) in &self.requests {
            let made: Vec<String> = q.counts().iter().map(|(n, what)| format!("{n:.0} {what}")).collect();
            parts.push((q.ns as u64, format!("in {} for {purpose}", made.join(", "))));
        }
        parts.push((self.transfers, "waiting for transfers of others".into()));
        parts.push((self.commits, "waiting for commits of others".into()));
        parts.extend(self.work.iter().map(|(kind, ns)| (*ns, format!("of work in the {kind}"))));
        parts.retain(|(ns, _)| *ns > 0);
        parts.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
        parts.push((self.own, "for the rest: locks, copying, computing".into()));
        let mut text = parts.iter().map(|(ns, what)| format!("{} {what}", time(*ns))).collect::<Vec<_>>().join("; ");
        if self.beside_requests > 0 {
            text += &format!("; requests of others beside its own for {}", time(self.beside_requests));
        }
        if let Some((what, ns)) = &self.other {
            text += &format!("; on the same inode in another thread: {what}, for {}", time(*ns));
        }
        text
    }

    /// For programs.
    pub fn json(&self, value: &mut Value) {
        value["requests"] = self.requests.iter().map(|(name, q)| ((*name).to_owned(), q.json())).collect();
        value["beside_requests_of_others_ns"] = self.beside_requests.into();
        value["wait_for_transfers_ns"] = self.transfers.into();
        value["wait_for_commits_ns"] = self.commits.into();
        value["work_ns"] = json!(self.work);
        value["rest_ns"] = self.own.into();
        value["other_on_inode"] = json!(self.other.as_ref().map(|(what, ns)| json!({"operation": what, "ns": ns})));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::trace::Cause;

    fn record(kind: Kind, id: u64, cause: u64, (thread, start, duration): (u64, u64, u64), args: [u64; 3]) -> Record {
        let cause = Cause { span: cause, origin: None };
        Record { kind, id, cause, thread, start, duration, args, transaction: 0, causes: None, detail: None }
    }

    #[test]
    fn spans_that_cause_each_other_are_explained_once() {
        let trace = Trace::of(vec![
            record(Kind::Read, 1, 2, (1, 0, 100), [0; 3]),
            record(Kind::Wait, 2, 1, (1, 10, 10), [0; 3]),
            record(Kind::Wait, 3, 2, (1, 12, 5), [0; 3]),
        ]);
        let explained = &explain(&trace, &[0])[0];
        assert_eq!((explained.transfers, explained.commits), (15, 0));
    }

    #[test]
    fn the_parts_of_an_operation_add_up_to_it_and_what_went_on_beside_it_is_told() {
        // Two requests of one batch are handed over together: half the time each.
        let two = 2 << 8;
        let trace = Trace::of(vec![
            record(Kind::Write, 1, 0, (1, 0, 1000), [7, 0, 10]),
            record(Kind::Writeback, 2, 1, (1, 100, 500), [1, 0, 0]),
            record(Kind::DeviceWrite, 3, 2, (1, 150, 300), [0, 512, two]),
            record(Kind::DeviceWrite, 4, 2, (1, 150, 300), [512, 512, two]),
            record(Kind::CommitWait, 5, 1, (1, 700, 100), [0; 3]),
            // Another thread reads the same file, and the device is busy for it.
            record(Kind::Read, 6, 0, (2, 50, 250), [7, 0, 10]),
            record(Kind::DeviceRead, 7, 6, (2, 100, 100), [0, 512, 1 << 8]),
            record(Kind::DeviceRead, 8, 6, (2, 140, 110), [0, 512, 1 << 8]),
            record(Kind::Read, 9, 0, (2, 350, 600), [8, 0, 10]),
        ]);
        let e = &explain(&trace, &[0])[0];
        let requests: f64 = e.requests.values().map(|q| q.ns).sum();
        assert_eq!((requests, e.commits, e.work["writeback"], e.own), (300.0, 100, 200, 400));
        assert_eq!(e.beside_requests, 100, "from 150 to 250, twice but once");
        assert_eq!(e.other.as_ref().map(|(_, ns)| *ns), Some(250));
        let text = e.text();
        for part in
            ["2 writes for", "of work in the writeback", "waiting for commits", "in another thread: read inode=7"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let mut value = json!({});
        e.json(&mut value);
        assert_eq!((&value["rest_ns"], &value["work_ns"]["writeback"]), (&400.into(), &200.into()));
    }

    #[test]
    fn times_that_overlap() {
        let mut a = vec![(10, 20), (15, 30), (50, 60)];
        let mut b = vec![(0, 12), (28, 55), (11, 13), (70, 80)];
        assert_eq!(overlap(&mut a, &mut b), 3 + 2 + 5);
        assert_eq!(overlap(&mut Vec::new(), &mut b), 0);
    }
}
