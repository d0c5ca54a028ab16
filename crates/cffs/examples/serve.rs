//! Serves the files of an image over HTTP, to this machine alone:
//!
//! ```text
//! cargo run --release --example serve -- src.img 8080
//! curl http://127.0.0.1:8080/src/README
//! ```
//!
//! A path leads nowhere but into the image: it is followed by cffs, not by the operating system, and `..` ends at the
//! image's root.

use cffs::device::{FileDevice, OpenMode};
use cffs::{Dir, FileType, Fs, MountOptions};
use std::error::Error;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Longest request that is read, in bytes.
const REQUEST_MAX: u64 = 16 << 10;
/// How long a client may take for a request, or to take the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens the image for reading.
pub fn open(image: &Path) -> Result<Arc<Dir>, Box<dyn Error>> {
    let device = Arc::new(FileDevice::open(image, OpenMode::READ_ONLY)?);
    let fs = Fs::open(device, None, MountOptions::default().read_only(true))?;
    Ok(Arc::new(fs.root()?))
}

/// Answers every connection in a thread of its own.
pub fn serve(root: &Arc<Dir>, listener: &TcpListener) {
    for stream in listener.incoming() {
        let root = root.clone();
        thread::spawn(move || stream.and_then(|s| answer(&root, &s)));
    }
}

/// What is sent back.
enum Reply {
    File(cffs::File, u64),
    Page(String),
}

fn answer(root: &Dir, stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream.take(REQUEST_MAX)).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    // The headers say nothing that matters here.
    for header in lines {
        if header?.is_empty() {
            break;
        }
    }
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut out = stream;
    let status = match (method, decode(target)) {
        ("GET" | "HEAD", Some(path)) => match find(root, &path) {
            Ok(reply) => return send(reply, method == "GET", out),
            Err(e @ (cffs::Error::Io(_) | cffs::Error::Corrupt(_))) => {
                eprintln!("{target}: {e}");
                "500 Internal Server Error"
            }
            Err(_) => "404 Not Found",
        },
        ("GET" | "HEAD", None) => "400 Bad Request",
        _ => "405 Method Not Allowed",
    };
    write!(out, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

fn find(root: &Dir, path: &[u8]) -> cffs::Result<Reply> {
    let path = Path::new(OsStr::from_bytes(path));
    let attr = root.metadata(path)?;
    if attr.file_type == FileType::Directory { Ok(Reply::Page(listing(root, path)?)) } else { open_file(root, path) }
}

fn open_file(root: &Dir, path: &Path) -> cffs::Result<Reply> {
    let file = root.open(path)?;
    let size = file.metadata()?.size;
    Ok(Reply::File(file, size))
}

/// A page with links to the files of a directory. Links begin at the root, so it does not matter whether the request
/// ended with a slash.
fn listing(root: &Dir, path: &Path) -> cffs::Result<String> {
    let mut page = String::from("<!doctype html><meta charset=utf-8><ul>\n");
    for entry in root.open_dir(path)?.entries()? {
        let entry = entry?;
        let full = path.join(OsStr::from_bytes(&entry.name));
        let slash = if entry.file_type == FileType::Directory { "/" } else { "" };
        let (href, text) = (encode(full.as_os_str().as_bytes()), escape(&String::from_utf8_lossy(&entry.name)));
        let _ = writeln!(page, "<li><a href=\"{href}{slash}\">{text}{slash}</a>");
    }
    page.push_str("</ul>\n");
    Ok(page)
}

fn send(reply: Reply, body: bool, mut out: &TcpStream) -> io::Result<()> {
    let (kind, len) = match &reply {
        Reply::File(_, size) => ("application/octet-stream", *size),
        Reply::Page(page) => ("text/html", page.len() as u64),
    };
    write!(out, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n")?;
    match reply {
        _ if !body => Ok(()),
        Reply::File(file, size) => {
            io::copy(&mut BufReader::with_capacity(1 << 18, file.take(size)), &mut out).map(drop)
        }
        Reply::Page(page) => out.write_all(page.as_bytes()),
    }
}

/// The path of a request target, with `%41` for `A` and without a query. `None` if it is none.
fn decode(target: &str) -> Option<Vec<u8>> {
    let path = target.split(['?', '#']).next().filter(|p| p.starts_with('/'))?;
    let mut out = Vec::new();
    let mut bytes = path.bytes();
    while let Some(b) = bytes.next() {
        match b {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            _ => out.push(b),
        }
    }
    (!out.contains(&0)).then_some(out)
}

fn encode(path: &[u8]) -> String {
    path.iter().fold(String::new(), |mut out, b| {
        match b {
            b'/' | b'-' | b'.' | b'_' | b'~' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => out.push(char::from(*b)),
            b => drop(write!(out, "%{b:02x}")),
        }
        out
    })
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[allow(dead_code, reason = "the test of the examples calls serve")]
fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let (Some(image), Some(Ok(port))) = (args.get(1), args.get(2).map(|p| p.parse::<u16>())) else {
        return Err("usage: serve IMAGE PORT".into());
    };
    let root = open(Path::new(image))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    println!("http://{}/", listener.local_addr()?);
    serve(&root, &listener);
    Ok(())
}
