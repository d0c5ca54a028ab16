//! A replay through a real mount: the kernel's file systems and cffs over a loop device on a disk in virtual time.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::outcome::Predicted;
use super::settings::Settings;
use super::system_calls::{build, repeat_all};
use super::workload::Workload;
use crate::cleanup::{Cleanup, Guard};
use crate::experiments::kernel_peers::session::Session;
use crate::experiments::kernel_peers::{able, images};
use crate::mounted::Kind;

/// Bytes of the disk, if nobody has said or recorded how many.
const BYTES: u64 = 1 << 30;

/// Words for `cffs mkfs`.
fn words(kind: Kind, s: &Settings, w: &Workload) -> Vec<String> {
    if kind != Kind::Cffs {
        return Vec::new();
    }
    let mut words = Vec::new();
    for (name, said) in [("group", s.group), ("block", s.block), ("fragment", s.fragment)] {
        if let Some(bytes) = said.or_else(|| w.setting(name)) {
            words.extend([format!("--{name}-size"), bytes.to_string()]);
        }
    }
    if s.is_log(w) {
        words.extend(["--layout".into(), "log".into()]);
    }
    words
}

/// What the workload costs there.
///
/// # Errors
/// When it cannot be mounted here, or the tree does not fit.
pub fn predict(kind: Kind, s: &Settings, w: &Workload, pauses: bool, cffs: Option<&Path>) -> Result<Predicted> {
    let program = match (able(), cffs) {
        (_, Some(named)) => named.to_path_buf(),
        (Ok(program), None) => program,
        // Another file system needs no program of ours.
        (Err(why), None) if kind == Kind::Cffs || !why.contains("program") => bail!("{why}"),
        (Err(_), None) => PathBuf::new(),
    };
    if let Some(why) = kind.missing(&program) {
        bail!("{kind} cannot be mounted here: {why}");
    }
    let dir = tempfile::Builder::new().prefix("cffs-lab-replay-").tempdir_in(images())?.keep();
    let _guard = Guard::new(Cleanup::RemoveDir(dir.clone()));
    let bytes = s.of(s.size, w, "size", BYTES).next_multiple_of(1 << 20);
    let format = words(kind, s, w);
    let mut session = Session::new(kind, &program, &dir, &dir.join("image"), s.disk, Some((&format, bytes)))?;
    session.mount()?;
    build(&session.root(), &w.tree, s.key.as_ref()).with_context(|| format!("{}: the tree does not fit", s.text))?;
    session.unmount()?;
    session.mount()?;
    let before = session.flushed()?;
    let differences = repeat_all(&session.root(), w, pauses)?;
    let done = session.flushed()?;
    rustix::fs::syncfs(std::fs::File::open(session.root())?)?;
    let synced = session.flushed()?;
    session.unmount()?;
    session.close()?;
    let disk = done - before;
    Ok(Predicted { busy: disk.time, disk, sync: Some(synced - done), differences, ..Predicted::default() })
}
