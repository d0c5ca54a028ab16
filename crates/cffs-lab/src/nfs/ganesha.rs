//! The NFS server: nfs-ganesha with its module for local file systems, which opens files by their handles alone.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::find_program;
use crate::server::Server;

use super::client::Address;

const START: Duration = Duration::from_secs(60);
const PROGRAM: &str = "ganesha.nfsd";
const PORTMAPPER: &str = "rpcbind";
const MODULE: &str = "libfsalvfs.so";

/// Why it cannot run here; `None` when it can.
pub fn missing() -> Option<String> {
    let program = [PROGRAM, PORTMAPPER].into_iter().find(|name| find_program(name).is_none());
    if let Some(program) = program {
        return Some(format!(
            "{program} is not installed (Debian: apt-get install nfs-ganesha nfs-ganesha-vfs rpcbind)"
        ));
    }
    let folders = [
        "/usr/lib/x86_64-linux-gnu/ganesha",
        "/usr/lib/aarch64-linux-gnu/ganesha",
        "/usr/lib64/ganesha",
        "/usr/lib/ganesha",
    ];
    let there = folders.iter().any(|dir| Path::new(dir).join(MODULE).exists());
    (!there).then(|| format!("{MODULE} is not installed (Debian: apt-get install nfs-ganesha-vfs)"))
}

/// Where its files are and where it listens; it can be started again and again.
pub struct Ganesha {
    dir: PathBuf,
    address: Address,
    // It has to be there whenever a server starts, and ends with us.
    _portmapper: Option<Server>,
}

fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn listens(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
}

impl Ganesha {
    /// Prepares a server whose files are in `dir`, and which exports `root` to this machine alone. Starts the portmapper
    /// if there is none, because the server does not run without it; clients do not ask it.
    ///
    /// # Errors
    /// When there is no port, or a file cannot be written.
    pub fn prepare(dir: &Path, root: &Path) -> Result<Ganesha> {
        let portmapper = SocketAddr::from((Ipv4Addr::LOCALHOST, 111));
        let started = if listens(portmapper) {
            None
        } else {
            let mut command = Command::new(find_program(PORTMAPPER).context("rpcbind")?);
            command.arg("-f").stderr(Stdio::null());
            let mut server = Server::start(command)?;
            server.wait_until(START, || listens(portmapper))?;
            Some(server)
        };
        let address = Address {
            nfs: free_port()?,
            mount: free_port()?,
            path: root.to_str().context("a path in UTF-8")?.to_owned(),
        };
        ensure!(!address.path.contains(['"', ';', ' ']), "{}: a path without blanks and quotes", address.path);
        let recovery = dir.join("recovery");
        std::fs::create_dir_all(&recovery)?;
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {}; MNT_Port = {}; Bind_addr = 127.0.0.1; \
             Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}\n\
             NFSv4 {{ Graceless = true; RecoveryRoot = {}; }}\n\
             EXPORT {{ Export_Id = 1; Path = {}; Pseudo = /exported; Protocols = 3; Access_Type = RW; \
             Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }} }}\n",
            address.nfs.port(),
            address.mount.port(),
            recovery.display(),
            address.path
        );
        std::fs::write(dir.join("ganesha.conf"), text)?;
        Ok(Ganesha { dir: dir.to_path_buf(), address, _portmapper: started })
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What it has said.
    pub fn log(&self) -> PathBuf {
        self.dir.join("ganesha.log")
    }

    /// Starts it, and waits until it listens.
    ///
    /// # Errors
    /// When it does not within a minute.
    pub fn start(&self) -> Result<Server> {
        let mut command = Command::new(find_program(PROGRAM).context(PROGRAM)?);
        command.arg("-F").arg("-L").arg(self.log()).arg("-f").arg(self.dir.join("ganesha.conf"));
        command.arg("-p").arg(self.dir.join("ganesha.pid")).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Server::start(command)?;
        server
            .wait_until(START, || listens(self.address.nfs) && listens(self.address.mount))
            .with_context(|| format!("the server's log is {}", self.log().display()))?;
        Ok(server)
    }
}

/// Ends a server by a signal, and waits for it.
///
/// # Errors
/// When it does not end within a minute.
pub fn stop(server: Server, signal: Signal) -> Result<()> {
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw).context("no process id")?;
    kill_process(pid, signal)?;
    server.wait_end(START).map(drop)
}
