//! `cffs ls`: lists a directory of an image.

use crate::image::{EngineResultExt, ImagePath, LogArgs, open_read_only};
use crate::text::{device_numbers, mode_string, print_json, printable, put_name, time_string, type_name};
use cffs::path::resolve;
use cffs::{Attr, FileType, Fs};
use clap::Args;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::io::{self, Write};

/// List a directory of an image
#[derive(Args, Debug)]
pub struct LsArgs {
    /// Show type, permissions, links, owner, group, size and time of change too
    #[arg(short)]
    long: bool,
    /// List the directory itself, not what is in it
    #[arg(short)]
    directory: bool,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Image and directory (or file) in it
    #[arg(value_name = "IMAGE[:/PATH]")]
    path: OsString,
}

struct Listed {
    name: Vec<u8>,
    attr: Attr,
    target: Option<Vec<u8>>,
}

fn listed(fs: &Fs, name: Vec<u8>, attr: Attr, object: impl FnOnce() -> String) -> anyhow::Result<Listed> {
    let target = match attr.file_type {
        FileType::Symlink => Some(fs.readlink(attr.ino).about(object)?),
        _ => None,
    };
    Ok(Listed { name, attr, target })
}

/// Runs the subcommand.
pub fn run(args: &LsArgs) -> anyhow::Result<u8> {
    let at = ImagePath::parse(&args.path);
    let fs = open_read_only(&at.image, &args.log)?;
    let attr = resolve(&fs, &at.path).about(|| at.display())?;
    let mut list = Vec::new();
    if attr.file_type == FileType::Directory && !args.directory {
        let mut entries = Vec::new();
        fs.readdir(attr.ino, 0, true, &mut |e| {
            entries.push(e);
            true
        })
        .about(|| at.display())?;
        for e in entries {
            let object = || format!("{}/{}", at.display(), printable(&e.name));
            let attr = match e.attr {
                Some(attr) => attr,
                None => fs.lookup(attr.ino, &e.name).about(object)?,
            };
            list.push(listed(&fs, e.name.clone(), attr, object)?);
            fs.forget(attr.ino, 1);
        }
        list.sort_by(|a, b| a.name.cmp(&b.name));
    } else {
        let name = if at.path.is_empty() { b"/".to_vec() } else { at.path.clone() };
        list.push(listed(&fs, name, attr, || at.display())?);
    }
    fs.forget(attr.ino, 1);
    fs.close().about(|| at.display())?;
    if args.json {
        print_json(&Value::Array(list.iter().map(to_json).collect()))?;
    } else {
        print(&list, args.long)?;
    }
    Ok(0)
}

fn to_json(l: &Listed) -> Value {
    let mut object = Map::new();
    put_name(&mut object, "name", &l.name);
    put_attr(&mut object, &l.attr);
    if let Some(target) = &l.target {
        put_name(&mut object, "target", target);
    }
    Value::Object(object)
}

/// Puts attributes into a JSON object.
pub fn put_attr(object: &mut Map<String, Value>, a: &Attr) {
    let mut put = |key: &str, value: Value| object.insert(key.into(), value);
    put("inode", json!(a.ino));
    put("generation", json!(a.generation));
    put("type", json!(type_name(a.file_type)));
    put("mode", json!(format!("{:04o}", a.perm)));
    put("links", json!(a.nlink));
    put("uid", json!(a.uid));
    put("gid", json!(a.gid));
    put("size", json!(a.size));
    put("allocated", json!(a.blocks * 512));
    if matches!(a.file_type, FileType::CharDevice | FileType::BlockDevice) {
        let (major, minor) = device_numbers(a.rdev);
        put("device", json!({"major": major, "minor": minor}));
    }
    for (key, ns) in [("atime_ns", a.atime), ("mtime_ns", a.mtime), ("ctime_ns", a.ctime), ("btime_ns", a.btime)] {
        put(key, json!(ns));
    }
}

fn print(list: &[Listed], long: bool) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    // Device files show their numbers instead of a size that they do not have.
    let size = |a: &Attr| match a.file_type {
        FileType::CharDevice | FileType::BlockDevice => {
            let (major, minor) = device_numbers(a.rdev);
            format!("{major}, {minor}")
        }
        _ => a.size.to_string(),
    };
    let width = |f: &dyn Fn(&Attr) -> String| list.iter().map(|l| f(&l.attr).len()).max().unwrap_or(0);
    let links = width(&|a| a.nlink.to_string());
    let uid = width(&|a| a.uid.to_string());
    let gid = width(&|a| a.gid.to_string());
    let sizes = width(&size);
    for l in list {
        if long {
            let a = &l.attr;
            write!(
                out,
                "{} {:>links$} {:>uid$} {:>gid$} {:>sizes$} {} ",
                mode_string(a.file_type, a.perm),
                a.nlink,
                a.uid,
                a.gid,
                size(a),
                time_string(a.mtime, false),
            )?;
        }
        write!(out, "{}", printable(&l.name))?;
        match &l.target {
            Some(target) if long => writeln!(out, " -> {}", printable(target))?,
            _ => writeln!(out)?,
        }
    }
    out.flush()
}
