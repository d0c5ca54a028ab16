//! A client of NFS 3 that keeps the handle of every file, as a kernel's client does, and goes on after the server was away.

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nfs3_client::io::{AsyncRead, AsyncWrite};
use nfs3_client::nfs3_types::mount::dirpath;
use nfs3_client::nfs3_types::nfs3::{
    COMMIT3args, CREATE3args, GETATTR3args, LOOKUP3args, MKDIR3args, Nfs3Option, Nfs3Result, READ3args, READDIR3args,
    REMOVE3args, WRITE3args, cookieverf3, createhow3, diropargs3, filename3, nfs_fh3, nfsstat3, sattr3, stable_how,
    writeverf3,
};
use nfs3_client::nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_client::nfs3_types::xdr_codec::Opaque;
use nfs3_client::{MountClient, Nfs3Client, RpcError};

/// How long a server may be away.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long one answer may take, before the connection counts as lost.
const ANSWER: Duration = Duration::from_secs(30);
/// Bytes of a READ or WRITE.
const PIECE: usize = 64 << 10;

/// Where a server listens.
#[derive(Clone, Debug)]
pub struct Address {
    /// For NFS.
    pub nfs: SocketAddr,
    /// For the mount protocol.
    pub mount: SocketAddr,
    /// What it exports.
    pub path: String,
}

/// A connection that waits in its calls, so that no future of it is ever pending.
struct Blocking(TcpStream);

impl AsyncRead for Blocking {
    async fn async_read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(buf)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => Ok(n),
        }
    }
}

impl AsyncWrite for Blocking {
    async fn async_write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.write(buf)
    }
}

fn connect(to: SocketAddr) -> std::io::Result<Blocking> {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER))?;
    Ok(Blocking(stream))
}

/// Runs a future that waits in its calls.
fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
            return value;
        }
    }
}

fn root_credential() -> opaque_auth<'static> {
    opaque_auth::auth_unix(&auth_unix::default())
}

/// The handle of the root of an export.
///
/// # Errors
/// When the server refuses it.
pub fn mount(address: &Address) -> Result<nfs_fh3> {
    let stream = connect(address.mount).context("cannot reach the server for mounts")?;
    let mut client = MountClient::new_with_auth(stream, root_credential(), opaque_auth::default());
    let path = dirpath(Opaque::borrowed(address.path.as_bytes()));
    let answer = wait(client.mnt(path)).map_err(|e| anyhow::anyhow!("MNT of {}: {e:?}", address.path))?;
    Ok(nfs_fh3 { data: Opaque::owned(answer.fhandle.0.as_ref().to_vec()) })
}

/// One connection, made anew whenever it breaks.
pub struct Client {
    address: Address,
    connection: Option<Nfs3Client<Blocking>>,
    /// How often the server was away.
    pub interruptions: u64,
}

/// Why a call has no answer.
enum Broken {
    /// The connection; the call is made again.
    Connection,
    /// The server answers with an error that is none of the file system.
    Protocol(String),
}

impl From<RpcError> for Broken {
    fn from(error: RpcError) -> Broken {
        match error {
            RpcError::Io(_) => Broken::Connection,
            other => Broken::Protocol(format!("{other:?}")),
        }
    }
}

