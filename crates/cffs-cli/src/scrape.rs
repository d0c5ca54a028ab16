//! The mount option `scrape=`: answers HTTP requests of a Prometheus with the counters of the mount.
//!
//! Whoever connects may be slow or hostile. So there are few connections at once, each has a few seconds in all, a request may have
//! a few kilobytes, and one connection is one request.

use anyhow::{anyhow, bail};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Connections at once. More are closed unanswered.
const CONNECTIONS_MAX: usize = 8;
/// From the first byte of a request to the last of its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a request up to the empty line.
const HEAD_MAX: usize = 8 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// After a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The value of the option: a port on the loopback address, or an address with a port.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let address = match text.parse::<u16>() {
        Ok(port) => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        Err(_) => text.parse().ok(),
    };
    address.ok_or_else(|| {
        "must be a port (127.0.0.1 is meant), or an address and a port: 10.0.0.5:9123, [::1]:9123".into()
    })
}

/// Listens at an address, and answers nobody yet.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let way_out = match error.kind() {
            io::ErrorKind::AddrNotAvailable => {
                "this machine does not have that address: name one of its own (`ip address` lists them), 0.0.0.0 or [::] for all of \
                 them, or a port alone for 127.0.0.1"
            }
            io::ErrorKind::AddrInUse => "another program has the port: name another port",
            io::ErrorKind::PermissionDenied => "only root may listen at this port: name one from 1024 on",
            _ => "name another address or port",
        };
        anyhow!("scrape={address}: cannot listen there: {way_out} ({error})")
    })
}

/// Answers with what `counters` returns, in threads of its own, until the process ends.
pub fn serve(
    listener: TcpListener,
    counters: impl Fn() -> anyhow::Result<String> + Send + Sync + 'static,
) -> io::Result<()> {
    let counters = Arc::new(counters);
    let open = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(PAUSE);
                continue;
            };
            let place = Place::take(&open);
            let (counters, Some(place)) = (counters.clone(), place) else { continue };
            let answer = move || {
                let _place = place;
                // Whoever has gone away misses it.
                let _ = answer(&stream, &*counters);
            };
            // Without a thread the connection is closed.
            let _ = std::thread::Builder::new().name("cffs-scrape".into()).spawn(answer);
        }
    };
    std::thread::Builder::new().name("cffs-scrape".into()).spawn(accept).map(drop)
}

/// One of the connections that may be open.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Option<Place> {
        let more = |n| (n < CONNECTIONS_MAX).then_some(n + 1);
        open.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place(open.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection that has a certain time in all.
struct Limited<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Limited<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buf)
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            match self.stream.write(bytes)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => bytes = &bytes[n..],
            }
        }
        Ok(())
    }
}

/// What is asked.
enum Asked {
    Counters { head_only: bool },
    Nothing { status: &'static str },
}

fn answer(stream: &TcpStream, counters: &dyn Fn() -> anyhow::Result<String>) -> io::Result<()> {
    let mut stream = Limited { stream, until: Instant::now() + PATIENCE };
    let (status, body, head_only) = match read_request(&mut stream)? {
        Asked::Nothing { status } => (status, format!("{status}\n"), false),
        Asked::Counters { head_only } => match counters() {
            Ok(text) => ("200 OK", text, head_only),
            Err(error) => ("503 Service Unavailable", format!("{error:#}\n"), head_only),
        },
    };
    let kind = if status.starts_with("200") { "text/plain; version=0.0.4; charset=utf-8" } else { "text/plain" };
    let mut head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
    if status.starts_with("405") {
        head.push_str("Allow: GET, HEAD\r\n");
    }
    // Writing to a string cannot fail.
    let _ = write!(head, "Connection: close\r\n\r\n{}", if head_only { "" } else { &body });
    stream.write_all(head.as_bytes())?;
    // What was sent beyond the request is left unread, and must not take the answer with it.
    stream.stream.shutdown(Shutdown::Write)?;
    let mut rest = [0; 1024];
    while stream.read(&mut rest).is_ok_and(|n| n > 0) {}
    Ok(())
}

fn read_request(stream: &mut Limited<'_>) -> io::Result<Asked> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let n = stream.read(&mut piece)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&piece[..n]);
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => return Ok(asked(&request)),
            Ok(httparse::Status::Partial) if head.len() < HEAD_MAX => {}
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Ok(Asked::Nothing { status: "431 Request Header Fields Too Large" });
            }
            Err(_) => return Ok(Asked::Nothing { status: "400 Bad Request" }),
        }
    }
}

