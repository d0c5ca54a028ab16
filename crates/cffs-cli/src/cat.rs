//! `cffs cat`: writes a file of an image to standard output.

use crate::image::{EngineResultExt, ImagePath, LogArgs, open_read_only};
use anyhow::bail;
use cffs::FileType;
use cffs::path::resolve;
use clap::Args;
use std::ffi::OsString;
use std::io::{self, Write};

/// Write a file of an image to standard output
#[derive(Args, Debug)]
pub struct CatArgs {
    #[command(flatten)]
    log: LogArgs,
    /// Image and file in it
    #[arg(value_name = "IMAGE:/PATH")]
    path: OsString,
}

/// Runs the subcommand.
pub fn run(args: &CatArgs) -> anyhow::Result<u8> {
    let at = ImagePath::parse(&args.path);
    let fs = open_read_only(&at.image, &args.log)?;
    let attr = resolve(&fs, &at.path).about(|| at.display())?;
    match attr.file_type {
        FileType::Regular => {}
        FileType::Directory => bail!("{}: is a directory: `cffs ls` lists it", at.display()),
        _ => bail!("{}: not a regular file: `cffs stat` shows what it is", at.display()),
    }
    let mut out = io::stdout().lock();
    let mut buf = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        let n = fs.read(attr.ino, offset, &mut buf).about(|| at.display())?;
        if n == 0 {
            break;
        }
        out.write_all(&buf[..n])?;
        offset += n as u64;
    }
    out.flush()?;
    fs.forget(attr.ino, 1);
    fs.close().about(|| at.display())?;
    Ok(0)
}
