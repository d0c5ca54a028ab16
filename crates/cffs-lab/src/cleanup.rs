//! What must not be left behind: mounts, loop devices, processes, directories.
//!
//! Everything an experiment sets up on the machine is registered here before
//! it is used. A [`Guard`] takes it down when it is dropped, and a signal takes
//! down everything still registered, newest first, wherever the experiment is
//! at that moment (it may be stuck in a system call on a dead mount).

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::mount_table::{is_mounted, mounts_below};
use crate::process::run;

/// One thing to take down.
#[derive(Clone, Debug)]
pub enum Cleanup {
    /// A mount point.
    Unmount(PathBuf),
    /// A loop device, by its path.
    DetachLoop(String),
    /// A process we started and have not waited for, by its id.
    End(u32),
    /// A directory of our own, removed with what is in it.
    RemoveDir(PathBuf),
    /// A setting of the kernel, and what it was.
    Set(PathBuf, String),
}

static REGISTER: Mutex<Vec<(u64, Cleanup)>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(0);
static CARRYING_OUT: Mutex<()> = Mutex::new(());
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Takes its [`Cleanup`] down when dropped.
#[derive(Debug)]
pub struct Guard {
    id: u64,
}

impl Guard {
    /// Registers `undo`; call this before or right after setting it up.
    pub fn new(cleanup: Cleanup) -> Self {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        lock().push((id, cleanup));
        Guard { id }
    }

    /// Forgets what was registered: it was taken down in an orderly way.
    pub fn disarm(self) {
        take(self.id);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(cleanup) = take(self.id) {
            carry_out(&cleanup);
        }
    }
}

fn lock() -> std::sync::MutexGuard<'static, Vec<(u64, Cleanup)>> {
    REGISTER.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn take(id: u64) -> Option<Cleanup> {
    let mut register = lock();
    let at = register.iter().position(|(other, _)| *other == id)?;
    Some(register.remove(at).1)
}

/// On SIGINT, SIGTERM or SIGHUP: takes everything down and exits with 130.
pub fn install_signal_handler() {
    match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        Ok(mut signals) => {
            std::thread::spawn(move || {
                if signals.forever().next().is_some() {
                    clean_up_and_exit();
                }
            });
        }
        Err(error) => eprintln!("cffs-lab: no signal handler ({error}); an interrupt may leave mounts behind"),
    }
}

fn clean_up_and_exit() -> ! {
    INTERRUPTED.store(true, Ordering::SeqCst);
    eprintln!("cffs-lab: interrupted, cleaning up");
    // Twice: the experiment may have been about to register something. It
    // fails soon after, because everything is taken from under it.
    for pause in [100, 0] {
        while let Some((_, cleanup)) = newest() {
            carry_out(&cleanup);
        }
        std::thread::sleep(Duration::from_millis(pause));
    }
    // What a guard is taking down at this moment is waited for.
    let _last = CARRYING_OUT.lock();
    std::process::exit(130);
}

/// Called when the experiment is over: after a signal, its end is only a
/// consequence, and the process ends when everything is taken down.
pub fn leave_to_signal_handler() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

fn newest() -> Option<(u64, Cleanup)> {
    lock().pop()
}

fn carry_out(cleanup: &Cleanup) {
    let _one_at_a_time = CARRYING_OUT.lock();
    match cleanup {
        Cleanup::Unmount(dir) => unmount_somehow(dir),
        Cleanup::DetachLoop(device) => {
            let _ = run(&["losetup", "-d", device], Duration::from_secs(20));
        }
        Cleanup::End(pid) => end(*pid),
        Cleanup::Set(file, value) => {
            if let Err(error) = std::fs::write(file, value) {
                eprintln!("cffs-lab: {} was {value}, and cannot be set back: {error}", file.display());
            }
        }
        Cleanup::RemoveDir(dir) => {
            // Never through a mount that would not go away: that would remove
            // the mounted file system's files.
            if mounts_below(dir).is_empty() {
                let _ = std::fs::remove_dir_all(dir);
            } else {
                eprintln!("cffs-lab: {} still has mounts below it, left alone", dir.display());
            }
        }
    }
}

fn unmount_somehow(dir: &Path) {
    if !is_mounted(dir) {
        return;
    }
    if run(&["umount", &dir.to_string_lossy()], Duration::from_secs(60)).is_err() && is_mounted(dir) {
        // Dead or busy: detach it, so that what is below can go too.
        let _ = run(&["umount", "-l", &dir.to_string_lossy()], Duration::from_secs(20));
    }
}

fn end(pid: u32) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return;
    };
    // The process is our unreaped child, so its id cannot be another's by now.
    if kill_process(pid, Signal::TERM).is_err() {
        return;
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        match state {
            Ok(text) if !text.rsplit_once(") ").is_some_and(|(_, s)| s.starts_with('Z')) => {}
            _ => return,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = kill_process(pid, Signal::KILL);
}