fn asked(request: &httparse::Request<'_, '_>) -> Asked {
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    match (request.method, path) {
        (Some("GET"), "/metrics") => Asked::Counters { head_only: false },
        (Some("HEAD"), "/metrics") => Asked::Counters { head_only: true },
        (Some("GET" | "HEAD"), _) => Asked::Nothing { status: "404 Not Found" },
        _ => Asked::Nothing { status: "405 Method Not Allowed" },
    }
}

/// What a mount answers: its counters, as `cffs stats --prometheus` prints them.
pub fn counters_of(
    image: String,
    counters: cffs_fuse::Counters,
) -> impl Fn() -> anyhow::Result<String> + Send + Sync + 'static {
    move || match counters.read() {
        Some(read) => Ok(crate::prometheus::text(&image, &read?)?),
        None => bail!("the mount has ended"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn started() -> SocketAddr {
        let listener = bind(parse_address("0").unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        serve(listener, || Ok("x".repeat(100_000))).unwrap();
        address
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

    #[test]
    fn the_address_is_a_port_of_this_machine_unless_told() {
        assert_eq!(parse_address("9123").unwrap().to_string(), "127.0.0.1:9123");
        assert_eq!(parse_address("[::1]:9123").unwrap().to_string(), "[::1]:9123");
        assert_eq!(parse_address("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
        for wrong in ["", "70000", "localhost", "1.2.3.4", ":9123"] {
            assert!(parse_address(wrong).unwrap_err().contains("a port"), "{wrong}");
        }
        let taken = bind(parse_address("0").unwrap()).unwrap();
        assert!(bind(taken.local_addr().unwrap()).unwrap_err().to_string().contains("another port"));
    }

    #[test]
    fn requests_are_answered_or_refused() {
        let address = started();
        let answer = ask(address, GET);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("version=0.0.4"), "{}", &answer[..200]);
        assert!(answer.contains("Content-Length: 100000\r\n") && answer.ends_with(&"x".repeat(1000)));
        let head = ask(address, b"HEAD /metrics?x=1 HTTP/1.0\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"));
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345", "405"),
            (b"nonsense\r\n\r\n", "400"),
            (b"\x16\x03\x01\x02\x00\x01\x00", "400"),
        ] {
            let answer = ask(address, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        }
        let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &vec![b'y'; 3 * HEAD_MAX]].concat();
        assert!(ask(address, &long).starts_with("HTTP/1.1 431"));
        let many = [b"GET /metrics HTTP/1.1\r\n".as_slice(), &b"a: b\r\n".repeat(2 * HEADERS_MAX)].concat();
        assert!(ask(address, &many).starts_with("HTTP/1.1 431"));
    }

    #[test]
    fn slow_and_many_clients_keep_nobody_out_for_long() {
        let address = started();
        // They take all places, and send nothing, or a byte from time to time, or do not read.
        let began = Instant::now();
        let idle: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut slow = &idle[0];
        slow.write_all(b"GET /metr").unwrap();
        thread::sleep(Duration::from_millis(200));
        // One more is closed at once.
        let mut more = TcpStream::connect(address).unwrap();
        let mut nothing = Vec::new();
        // Closed with the request unread, which may be told as a reset.
        let _ = more.write_all(GET);
        assert!(matches!(more.read_to_end(&mut nothing), Ok(0) | Err(_)) && nothing.is_empty());
        assert!(began.elapsed() < PATIENCE, "it was not kept waiting");
        while began.elapsed() < PATIENCE + Duration::from_secs(1) {
            // A byte now and then does not prolong it.
            let _ = slow.write(b"i");
            thread::sleep(Duration::from_millis(300));
        }
        assert!(ask(address, GET).starts_with("HTTP/1.1 200"));
        drop(idle);
    }
}
