//! The picture: lines of text for two samples.

use super::costs::Cost;
use super::disks;
use super::sample::{Between, Sample};
use cffs::device::PurposeStats;
use cffs::trace::Kind;
use serde_json::Value;

/// What the table below shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Directories.
    Directories,
    /// Operations of programs.
    Operations,
    /// Requests of the device by purpose.
    Purposes,
    /// Requests of the disks below a log disk or a volume.
    Disks,
    /// Messages of the kernel.
    Messages,
}

/// What is shown, and how.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Which table.
    pub table: Table,
    /// The column by which it is sorted, from 0 on.
    pub column: usize,
    /// Sums since the beginning, not what was in the last interval.
    pub total: bool,
}

/// Columns of numbers of a table.
const COSTS: [&str; 4] = ["operations", "requests", "MB", "ms of device"];
/// See [`COSTS`].
const REQUESTS: [&str; 5] = ["reads", "writes", "flushes", "MB read", "MB written"];

impl Table {
    /// Names of its columns of numbers.
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Table::Directories | Table::Operations => &COSTS,
            Table::Purposes | Table::Disks => &REQUESTS,
            Table::Messages => &["messages"],
        }
    }

    fn title(self) -> &'static str {
        match self {
            Table::Directories => "directory",
            Table::Operations => "operation",
            Table::Purposes => "purpose",
            Table::Disks => "disk",
            Table::Messages => "message",
        }
    }

    /// The column that says most.
    pub fn first_column(self) -> usize {
        match self {
            Table::Directories | Table::Operations => 3,
            Table::Purposes | Table::Disks | Table::Messages => 0,
        }
    }
}

/// A line, and whether it stands out.
pub type Line = (String, bool);

/// What the last line says of keys.
const KEYS: &str = "d directories  o operations  p purposes  k disks  m messages   s sort  t total/now  + - interval  space pause  q quit";

/// The picture, as many lines as there is room for. `path` knows the paths of directories.
pub fn lines<'a>(
    b: &Between<'_>,
    view: View,
    head: &str,
    note: Option<&str>,
    path: &dyn Fn(u64) -> &'a str,
    room: (usize, usize),
) -> Vec<Line> {
    let (width, height) = room;
    let mut lines = vec![(head.to_owned(), true)];
    lines.extend(overview(b).into_iter().map(|line| (line, false)));
    lines.push((String::new(), false));
    let left = height.saturating_sub(lines.len() + 1);
    lines.extend(table(b, view, note, path, left));
    lines.resize(height.saturating_sub(1), (String::new(), false));
    lines.push((KEYS.to_owned(), true));
    lines.into_iter().map(|(line, strong)| (fit(&line, width), strong)).collect()
}

/// The table, with so many lines at most.
pub fn table<'a>(
    b: &Between<'_>,
    view: View,
    note: Option<&str>,
    path: &dyn Fn(u64) -> &'a str,
    most: usize,
) -> Vec<Line> {
    let columns = view.table.columns();
    let mut title = String::new();
    for (n, column) in columns.iter().enumerate() {
        let mark = if n == view.column { '*' } else { ' ' };
        title.push_str(&format!("{column:>13}{mark}"));
    }
    let when = if view.total { "since the beginning" } else { "a second" };
    let mut lines = vec![(format!("{title}  {} ({when})", view.table.title()), true)];
    if let Some(note) = note.filter(|_| matches!(view.table, Table::Directories | Table::Operations)) {
        lines.push((format!("  {note}"), false));
    }
    if view.table == Table::Disks && b.now.stats.disks.is_empty() {
        lines.push((
            "  the file system is on a single disk: what that gets is in the table of purposes (p)".into(),
            false,
        ));
    }
    for (name, numbers) in rows(b, view, path) {
        let mut line = String::new();
        numbers.iter().for_each(|n| line.push_str(&format!("{:>13} ", number(*n))));
        lines.push((format!("{line}  {name}"), false));
    }
    lines.truncate(most);
    lines
}

/// As many characters as there is room for; what could move the cursor is replaced.
pub fn fit(line: &str, width: usize) -> String {
    line.chars().map(|c| if c.is_control() { '?' } else { c }).take(width).collect()
}

fn number(n: f64) -> String {
    match n {
        0.0 => "0".into(),
        n if n.abs() < 10.0 => format!("{n:.2}"),
        n if n.abs() < 1000.0 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    }
}

fn percent(part: f64, of: f64) -> String {
    if of > 0.0 { format!("{:.0}%", part / of * 100.0) } else { "-".into() }
}

