//! Counters of a mount in the text format of Prometheus.

use crate::disks_below::{DiskBelow, disks_below, volume_of};
use cffs::stats::{DeviceCounters, FsStats};
use cffs_fuse::volume::{State, VolumeReport};
use serde_json::Value;
use std::fmt::Write;

/// A family of samples: what it counts, and its rows.
struct Text(String);

/// Labels of a sample, with their values.
type Labels<'a> = &'a [(&'a str, &'a str)];

impl Text {
    /// Begins a family. What only grows is a counter; its name ends with `_total`.
    fn family(&mut self, name: &str, help: &str) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: u64) {
        let pairs: Vec<String> = labels.iter().map(|(label, v)| format!("{label}=\"{}\"", escaped(v))).collect();
        let labels = if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
        self.put(format_args!("{name}{labels} {value}\n"));
    }

    /// The members of a volume, and what a mirror has counted.
    fn volume(&mut self, image: (&str, &str), volume: &VolumeReport) {
        self.family("cffs_volume_member_up", "1 for a member that is in sync");
        for (number, m) in volume.members.iter().enumerate() {
            let up = matches!(m.state, State::InSync | State::Resyncing);
            let labels = [image, ("number", &number.to_string()), ("member", &m.uuid), ("name", &m.name)];
            self.sample("cffs_volume_member_up", &labels, up.into());
        }
        self.family("cffs_volume_member_lacks_bytes", "Bytes that are still to be copied to a member");
        for m in &volume.members {
            let labels = [image, ("member", &m.uuid), ("name", &m.name)];
            self.sample("cffs_volume_member_lacks_bytes", &labels, m.lacks_bytes);
        }
        let Some(m) = &volume.mirror else { return };
        for (name, help, value) in [
            ("cffs_mirror_failed", "1 if no change can be recorded any more", u64::from(m.failed)),
            ("cffs_mirror_dirty_regions", "Regions in which members may differ after a crash", m.dirty_regions.into()),
            ("cffs_mirror_read_errors_total", "Reads that a member failed", m.read_errors),
            ("cffs_mirror_rewritten_total", "Places written back to a member that could not read them", m.rewritten),
            ("cffs_mirror_repaired_total", "Wrong copies made equal to a right one", m.repaired),
            ("cffs_mirror_dropped_total", "Members dropped because they failed", m.dropped),
            ("cffs_mirror_resynced_bytes_total", "Bytes copied to members that lacked them", m.resynced_bytes),
        ] {
            self.family(name, help);
            self.sample(name, &[image], value);
        }
    }

    /// What devices were asked: three families whose names begin with `prefix`, about `what`. Each device has labels that name it.
    fn requests(&mut self, prefix: &str, what: &str, devices: &[(Vec<(&str, &str)>, &DeviceCounters)]) {
        let name = format!("{prefix}_requests_total");
        self.family(&name, &format!("Requests of {what} by purpose"));
        for (labels, d) in devices {
            for (purpose, p) in &d.purposes {
                let of = [p.read_requests, p.write_requests, p.flushes, p.discards];
                for (operation, n) in ["read", "write", "flush", "discard"].into_iter().zip(of) {
                    self.sample(&name, &with(labels, &[("purpose", purpose), ("operation", operation)]), n);
                }
            }
        }
        let name = format!("{prefix}_bytes_total");
        self.family(&name, &format!("Bytes that {what} were asked to read and write, by purpose"));
        for (labels, d) in devices {
            for (purpose, p) in &d.purposes {
                for (operation, n) in [("read", p.read_bytes), ("write", p.write_bytes)] {
                    self.sample(&name, &with(labels, &[("purpose", purpose), ("operation", operation)]), n);
                }
            }
        }
        let name = format!("{prefix}_errors_total");
        self.family(&name, &format!("Requests of {what} that failed"));
        for (labels, d) in devices {
            let errors = d.kinds.values().fold((0, 0), |(r, w), k| (r + k.read_errors, w + k.write_errors));
            for (operation, n) in [("read", errors.0), ("write", errors.1), ("flush", d.flush_errors)] {
                self.sample(&name, &with(labels, &[("operation", operation)]), n);
            }
        }
    }

    /// The same of the disks below a log disk or a volume.
    fn disks(&mut self, image: (&str, &str), disks: &[DiskBelow<'_>]) {
        let known = disks.iter().filter_map(|d| Some((d, d.number?.to_string(), d.counters?)));
        let known: Vec<(&DiskBelow<'_>, String, &DeviceCounters)> = known.collect();
        let mut labelled = Vec::new();
        for (d, number, counters) in &known {
            let mut labels = vec![image, ("disk", number.as_str()), ("name", d.name)];
            labels.extend(d.member.map(|m| ("member", m.uuid.as_str())));
            labelled.push((labels, *counters));
        }
        if !labelled.is_empty() {
            self.requests("cffs_disk", "the disks below a log disk or a volume", &labelled);
        }
    }

    fn put(&mut self, what: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(what);
    }
}

/// Labels, and some more.
fn with<'a>(labels: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [labels, more].concat()
}

