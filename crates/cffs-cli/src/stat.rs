//! `cffs stat`: shows the attributes of a file of an image.

use crate::image::{EngineResultExt, ImagePath, LogArgs, open_read_only};
use crate::ls::put_attr;
use crate::text::{device_numbers, mode_string, print_json, printable, put_name, time_string, type_name};
use cffs::FileType;
use cffs::path::resolve;
use clap::Args;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io::{self, Write};

/// Show the attributes of a file of an image
#[derive(Args, Debug)]
pub struct StatArgs {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Image and file in it
    #[arg(value_name = "IMAGE[:/PATH]")]
    path: OsString,
}

/// Runs the subcommand.
pub fn run(args: &StatArgs) -> anyhow::Result<u8> {
    let at = ImagePath::parse(&args.path);
    let fs = open_read_only(&at.image, &args.log)?;
    let a = resolve(&fs, &at.path).about(|| at.display())?;
    let target = match a.file_type {
        FileType::Symlink => Some(fs.readlink(a.ino).about(|| at.display())?),
        _ => None,
    };
    let names = fs.listxattr(a.ino).about(|| at.display())?;
    let xattrs = names.into_iter().map(|n| Ok((fs.getxattr(a.ino, &n)?, n))).collect::<cffs::Result<Vec<_>>>();
    let xattrs = xattrs.about(|| at.display())?;
    fs.forget(a.ino, 1);
    fs.close().about(|| at.display())?;
    let path: &[u8] = if at.path.is_empty() { b"/" } else { &at.path };
    if args.json {
        let mut object = Map::new();
        put_name(&mut object, "path", path);
        put_attr(&mut object, &a);
        if let Some(target) = &target {
            put_name(&mut object, "target", target);
        }
        let list = xattrs.iter().map(|(value, name)| {
            let mut x = Map::new();
            put_name(&mut x, "name", name);
            x.insert("value_hex".into(), hex(value).into());
            Value::Object(x)
        });
        object.insert("xattrs".into(), list.collect());
        print_json(&Value::Object(object))?;
        return Ok(0);
    }
    let mut out = io::stdout().lock();
    write!(out, "  File: {}", printable(path))?;
    match &target {
        Some(target) => writeln!(out, " -> {}", printable(target))?,
        None => writeln!(out)?,
    }
    writeln!(out, "  Size: {}  Allocated: {}  Type: {}", a.size, a.blocks * 512, type_name(a.file_type))?;
    write!(out, " Inode: {}  Generation: {}  Links: {}", a.ino, a.generation, a.nlink)?;
    if matches!(a.file_type, FileType::CharDevice | FileType::BlockDevice) {
        let (major, minor) = device_numbers(a.rdev);
        write!(out, "  Device: {major}, {minor}")?;
    }
    writeln!(out)?;
    writeln!(out, "Access: {:04o} {}  Uid: {}  Gid: {}", a.perm, mode_string(a.file_type, a.perm), a.uid, a.gid)?;
    for (what, ns) in [("Access", a.atime), ("Modify", a.mtime), ("Change", a.ctime), (" Birth", a.btime)] {
        writeln!(out, "{what}: {}", time_string(ns, true))?;
    }
    for (value, name) in &xattrs {
        writeln!(out, " Xattr: {}={}", printable(name), shown(value))?;
    }
    out.flush()?;
    Ok(0)
}

/// Bytes of a value that are shown of a long one.
const SHOWN: usize = 64;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A value as getfattr(1) writes it: text in quotes, other bytes in hexadecimal. Long ones are cut.
fn shown(value: &[u8]) -> String {
    let part = &value[..value.len().min(SHOWN)];
    let rest = if part.len() < value.len() { format!("... ({} bytes)", value.len()) } else { String::new() };
    match std::str::from_utf8(part) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}{rest}"),
        _ => format!("0x{}{rest}", hex(part)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_text_or_hexadecimal() {
        assert_eq!(shown(b"a \"b\""), "\"a \\\"b\\\"\"");
        assert_eq!(shown(&[1, 0xff]), "0x01ff");
        assert_eq!(shown(&[b'x'; 100]), format!("{:?}... (100 bytes)", "x".repeat(64)));
    }
}