fn size(bytes: u64) -> String {
    let b = bytes as f64;
    match bytes {
        0..1_048_576 => format!("{:.0} KiB", b / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", b / 1_048_576.0),
        1_073_741_824..1_099_511_627_776 => format!("{:.2} GiB", b / 1_073_741_824.0),
        _ => format!("{:.2} TiB", b / 1_099_511_627_776.0),
    }
}

/// The sum over all purposes of both devices.
fn device(s: &Sample, of: impl Fn(&PurposeStats) -> u64) -> u64 {
    let all = s.stats.device.purposes.values().chain(s.stats.log_device.iter().flat_map(|d| d.purposes.values()));
    all.map(of).sum()
}

/// The sum over all purposes of the disks below.
fn below(s: &Sample, of: impl Fn(&PurposeStats) -> u64) -> u64 {
    s.stats.disks.iter().flat_map(|d| d.counters.purposes.values()).map(of).sum()
}

/// What does not depend on the table.
pub fn overview(b: &Between<'_>) -> Vec<String> {
    let (now, cache, log) = (b.now, &b.now.stats.cache, &b.now.stats.log);
    let rate = |of: fn(&PurposeStats) -> u64| number(b.rate(|s| device(s, of)));
    let mb = |of: fn(&PurposeStats) -> u64| number(b.rate(|s| device(s, of)) / 1e6);
    let (hits, misses) = (b.grown(|s| s.stats.cache.hits) as f64, b.grown(|s| s.stats.cache.misses) as f64);
    let brought = b.grown(|s| s.stats.cache.group_blocks) as f64;
    let used = b.grown(|s| s.stats.cache.group_blocks_used) as f64;
    let mut lines = vec![
        format!(
            "device      {} reads/s  {} writes/s  {} flushes/s   {} MB/s read  {} MB/s written",
            rate(|p| p.read_requests),
            rate(|p| p.write_requests),
            rate(|p| p.flushes),
            mb(|p| p.read_bytes),
            mb(|p| p.write_bytes)
        ),
        format!(
            "group reads {}/s  {} blocks/s brought, {} of them used   (since the mount: {})",
            number(b.rate(|s| s.stats.cache.group_reads)),
            number(brought / b.seconds()),
            percent(used, brought),
            percent(cache.group_blocks_used as f64, cache.group_blocks as f64)
        ),
        format!(
            "cache       {} of {}, {} dirty   {} found, {} dropped/s   {} inodes",
            size(cache.bytes),
            size(cache.limit_bytes),
            size(cache.dirty_data_bytes),
            percent(hits, hits + misses),
            number(b.rate(|s| s.stats.cache.evicted)),
            now.stats.inodes
        ),
        format!(
            "log         {} commits/s, {} KiB/s   {} checkpoints/s, {} blocks wait",
            number(b.rate(|s| s.stats.log.commits)),
            number(b.rate(|s| s.stats.log.bytes) / 1024.0),
            number(b.rate(|s| s.stats.log.checkpoints)),
            log.dirty_blocks
        ),
        space(now),
        format!("background  {}", background(b)),
    ];
    if !now.stats.disks.is_empty() {
        let rate = |of: fn(&PurposeStats) -> u64| b.rate(|s| below(s, of));
        lines.push(format!(
            "disks       {} reads/s  {} writes/s  {} flushes/s   {} MB/s read  {} MB/s written",
            number(rate(|p| p.read_requests)),
            number(rate(|p| p.write_requests)),
            number(rate(|p| p.flushes)),
            number(rate(|p| p.read_bytes) / 1e6),
            number(rate(|p| p.write_bytes) / 1e6)
        ));
    }
    if let Some(volume) = &now.volume {
        lines.push(format!("volume      {}", disks::summary(volume)));
    }
    if let Value::Object(disk) = &now.log_disk {
        let bytes = |name: &str| disk.get(name).and_then(Value::as_u64).unwrap_or(0);
        lines.push(format!(
            "log disk    {} of {} free   {} written, {} of that by the cleaner   {} of what is stored lives",
            size(bytes("free_bytes")),
            size(bytes("usable_bytes")),
            size(bytes("written_bytes")),
            percent(bytes("cleaned_bytes") as f64, bytes("written_bytes") as f64),
            percent(bytes("live_bytes") as f64, bytes("used_bytes") as f64)
        ));
    }
    if now.failed {
        lines.push("AN ERROR: nothing is written any more; `cffs info DIR` says why".into());
    } else if now.read_only {
        lines.push("read-only".into());
    }
    lines
}

/// How much is used. The blocks of the log layout are numbers, of which there are far more than the disk has room for: there the disk
/// says how full it is.
fn space(now: &Sample) -> String {
    let [total, free, reserved] = now.stats.space.map(|frags| frags * now.stats.fragment_size);
    let used = total - free.min(total);
    let bytes = |name: &str| now.log_disk.get(name).and_then(Value::as_u64);
    let (has, of) = match (bytes("usable_bytes"), bytes("free_bytes")) {
        (Some(usable), Some(free)) => (usable - free.min(usable), usable),
        _ => (used, total),
    };
    let percent = percent(has as f64, of as f64);
    let mut line = format!("space       {} of {} used ({percent}), {} reserved", size(has), size(of), size(reserved));
    if !now.log_disk.is_null() {
        line.push_str(&format!("   {} in use by files and metadata", size(used)));
    }
    line
}

/// What goes on besides programs.
fn background(b: &Between<'_>) -> String {
    let mut all = Vec::new();
    for (name, status) in [("regroup", &b.now.regroup), ("scrub", &b.now.scrub)] {
        let n = |field: &str| status[field].as_u64().unwrap_or(0);
        let looked = if name == "regroup" { n("directories") + n("files") } else { n("inodes") };
        let share = percent(looked as f64, n("inodes_total") as f64);
        match &status["outcome"] {
            _ if status.is_null() => {}
            Value::Null if name == "regroup" => all.push(format!("regroup: {share}, {} moved", size(n("bytes_moved")))),
            Value::Null => all.push(format!("scrub: {share}, {} read", size(n("bytes")))),
            outcome => all.push(format!("{name}: {}", outcome.as_str().unwrap_or("failed"))),
        }
    }
    if let Some((what, done, of)) = b.now.volume.as_ref().and_then(disks::work) {
        all.push(format!("members: {what}, {} of {}", size(done), size(of)));
    }
    let moved = b.now.stats.maintenance.bytes_moved;
    if moved > 0 {
        let rate = b.rate(|s| s.stats.maintenance.bytes_moved) as u64;
        all.push(format!("maintenance: {} moved, {}/s now", size(moved), size(rate)));
    }
    if all.is_empty() { "nothing".into() } else { all.join("   ") }
}

/// Rows of the table, the largest first.
fn rows<'a>(b: &Between<'_>, view: View, path: &dyn Fn(u64) -> &'a str) -> Vec<(String, Vec<f64>)> {
    let per = if view.total { 1.0 } else { b.seconds() };
    let cost = |now: &Cost, before: Option<&Cost>| {
        let c = if view.total { *now } else { now.since(before.unwrap_or(&Cost::default())) };
        vec![c.operations / per, c.requests / per, c.bytes / 1e6 / per, c.ns / 1e6 / per]
    };
    let mut rows: Vec<(String, Vec<f64>)> = match view.table {
        Table::Directories => {
            let all = b.now.directories.iter();
            all.map(|(d, c)| (path(*d).to_owned(), cost(c, b.before.directories.get(d)))).collect()
        }
        Table::Operations => {
            let all = b.now.operations.iter();
            all.map(|(k, c)| (k.map_or("(unknown)", Kind::name).to_owned(), cost(c, b.before.operations.get(k))))
                .collect()
        }
        Table::Purposes => purposes(b, view.total, per),
        Table::Disks => return disks::rows(b, view.column, view.total, per),
        Table::Messages => {
            let before = |kind: &String| if view.total { 0 } else { b.before.messages.get(kind).copied().unwrap_or(0) };
            let all = b.now.messages.iter();
            all.map(|(kind, n)| (kind.clone(), vec![n.saturating_sub(before(kind)) as f64 / per])).collect()
        }
    };
    // What is the rest of a division is nothing.
    rows.retain(|(_, numbers)| numbers.iter().any(|n| *n > 1e-6));
    rows.sort_by(|a, b| disks::order(view.column, a, b));
    rows
}

fn purposes(b: &Between<'_>, total: bool, per: f64) -> Vec<(String, Vec<f64>)> {
    let all = |s: &Sample, name: &String| {
        let devices = std::iter::once(&s.stats.device).chain(&s.stats.log_device);
        devices
            .filter_map(|d| d.purposes.get(name))
            .map(disks::numbers)
            .fold([0.0; 5], |sum, n| std::array::from_fn(|i| sum[i] + n[i]))
    };
    let row = |name: &String| {
        let (now, before) = (all(b.now, name), all(b.before, name));
        (0..5).map(|i| (now[i] - if total { 0.0 } else { before[i] }) / per).collect()
    };
    b.now.stats.device.purposes.keys().map(|name| (name.clone(), row(name))).collect()
}
