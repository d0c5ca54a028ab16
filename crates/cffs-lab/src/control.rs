//! A client of the control channel of a mount, as docs/control.md describes it. The one of `cffs-fuse` is above this crate.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use cffs_buf::{CONTROL_LEN, control_ioctl};
use serde::Deserialize;
use serde_json::Value;

const MAGIC: &[u8; 4] = b"cffc";
const VERSION: u32 = 1;
/// Where the JSON begins.
const HEADER: usize = 32;

/// An open directory of a mount.
pub struct Control(File);

/// Why the mount refused a request.
#[derive(Debug, Deserialize)]
pub struct Refusal {
    /// As errno(3).
    pub errno: i32,
    /// In words.
    pub message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reply {
    Ok(Value),
    Error(Refusal),
}

impl Control {
    /// Of the mount that this directory is on.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(dir: &Path) -> Result<Control> {
        File::open(dir).map(Control).with_context(|| format!("cannot open {}", dir.display()))
    }

    /// Sends a request, and returns the answer or why there is none.
    ///
    /// # Errors
    /// When the mount does not answer, or with more than fits into one buffer.
    pub fn call(&self, request: &Value) -> Result<Result<Value, Refusal>> {
        let body = serde_json::to_vec(request)?;
        ensure!(body.len() <= CONTROL_LEN - HEADER, "a request of {} bytes is too long", body.len());
        let mut buffer = [0; CONTROL_LEN];
        buffer[..4].copy_from_slice(MAGIC);
        buffer[4..8].copy_from_slice(&VERSION.to_le_bytes());
        buffer[8..12].copy_from_slice(&u32::try_from(body.len())?.to_le_bytes());
        buffer[HEADER..HEADER + body.len()].copy_from_slice(&body);
        control_ioctl(&self.0, &mut buffer).context("the mount does not answer")?;
        let mut word = [0; 4];
        word.copy_from_slice(&buffer[8..12]);
        let len = u32::from_le_bytes(word) as usize;
        ensure!(buffer[16..24] == [0; 8] && len <= CONTROL_LEN - HEADER, "the answer is longer than one buffer");
        Ok(match serde_json::from_slice(&buffer[HEADER..HEADER + len])? {
            Reply::Ok(value) => Ok(value),
            Reply::Error(refusal) => Err(refusal),
        })
    }
}