/// The value of a label: a backslash, a quote and a line end are escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The counters of the mount of an image, as a scrape answers them.
///
/// # Errors
/// These are no counters.
pub fn text(image: &str, counters: &Value) -> serde_json::Result<String> {
    let stats: FsStats = serde_json::from_value(counters.clone())?;
    let mut t = Text(String::new());
    let image = ("image", image);
    let log = stats.log_device.as_ref().map(|d| (vec![image, ("device", "log")], d));
    let devices: Vec<_> = [(vec![image, ("device", "data")], &stats.device)].into_iter().chain(log).collect();
    t.requests("cffs_device", "the devices", &devices);
    t.family("cffs_messages_total", "Messages of the kernel by kind");
    for (kind, n) in counters["fuse"].as_object().into_iter().flatten() {
        if let Some(n) = n.as_u64() {
            t.sample("cffs_messages_total", &[image, ("kind", kind)], n);
        }
    }
    let (cache, log, m) = (&stats.cache, &stats.log, &stats.maintenance);
    let [total, free, reserved] = stats.space;
    // Where places are plenty, what can be stored says how full it is.
    let [most, left] = stats.stored.unwrap_or([total, free]);
    let space = [total.min(most), free.min(left), reserved].map(|frags| frags.saturating_mul(stats.fragment_size));
    let single = [
        ("cffs_cache_hits_total", "Blocks found in the cache", cache.hits),
        ("cffs_cache_misses_total", "Blocks that had to be read", cache.misses),
        (
            "cffs_cache_group_reads_total",
            "Requests that brought more than the block that was wanted",
            cache.group_reads,
        ),
        ("cffs_cache_group_blocks_total", "Blocks that such requests brought", cache.group_blocks),
        ("cffs_cache_group_blocks_used_total", "Those of them that were used later", cache.group_blocks_used),
        ("cffs_cache_evicted_total", "Blocks dropped for others", cache.evicted),
        ("cffs_cache_bytes", "Bytes of cached blocks", cache.bytes),
        ("cffs_cache_dirty_bytes", "Bytes of file data that are not written back", cache.dirty_data_bytes),
        ("cffs_cache_limit_bytes", "The limit of both", cache.limit_bytes),
        ("cffs_log_commits_total", "Commits written to the log", log.commits),
        ("cffs_log_bytes_total", "Bytes written to the log", log.bytes),
        ("cffs_log_checkpoints_total", "How often the log was emptied", log.checkpoints),
        ("cffs_log_waiting_blocks", "Blocks that wait for a checkpoint", log.dirty_blocks),
        ("cffs_maintenance_runs_total", "How often maintenance found enough to do", m.runs),
        ("cffs_maintenance_moved_bytes_total", "Bytes that maintenance moved", m.bytes_moved),
        ("cffs_inodes_in_memory", "Inodes in memory", stats.inodes),
        ("cffs_space_bytes", "Size of the file system", space[0]),
        ("cffs_space_free_bytes", "Free space, reserved space included", space[1]),
        ("cffs_space_reserved_bytes", "Space reserved for data without a place", space[2]),
        ("cffs_read_only", "1 if nothing can be written", u64::from(counters["read_only"] == true)),
        ("cffs_failed", "1 after an error since which nothing is written", u64::from(counters["failed"] == true)),
    ];
    for (name, help, value) in single {
        t.family(name, help);
        t.sample(name, &[image], value);
    }
    if let Some(sums) = &stats.data_sums {
        t.family("cffs_checksums_total", "Fragments of data compared with their checksums");
        for (result, n) in [("good", sums.verified), ("damaged", sums.failed), ("unknown", sums.unknown)] {
            t.sample("cffs_checksums_total", &[image, ("result", result)], n);
        }
    }
    let volume = volume_of(counters);
    t.disks(image, &disks_below(&stats, volume.as_ref(), image.1));
    if let Some(volume) = &volume {
        t.volume(image, volume);
    }
    Ok(t.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_family_has_a_type_before_its_samples_and_values_are_escaped() {
        let mut counters = serde_json::to_value(FsStats::default()).unwrap();
        counters["fuse"] = serde_json::json!({"lookup": 7, "server": {"pid": 1}});
        let purposes = serde_json::json!({"log": {"read_requests": 1, "write_requests": 2, "read_bytes": 3, "write_bytes": 4,
            "flushes": 5, "discards": 6}});
        counters["device"]["purposes"] = purposes.clone();
        // Of two members, the second of which is not there any more.
        let disk = serde_json::json!({"disk": 4, "kinds": {}, "purposes": purposes, "flushes": 5, "latency": {}});
        counters["disks"] = serde_json::json!([disk]);
        let member = |uuid, state, disk: Option<usize>| serde_json::json!({"uuid": uuid, "name": "/dev/sdb", "state": state, "lacks_bytes": 12, "disk": disk});
        counters["volume"] = serde_json::json!({"uuid": "u", "kind": "mirror", "stripe_unit": 0, "bytes": 1,
            "members": [member("m1", "in-sync", Some(4)), member("m2", "absent", None)], "mirror": null, "work": null});
        let text = text("a\"b\\c\nd", &counters).unwrap();
        assert!(text.contains(r#"cffs_messages_total{image="a\"b\\c\nd",kind="lookup"} 7"#), "{text}");
        assert!(text.contains(r#"device="data",purpose="log",operation="flush"} 5"#), "{text}");
        assert!(text.contains(r#"disk="4",name="/dev/sdb",member="m1",purpose="log",operation="flush"} 5"#), "{text}");
        assert!(
            !text.contains(r#"member="m2",purpose"#) && text.contains(r#"member="m2",name="/dev/sdb"} 0"#),
            "{text}"
        );
        let mut families = BTreeSet::new();
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(declared) => assert!(families.insert(declared.split(' ').next().unwrap().to_owned()), "{line}"),
                None if line.starts_with('#') => {}
                None => {
                    let name = line.split(['{', ' ']).next().unwrap();
                    assert!(families.contains(name), "{line}");
                    assert!(line.rsplit(' ').next().unwrap().parse::<u64>().is_ok(), "{line}");
                }
            }
        }
        assert!(super::text("x", &serde_json::json!({"no": "counters"})).is_err());
    }
}
