//! `cffs rm`: removes files of an image.

use crate::image::{EngineResultExt, ImagePath, LogArgs, open_read_write};
use crate::text::printable;
use anyhow::bail;
use cffs::path::resolve;
use cffs::{Error, FileType, Fs, Ino};
use clap::Args;
use std::ffi::OsString;

/// Remove a file of an image, or with -r a directory and all in it
#[derive(Args, Debug)]
pub struct RmArgs {
    /// Remove directories and what is in them
    #[arg(short, long)]
    recursive: bool,
    /// Say nothing if there is no such file
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    log: LogArgs,
    /// Image and file in it
    #[arg(value_name = "IMAGE:/PATH")]
    path: OsString,
}

/// Runs the subcommand.
pub fn run(args: &RmArgs) -> anyhow::Result<u8> {
    let at = ImagePath::parse(&args.path);
    let mut components: Vec<&[u8]> = at.path.split(|b| *b == b'/').filter(|c| !c.is_empty()).collect();
    let Some(name) = components.pop() else {
        bail!("{}: names no file in the image: write {}:/path", at.display(), at.image.display());
    };
    let fs = open_read_write(&at.image, &args.log)?;
    let result = remove(&fs, args, &at, &components.join(&b'/'), name);
    // What was removed before an error is removed; the image stays in order.
    fs.close().about(|| at.image.display().to_string())?;
    result?;
    Ok(0)
}

fn remove(fs: &Fs, args: &RmArgs, at: &ImagePath, parent: &[u8], name: &[u8]) -> anyhow::Result<()> {
    let found = resolve(fs, parent).and_then(|dir| Ok((dir.ino, fs.lookup(dir.ino, name)?)));
    let (dir, attr) = match found {
        Err(Error::NotFound) if args.force => return Ok(()),
        other => other.about(|| at.display())?,
    };
    if attr.file_type == FileType::Directory {
        if !args.recursive {
            bail!("{}: is a directory: use -r to remove it and what is in it", at.display());
        }
        empty(fs, attr.ino, at)?;
        fs.rmdir(dir, name).about(|| at.display())?;
    } else {
        fs.unlink(dir, name).about(|| at.display())?;
    }
    fs.forget(attr.ino, 1);
    fs.forget(dir, 1);
    Ok(())
}

/// A directory on the way down: its inode, the name it has in the one before, and where listing goes on.
struct Level {
    ino: Ino,
    name: Vec<u8>,
    cookie: u64,
}

/// Entries of a directory that are looked at together.
const BATCH: usize = 1024;

/// Removes all that is in a directory. Directories may be nested deeper than a stack, so this keeps its own.
fn empty(fs: &Fs, dir: Ino, at: &ImagePath) -> anyhow::Result<()> {
    let mut stack = vec![Level { ino: dir, name: Vec::new(), cookie: 0 }];
    while let Some(depth) = stack.len().checked_sub(1) {
        let object = |stack: &[Level], name: &[u8]| {
            let inner = stack.iter().skip(1).map(|l| l.name.as_slice()).chain([name]);
            let path: Vec<String> = inner.filter(|n| !n.is_empty()).map(printable).collect();
            format!("{}/{}", at.display(), path.join("/"))
        };
        let mut batch = Vec::new();
        fs.readdir(stack[depth].ino, stack[depth].cookie, false, &mut |e| {
            batch.push(e);
            batch.len() < BATCH
        })
        .about(|| object(&stack, b""))?;
        // The entry at which the batch was full was not consumed; it comes again.
        let more = batch.len() == BATCH;
        let mut below = None;
        for e in batch.iter().take(BATCH - 1) {
            if e.file_type == FileType::Directory {
                let attr = fs.lookup(stack[depth].ino, &e.name).about(|| object(&stack, &e.name))?;
                below = Some(Level { ino: attr.ino, name: e.name.clone(), cookie: 0 });
                break;
            }
            fs.unlink(stack[depth].ino, &e.name).about(|| object(&stack, &e.name))?;
            stack[depth].cookie = e.cookie;
        }
        if let Some(below) = below {
            stack.push(below);
        } else if !more
            && let Some(done) = stack.pop()
            && let Some(parent) = stack.last()
        {
            fs.rmdir(parent.ino, &done.name).about(|| object(&stack, &done.name))?;
            fs.forget(done.ino, 1);
        }
    }
    Ok(())
}
