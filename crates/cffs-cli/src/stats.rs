//! `cffs stats`: the counters of a mount, or what an image says about itself.

use crate::image::{Image, LogArgs};
use crate::info::{log_disk_json, state_name};
use crate::text::{print_json, time_string};
use anyhow::Context;
use cffs::device::{Device, IoKind, OpenMode};
use cffs::format::system::Counters;
use cffs::format::{BlockId, BlockKind, verify_block};
use cffs_fuse::control::Control;
use cffs_fuse::volume::VolumeReport;
use clap::Args;
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Show the counters of a mount, or of an image
///
/// For the directory that an image is mounted on: device requests and bytes by kind and by purpose, cache and group hits, log and
/// latencies since the mount. For an image that is not mounted: what it has stored.
#[derive(Args, Debug)]
pub struct StatsArgs {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
    /// Print those of a mount in the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Directory of a mount (any in it), or image
    #[arg(value_name = "DIR|IMAGE")]
    path: PathBuf,
}

/// Runs the subcommand.
pub fn run(args: &StatsArgs) -> anyhow::Result<u8> {
    crate::log::start(0);
    if args.prometheus {
        let control = Control::open(&args.path)?;
        let text = crate::prometheus::text(&control.info()?.image, &control.stats()?)?;
        io::stdout().write_all(text.as_bytes())?;
        return Ok(0);
    }
    let value = if args.path.is_dir() { Control::open(&args.path)?.stats()? } else { of_image(&args.path, &args.log)? };
    if args.json {
        print_json(&value)?;
    } else {
        let mut out = io::stdout().lock();
        print(&mut out, &value, 0)?;
        out.flush()?;
    }
    Ok(0)
}

fn of_image(path: &Path, log: &LogArgs) -> anyhow::Result<Value> {
    let image = Image::open(path, log, OpenMode::READ_ONLY)?;
    let (sb, g) = (&image.superblock, &image.geometry);
    let mut block = vec![0; g.block_size()];
    let addr = g.counters_block();
    image.dev.read_at(IoKind::Meta, addr << g.block_shift, &mut block)?;
    let id = BlockId { kind: BlockKind::Counters, addr, owner: 0 };
    verify_block(&block, g.fsid, id).with_context(|| format!("{}: run `cffs fsck -n`", path.display()))?;
    let c = Counters::decode(&block);
    let mut value = json!({
        "state": state_name(sb.state),
        "mounts": sb.mount_count,
        "last mount": if sb.mount_count > 0 { time_string(sb.mounted, false) } else { "never".into() },
        "inodes": c.inodes,
        "free bytes": c.free_frags << g.frag_shift,
        "total bytes": g.total_bytes(),
        "allocation groups": g.ag_count,
        "allocation groups in use": c.ags,
        "orphans": c.orphan_head != 0,
    });
    if let Value::Object(all) = &mut value {
        if let Some(disk) = &image.log_disk {
            all.insert("log disk".into(), log_disk_json(disk));
        }
        if let Some(volume) = &image.volume {
            all.insert("volume".into(), json!(VolumeReport::of(volume)));
        }
    }
    Ok(value)
}

/// Prints an object as an indented list, a list of objects with the same keys as a table.
fn print(out: &mut impl Write, value: &Value, indent: usize) -> io::Result<()> {
    let Value::Object(object) = value else { return writeln!(out, "{:indent$}{}", "", plain(value)) };
    let width = object.iter().filter(|(_, v)| !v.is_object()).map(|(k, _)| k.len()).max().unwrap_or(0);
    for (key, value) in object {
        let label = key.replace('_', " ");
        match value {
            Value::Object(inner) if is_table(inner) => {
                writeln!(out, "{:indent$}{label}", "")?;
                print_table(out, inner, indent + 2)?;
            }
            Value::Object(_) => {
                writeln!(out, "{:indent$}{label}", "")?;
                print(out, value, indent + 2)?;
            }
            // Of things that have a name, such as members of a volume.
            Value::Array(list) if list.iter().any(Value::is_object) => {
                for item in list {
                    writeln!(out, "{:indent$}{label}", "")?;
                    print(out, item, indent + 2)?;
                }
            }
            _ => writeln!(out, "{:indent$}{label:width$}  {}", "", plain(value))?,
        }
    }
    Ok(())
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Null => "-".into(),
        Value::Number(n) if n.is_f64() => format!("{:.3}", n.as_f64().unwrap_or(0.0)),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// Objects that all have the same plain values, as the counters of each kind of request.
fn is_table(object: &Map<String, Value>) -> bool {
    let mut rows = object.values();
    let Some(Value::Object(first)) = rows.next() else { return false };
    let flat = |row: &Map<String, Value>| row.values().all(|v| !v.is_object() && !v.is_array());
    flat(first)
        && object.len() > 1
        && rows.all(|row| row.as_object().is_some_and(|row| flat(row) && row.keys().eq(first.keys())))
}

fn print_table(out: &mut impl Write, object: &Map<String, Value>, indent: usize) -> io::Result<()> {
    let Some(Value::Object(first)) = object.values().next() else { return Ok(()) };
    let columns: Vec<&String> = first.keys().collect();
    let cell = |row: &Value, column: &str| plain(&row[column]);
    let widths: Vec<usize> = columns
        .iter()
        .map(|c| object.values().map(|row| cell(row, c).len()).chain([c.len()]).max().unwrap_or(0))
        .collect();
    let names = object.keys().map(String::len).max().unwrap_or(0);
    write!(out, "{:indent$}{:names$}", "", "")?;
    for (column, width) in columns.iter().zip(&widths) {
        write!(out, "  {:>width$}", column.replace('_', " "))?;
    }
    writeln!(out)?;
    for (name, row) in object {
        write!(out, "{:indent$}{name:names$}", "")?;
        for (column, width) in columns.iter().zip(&widths) {
            write!(out, "  {:>width$}", cell(row, column))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_lists_and_tables() {
        let value = json!({
            "commits": 5,
            "cache": {"hits": 10, "share": 0.5},
            "device": {"data": {"reads": 1, "writes": 20}, "log": {"reads": 0, "writes": 300}},
        });
        let mut out = Vec::new();
        print(&mut out, &value, 0).unwrap();
        let text = String::from_utf8(out).unwrap();
        for line in [
            "commits  5",
            "cache",
            "  hits   10",
            "  share  0.500",
            "        reads  writes",
            "  data      1      20",
            "  log       0     300",
        ] {
            assert!(text.lines().any(|l| l == line), "{line:?} in\n{text}");
        }
    }
}
