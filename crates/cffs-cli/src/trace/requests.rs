//! Requests of the device, summed up, and spans in words.

use cffs::trace::{Kind, Record};
use serde_json::{Value, json};

/// Requests that were counted. Shares of requests make fractions.
#[derive(Clone, Copy, Default)]
pub struct Requests {
    /// Reads, and so on.
    pub reads: f64,
    /// See `reads`.
    pub writes: f64,
    /// See `reads`.
    pub flushes: f64,
    /// See `reads`.
    pub discards: f64,
    /// Bytes of reads.
    pub read_bytes: f64,
    /// Bytes of writes.
    pub write_bytes: f64,
    /// Time that the device took, in nanoseconds.
    pub ns: f64,
}

impl Requests {
    /// Adds a share of one.
    pub fn add(&mut self, r: &Record, share: f64) {
        let (count, bytes) = match r.kind {
            Kind::DeviceRead => (&mut self.reads, Some(&mut self.read_bytes)),
            Kind::DeviceWrite => (&mut self.writes, Some(&mut self.write_bytes)),
            Kind::DeviceFlush => (&mut self.flushes, None),
            _ => (&mut self.discards, None),
        };
        *count += share;
        if let Some(bytes) = bytes {
            *bytes += share * r.args[1] as f64;
        }
        self.ns += share * own_time(r);
    }

    /// What there is, with a word for it.
    pub fn counts(&self) -> Vec<(f64, &'static str)> {
        let all =
            [(self.reads, "reads"), (self.writes, "writes"), (self.flushes, "flushes"), (self.discards, "discards")];
        all.into_iter().filter(|(n, _)| *n > 0.0).collect()
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "reads": self.reads,
            "writes": self.writes,
            "flushes": self.flushes,
            "discards": self.discards,
            "read_bytes": self.read_bytes,
            "write_bytes": self.write_bytes,
            "device_ns": self.ns,
        })
    }
}

/// Nanoseconds of a span. Requests of a batch have the same time together, and each has its part.
pub fn own_time(r: &Record) -> f64 {
    r.duration as f64 / r.request().map_or(1, |q| q.batch) as f64
}

/// What an operation was, with its arguments.
pub fn described(r: &Record) -> String {
    let mut text = r.kind.name().to_owned();
    let request = r.request();
    for (name, value) in r.named_args().filter(|(name, _)| *name != "what") {
        text.push_str(&format!(" {name}={value}"));
    }
    if let Some(q) = request {
        text.push_str(&format!(" {} for {}", q.kind.name(), q.purpose.name()));
        let more = [(q.batch > 1).then(|| format!("one of {} at once", q.batch)), q.failed.then(|| "failed".into())];
        more.into_iter().flatten().for_each(|m| text.push_str(&format!(", {m}")));
    }
    text
}
