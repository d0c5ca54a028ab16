//! What the mount itself counted of each disk while it was recorded, to compare the trace with.

use super::load::Trace;
use super::requests::Requests;
use cffs::trace::Record;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// A disk to which requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disk {
    /// The one with this number.
    Numbered(u64),
    /// That of an external log.
    Log,
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disk::Numbered(n) => write!(f, "{n}"),
            Disk::Log => f.write_str("log"),
        }
    }
}

impl Disk {
    /// That of a request.
    pub fn of(r: &Record) -> Option<Disk> {
        r.request().map(|q| if q.on_log_device { Disk::Log } else { Disk::Numbered(q.disk) })
    }
}

/// Reads, writes and flushes.
type Counts = [u64; 3];

/// What each disk counted between start and end of the recording. `None` of one that has left meanwhile.
#[derive(Debug, PartialEq, Eq)]
pub struct Counted(BTreeMap<Disk, Option<Counts>>);

/// Whether a mount has told of disks below a log disk or a volume. One that makes requests of its own to such a device and has not is beside
/// another one, which has the disks.
pub fn tells_of_disks(info: &Value) -> bool {
    info["disks"].as_array().is_some_and(|disks| !disks.is_empty())
}

/// All counters of a moment.
fn at(info: &Value) -> Option<BTreeMap<Disk, Counts>> {
    let counts = |device: &Value| -> Option<Counts> {
        let purposes = device["purposes"].as_object()?;
        let sum = |key: &str| purposes.values().map(|p| p[key].as_u64().unwrap_or(0)).fold(0, u64::saturating_add);
        Some(["read_requests", "write_requests", "flushes"].map(sum))
    };
    let numbered = |d: &Value| Some((Disk::Numbered(d["disk"].as_u64().unwrap_or(0)), counts(d)?));
    // What a log disk or a volume is asked for is not what the disks below are.
    let mut all: BTreeMap<Disk, Counts> = match info["disks"].as_array().filter(|_| tells_of_disks(info)) {
        Some(disks) => disks.iter().map(numbered).collect::<Option<_>>()?,
        None => [(Disk::Numbered(0), counts(&info["device"])?)].into(),
    };
    all.extend(counts(&info["log_device"]).map(|log| (Disk::Log, log)));
    Some(all)
}

impl Counted {
    /// As it stands in a trace whose requests went to these disks. `None` if nobody has counted: the trace is cut, or its disks are another mount's.
    pub fn of(trace: &Trace, asked: impl Iterator<Item = Disk>, logical: u64) -> Option<Counted> {
        if logical > 0 && !tells_of_disks(&trace.end) {
            return None;
        }
        // A trace of all since the mount begins with its counters.
        let start = if trace.start["since_mount"] == true { BTreeMap::new() } else { at(&trace.start)? };
        let end = at(&trace.end)?;
        // A disk that came meanwhile began with zero: it has a number that no other one had.
        let counted = |disk: &Disk| {
            let before = start.get(disk).copied().unwrap_or_default();
            end.get(disk).map(|now| std::array::from_fn(|i| now[i].saturating_sub(before[i])))
        };
        let disks = start.keys().chain(end.keys()).copied().chain(asked);
        Some(Counted(disks.map(|disk| (disk, counted(&disk))).collect()))
    }

    /// Of all disks, if none has left.
    pub fn all(&self) -> Option<Counts> {
        let add = |a: Counts, b: &Option<Counts>| b.map(|b| std::array::from_fn(|i| a[i].saturating_add(b[i])));
        self.0.values().try_fold([0; 3], add)
    }

    /// The disks, with what each has counted.
    pub fn disks(&self) -> impl Iterator<Item = (Disk, Option<Counts>)> {
        self.0.iter().map(|(disk, counts)| (*disk, *counts))
    }
}

/// For programs.
pub fn json([reads, writes, flushes]: Counts) -> Value {
    json!({"reads": reads, "writes": writes, "flushes": flushes})
}

/// Each disk with its requests in the trace, and what it counted itself.
pub fn by_disk(traced: &BTreeMap<Disk, Requests>, counted: Option<&Counted>) -> Value {
    let own: BTreeMap<Disk, Option<Counts>> = counted.into_iter().flat_map(Counted::disks).collect();
    let row = |disk: &Disk| {
        let mut row = traced.get(disk).copied().unwrap_or_default().json();
        row["counted"] = own.get(disk).copied().flatten().map_or(Value::Null, json);
        (disk.to_string(), row)
    };
    Value::Object(traced.keys().chain(own.keys()).map(row).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(start: Value, end: Value) -> Trace {
        let mut trace = Trace::of(Vec::new());
        (trace.start, trace.end) = (start, end);
        trace
    }

    fn disk(number: u64, reads: u64) -> Value {
        json!({"disk": number, "purposes": {
            "demand": {"read_requests": reads, "write_requests": 1, "flushes": 0},
            "log": {"read_requests": 1, "write_requests": 2, "flushes": 3}}})
    }

    #[test]
    fn disks_that_come_are_counted_and_of_those_that_go_nobody_knows() {
        let t = trace(json!({"disks": [disk(0, 10), disk(1, 20)]}), json!({"disks": [disk(0, 15), disk(1, 20)]}));
        let counted = Counted::of(&t, std::iter::empty(), 7).unwrap();
        assert_eq!(counted.all(), Some([5, 0, 0]));
        let t = trace(json!({"disks": [disk(0, 10), disk(1, 20)]}), json!({"disks": [disk(0, 15), disk(2, 4)]}));
        let counted = Counted::of(&t, [Disk::Numbered(3)].into_iter(), 7).unwrap();
        let all: Vec<_> = counted.disks().map(|(disk, n)| (disk.to_string(), n)).collect();
        let want = [("0", Some([5, 0, 0])), ("1", None), ("2", Some([5, 3, 3])), ("3", None)];
        assert_eq!(all, want.map(|(name, n)| (name.to_owned(), n)));
        assert_eq!(counted.all(), None);
        let traced = BTreeMap::from([(Disk::Numbered(3), Requests { reads: 2.0, ..Requests::default() })]);
        let rows = by_disk(&traced, Some(&counted));
        assert_eq!(rows["2"]["counted"], json!({"reads": 5, "writes": 3, "flushes": 3}));
        assert!(rows["3"]["counted"].is_null() && rows["3"]["reads"] == 2.0 && rows["1"]["reads"] == 0.0);
    }

    #[test]
    fn a_single_disk_and_the_log_of_its_own_are_counted_and_those_of_another_mount_are_not() {
        let start = json!({"device": disk(0, 1), "log_device": disk(0, 5), "disks": []});
        let end = json!({"device": disk(0, 2), "log_device": disk(0, 9), "disks": []});
        let counted = Counted::of(&trace(start.clone(), end.clone()), std::iter::empty(), 0).unwrap();
        let all: Vec<_> = counted.disks().collect();
        assert_eq!(all, [(Disk::Numbered(0), Some([1, 0, 0])), (Disk::Log, Some([4, 0, 0]))]);
        assert_eq!(counted.all(), Some([5, 0, 0]));
        assert_eq!(Counted::of(&trace(start.clone(), end.clone()), std::iter::empty(), 1), None);
        assert_eq!(Counted::of(&trace(Value::Null, end.clone()), std::iter::empty(), 0), None);
        assert_eq!(Counted::of(&trace(start, Value::Null), std::iter::empty(), 0), None);
        let all = Counted::of(&trace(json!({"since_mount": true}), end), std::iter::empty(), 0).unwrap().all();
        assert_eq!(all, Some([3 + 10, 6, 6]));
    }
}
