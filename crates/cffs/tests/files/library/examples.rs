//! The programs in `examples/`, on small input.

#[path = "../../../examples/from_tar.rs"]
mod from_tar;
#[path = "../../../examples/serve.rs"]
mod serve;
#[path = "../../../examples/walk.rs"]
mod walk;

use cffs::check::{CheckOptions, check};
use cffs::device::{FileDevice, OpenMode};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use tar::{Builder, EntryType, Header};

fn header(kind: EntryType, path: &str, mode: u32, size: u64) -> Header {
    let mut h = Header::new_gnu();
    h.set_entry_type(kind);
    // Written by hand, because the crate refuses names that lead upwards.
    h.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    h.set_mode(mode);
    h.set_uid(7);
    h.set_gid(8);
    h.set_mtime(1_000_000_000);
    h.set_size(size);
    h
}

/// An archive with files of each kind, one name twice, and names that try to get out.
fn archive() -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    let mut add = |kind, path: &str, mode, data: &[u8], link: &str| {
        let mut h = header(kind, path, mode, data.len() as u64);
        if !link.is_empty() {
            h.set_link_name(link).unwrap();
        }
        h.set_cksum();
        tar.append(&h, data).unwrap();
    };
    add(EntryType::Directory, "./", 0o755, b"", "");
    add(EntryType::Directory, "dir/", 0o750, b"", "");
    add(EntryType::Regular, "dir/file & more", 0o640, b"first", "");
    add(EntryType::Regular, "dir/file & more", 0o640, b"contents\n", "");
    add(EntryType::Regular, "not/announced/file", 0o600, &[7; 300_000], "");
    add(EntryType::Symlink, "dir/link", 0o777, b"", "../not/announced/file");
    add(EntryType::Symlink, "dir/out", 0o777, b"", "../../../etc/passwd");
    add(EntryType::Link, "dir/second", 0o640, b"", "dir/file & more");
    add(EntryType::Fifo, "dir/fifo", 0o600, b"", "");
    add(EntryType::Char, "dir/device", 0o600, b"", "");
    add(EntryType::Regular, "../../up", 0o644, b"in the root", "");
    tar.into_inner().unwrap()
}

/// The answer to a request: status line, and what follows the headers.
fn get(server: SocketAddr, request: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(server).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let status = String::from_utf8_lossy(&answer).lines().next().unwrap().replace("HTTP/1.1 ", "");
    (status, answer.split_off(end + 4))
}

fn lists_and_serves(image: &Path) {
    let mut out = Vec::new();
    assert_eq!(walk::run(image, &mut out).unwrap(), 10);
    let out = String::from_utf8(out).unwrap();
    for line in [
        "d0750     7     8         4096 /dir\n",
        "-0640     7     8            9 /dir/file & more\n",
        "-0640     7     8            9 /dir/second\n",
        "?0600     7     8            0 /dir/fifo\n",
        "-0600     7     8       300000 /not/announced/file\n",
        "-0644     7     8           11 /up\n",
        "/dir/link -> ../not/announced/file\n",
    ] {
        assert!(out.contains(line), "{line:?} in\n{out}");
    }

    let root = serve::open(image).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let server = listener.local_addr().unwrap();
    std::thread::spawn(move || serve::serve(&root, &listener));
    let text = |request| {
        let (status, body) = get(server, request);
        (status, String::from_utf8_lossy(&body).into_owned())
    };
    let ok = |body: &str| ("200 OK".to_owned(), body.to_owned());
    assert_eq!(text("GET /dir/file%20%26%20more?query"), ok("contents\n"));
    assert_eq!(text("HEAD /dir/second"), ok(""));
    assert_eq!(get(server, "GET /dir/link").1, [7; 300_000]);
    assert_eq!(text("GET /../../up"), ok("in the root"), "the root of the image is the root of every path");
    assert!(text("GET /dir").1.contains("<a href=\"/dir/file%20%26%20more\">file &amp; more</a>"));
    assert!(text("GET /").1.contains("<a href=\"/not/\">not/</a>"));
    for missing in ["GET /none", "GET /dir/out", "GET /../etc/passwd", "GET /%2e%2e/%2e%2e/etc/passwd", "GET /dir/fifo"]
    {
        assert_eq!(text(missing).0, "404 Not Found", "{missing}");
    }
    for bad in ["GET etc/passwd", "GET /%00", "GET /%4", "GET /%zz", "GET"] {
        assert_eq!(text(bad).0, "400 Bad Request", "{bad}");
    }
    assert_eq!(text("DELETE /dir").0, "405 Method Not Allowed");
}

#[test]
fn the_examples_fill_print_and_serve_an_image() {
    let temp = tempfile::tempdir().unwrap();
    let image = temp.path().join("image");
    let copied = from_tar::run(&archive()[..], &image, 64 << 20).unwrap();
    assert_eq!(copied, from_tar::Copied { entries: 10, bytes: 300_025, skipped: 1 });
    lists_and_serves(&image);

    let device = Arc::new(FileDevice::open(&image, OpenMode::READ_ONLY).unwrap());
    let report = check(device, None, &CheckOptions::default().data(true), &|_, _, _| {}).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}