/// Makes a call until the server answers; `$client` is the connection within the call.
macro_rules! call {
    ($self:ident, $what:expr, |$client:ident| $call:expr) => {{
        let end = Instant::now() + PATIENCE;
        loop {
            let outcome = match $self.connection() {
                Ok($client) => wait($call).map_err(Broken::from),
                Err(_) => Err(Broken::Connection),
            };
            match outcome {
                // "Try again later", while the server starts.
                Ok(Nfs3Result::Err((nfsstat3::NFS3ERR_JUKEBOX, _))) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                Ok(answer) => break answer,
                Err(Broken::Protocol(error)) => bail!("{}: {error}", $what),
                Err(Broken::Connection) => {
                    ensure!(Instant::now() < end, "{}: the server was away for {} s", $what, PATIENCE.as_secs());
                    $self.interruptions += u64::from($self.connection.take().is_some());
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }};
}

fn failed<T, E>(what: &str, answer: Nfs3Result<T, E>) -> Result<T> {
    match answer {
        Nfs3Result::Ok(ok) => Ok(ok),
        Nfs3Result::Err((status, _)) => bail!("{what}: {status:?}"),
    }
}

fn entry<'n>(dir: &nfs_fh3, name: &'n str) -> diropargs3<'n> {
    diropargs3 { dir: dir.clone(), name: filename3(Opaque::borrowed(name.as_bytes())) }
}

impl Client {
    /// Connects when the first call is made.
    pub fn new(address: Address) -> Client {
        Client { address, connection: None, interruptions: 0 }
    }

    fn connection(&mut self) -> std::io::Result<&mut Nfs3Client<Blocking>> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Nfs3Client::new_with_auth(connect(self.address.nfs)?, root_credential(), opaque_auth::default()),
        };
        Ok(self.connection.insert(connection))
    }

    /// Makes a directory. One that is there already was made by a call whose answer was lost.
    ///
    /// # Errors
    /// What the server says.
    pub fn make_dir(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3> {
        let what = format!("MKDIR {name}");
        let args = MKDIR3args { where_: entry(dir, name), attributes: attributes(0o755) };
        match call!(self, what, |client| client.mkdir(&args)) {
            Nfs3Result::Err((nfsstat3::NFS3ERR_EXIST, _)) => {}
            answer => {
                if let Nfs3Option::Some(handle) = failed(&what, answer)?.obj {
                    return Ok(handle);
                }
            }
        }
        self.lookup(dir, name)?.with_context(|| format!("{what}: it is not there"))
    }

    /// Makes an empty file, or takes the one that is there.
    ///
    /// # Errors
    /// What the server says.
    pub fn create(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3> {
        let what = format!("CREATE {name}");
        let args = CREATE3args { where_: entry(dir, name), how: createhow3::UNCHECKED(attributes(0o644)) };
        let answer = call!(self, what, |client| client.create(&args));
        match failed(&what, answer)?.obj {
            Nfs3Option::Some(handle) => Ok(handle),
            Nfs3Option::None => self.lookup(dir, name)?.with_context(|| format!("{what}: it is not there")),
        }
    }

    /// The handle of a name.
    ///
    /// # Errors
    /// What the server says, unless there is no such name.
    pub fn lookup(&mut self, dir: &nfs_fh3, name: &str) -> Result<Option<nfs_fh3>> {
        let what = format!("LOOKUP {name}");
        let args = LOOKUP3args { what: entry(dir, name) };
        match call!(self, what, |client| client.lookup(&args)) {
            Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, _)) => Ok(None),
            answer => Ok(Some(failed(&what, answer)?.object)),
        }
    }

    /// Removes a name. One that is gone was removed by a call whose answer was lost.
    ///
    /// # Errors
    /// What the server says.
    pub fn remove(&mut self, dir: &nfs_fh3, name: &str) -> Result<()> {
        let what = format!("REMOVE {name}");
        let args = REMOVE3args { object: entry(dir, name) };
        match call!(self, what, |client| client.remove(&args)) {
            Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, _)) => Ok(()),
            answer => failed(&what, answer).map(drop),
        }
    }

    /// Writes the whole file, and returns when it is durable: what a server that was restarted in between forgot is written
    /// again, which the verifier tells.
    ///
    /// # Errors
    /// What the server says.
    pub fn write(&mut self, file: &nfs_fh3, bytes: &[u8]) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut verifier: Option<writeverf3> = None;
            let mut whole = true;
            for (n, piece) in bytes.chunks(PIECE).enumerate() {
                let args = WRITE3args {
                    file: file.clone(),
                    offset: (n * PIECE) as u64,
                    count: piece.len() as u32,
                    stable: stable_how::UNSTABLE,
                    data: Opaque::borrowed(piece),
                };
                let done = failed("WRITE", call!(self, "WRITE", |client| client.write(&args)))?;
                ensure!(done.count as usize == piece.len(), "WRITE took {} of {} bytes", done.count, piece.len());
                whole &= verifier.replace(done.verf).is_none_or(|earlier| earlier.0 == done.verf.0);
            }
            let args = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
            let done = failed("COMMIT", call!(self, "COMMIT", |client| client.commit(&args)))?;
            if whole && verifier.is_none_or(|v| v.0 == done.verf.0) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the server's write verifier keeps changing");
        }
    }

    /// Reads the whole file, which should have `len` bytes.
    ///
    /// # Errors
    /// What the server says.
    pub fn read(&mut self, file: &nfs_fh3, len: usize) -> Result<Vec<u8>> {
        let args = GETATTR3args { object: file.clone() };
        let size = failed("GETATTR", call!(self, "GETATTR", |client| client.getattr(&args)))?.obj_attributes.size;
        ensure!(size == len as u64, "GETATTR: the file has {size} bytes, {len} were written");
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let args = READ3args { file: file.clone(), offset: bytes.len() as u64, count: PIECE as u32 };
            let part = failed("READ", call!(self, "READ", |client| client.read(&args)))?;
            ensure!(part.count > 0, "READ: the file ends after {} of {len} bytes", bytes.len());
            bytes.extend_from_slice(part.data.as_ref());
        }
        Ok(bytes)
    }

    /// The names in a directory.
    ///
    /// # Errors
    /// What the server says.
    pub fn names(&mut self, dir: &nfs_fh3) -> Result<Vec<String>> {
        let (mut names, mut cookie, mut cookieverf) = (Vec::new(), 0, cookieverf3::default());
        loop {
            let args = READDIR3args { dir: dir.clone(), cookie, cookieverf, count: 32 << 10 };
            let page = failed("READDIR", call!(self, "READDIR", |client| client.readdir(&args)))?;
            cookieverf = page.cookieverf;
            for entry in &page.reply.entries.0 {
                cookie = entry.cookie;
                names.push(String::from_utf8_lossy(entry.name.0.as_ref()).into_owned());
            }
            if page.reply.eof {
                names.retain(|name| name != "." && name != "..");
                return Ok(names);
            }
            ensure!(!page.reply.entries.0.is_empty(), "READDIR: an empty page is not the last one");
        }
    }
}

fn attributes(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}
