//! What a replay runs on, as the command line names it: a disk, and settings with commas behind it.

use std::str::FromStr;

use anyhow::{Result, bail};
use cffs::{AtimeMode, ColocationKey, MetadataMode, PrefetchMode};
use cffs_disk::profiles;

use super::workload::Workload;
use crate::experiments::harness::Variant;
use crate::mounted::Kind;

/// A disk with settings; what is `None` is as recorded, or else the default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// As it was written, for the table.
    pub text: String,
    /// The disk's name.
    pub disk: &'static str,
    /// A mount of this file system; `None`: the engine, in the simulation.
    pub mounted: Option<Kind>,
    /// Bytes of the disk that are used.
    pub size: Option<u64>,
    /// Group in bytes.
    pub group: Option<u64>,
    /// Block in bytes.
    pub block: Option<u64>,
    /// Fragment in bytes.
    pub fragment: Option<u64>,
    /// Cache in bytes.
    pub cache: Option<u64>,
    /// Inodes in directories, and groups.
    pub techniques: Variant,
    /// Through a log disk.
    pub log: Option<bool>,
    /// Fetching of groups.
    pub prefetch: PrefetchMode,
    /// How metadata gets to the disk.
    pub metadata: MetadataMode,
    /// Access times.
    pub atime: AtimeMode,
    /// The key of the root directory.
    pub key: Option<ColocationKey>,
}

/// Bytes, perhaps with K, M or G behind them.
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.strip_suffix(['K', 'k', 'M', 'm', 'G', 'g']) {
        None => (text, 0),
        Some(digits) if text.ends_with(['K', 'k']) => (digits, 10),
        Some(digits) if text.ends_with(['M', 'm']) => (digits, 20),
        Some(digits) => (digits, 30),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl FromStr for Settings {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Settings> {
        let mut parts = text.split(',');
        let disk = parts.next().unwrap_or_default();
        let Some(profile) = profiles::find(disk) else {
            let known: Vec<&str> = profiles::all().iter().map(|p| p.name).collect();
            bail!("no disk is called '{disk}'; these are: {}", known.join(", "));
        };
        let mut s = Settings {
            text: text.to_owned(),
            disk: profile.name,
            mounted: None,
            size: None,
            group: None,
            block: None,
            fragment: None,
            cache: None,
            techniques: Variant::BOTH,
            log: None,
            prefetch: PrefetchMode::Adaptive,
            metadata: MetadataMode::Journal,
            atime: AtimeMode::Relatime,
            key: None,
        };
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            if !s.set(name, value) {
                bail!(
                    "'{part}' is no setting: fs=cffs|ext4|xfs|btrfs (a real mount), layout=log|in-place, techniques=both|embedding|grouping|neither (of cffs), size, group, block, fragment, \
                     cache (bytes, with K, M or G), prefetch=adaptive|off|always, metadata=journal|delayed|sync, \
                     atime=relatime|noatime|strictatime, key=directory|owner|process|age|label:NAME|learned"
                );
            }
        }
        let in_simulation = ["techniques", "cache", "prefetch", "metadata", "atime"];
        let given = |name: &&&str| text.split(',').any(|part| part.split_once('=').is_some_and(|(n, _)| n == **name));
        if let Some(name) = in_simulation.iter().find(given).filter(|_| s.mounted.is_some()) {
            bail!("'{text}': {name} is for the simulation; a mount has its own");
        }
        if s.mounted.is_some_and(Kind::is_kernel) && (s.group.or(s.block).or(s.fragment).is_some() || s.log.is_some()) {
            bail!("'{text}': of these settings another file system has none but fs and size");
        }
        Ok(s)
    }
}

impl Settings {
    fn set(&mut self, name: &str, value: &str) -> bool {
        match (name, value) {
            ("fs", "cffs") => self.mounted = Some(Kind::Cffs),
            ("fs", "ext4") => self.mounted = Some(Kind::Ext4),
            ("fs", "xfs") => self.mounted = Some(Kind::Xfs),
            ("fs", "btrfs") => self.mounted = Some(Kind::Btrfs),
            ("techniques", name) => {
                let found = Variant::ALL.into_iter().find(|v| v.name() == name);
                self.techniques = found.unwrap_or(Variant::BOTH);
                return found.is_some();
            }
            ("layout", "log") => self.log = Some(true),
            ("layout", "in-place") => self.log = Some(false),
            ("prefetch", "adaptive") => self.prefetch = PrefetchMode::Adaptive,
            ("prefetch", "off") => self.prefetch = PrefetchMode::Off,
            ("prefetch", "always") => self.prefetch = PrefetchMode::Always,
            ("metadata", "journal") => self.metadata = MetadataMode::Journal,
            ("metadata", "delayed") => self.metadata = MetadataMode::Delayed,
            ("metadata", "sync") => self.metadata = MetadataMode::Sync,
            ("atime", "relatime") => self.atime = AtimeMode::Relatime,
            ("atime", "noatime") => self.atime = AtimeMode::Noatime,
            ("atime", "strictatime") => self.atime = AtimeMode::Strictatime,
            ("key", _) => {
                self.key = ColocationKey::parse(value);
                return self.key.is_some();
            }
            ("size" | "group" | "block" | "fragment" | "cache", _) => {
                let of = match name {
                    "size" => &mut self.size,
                    "group" => &mut self.group,
                    "block" => &mut self.block,
                    "fragment" => &mut self.fragment,
                    _ => &mut self.cache,
                };
                let most = if matches!(name, "size" | "cache") { u64::MAX } else { u64::from(u32::MAX) };
                *of = bytes(value).filter(|n| *n <= most);
                return of.is_some();
            }
            _ => return false,
        }
        true
    }

    /// Whether it is through a log disk.
    pub fn is_log(&self, w: &Workload) -> bool {
        self.log.unwrap_or(w.setting("log_layout") == Some(1))
    }

    /// What was said, or recorded, or else `otherwise`.
    pub fn of(&self, said: Option<u64>, w: &Workload, name: &str, otherwise: u64) -> u64 {
        said.or_else(|| w.setting(name)).unwrap_or(otherwise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_understood_or_refused_with_what_there_is() {
        let s: Settings = "hdd-2026,group=256K,layout=log,cache=32M,key=label:x,prefetch=off".parse().unwrap();
        assert_eq!((s.disk, s.group, s.log, s.cache), ("hdd-2026", Some(256 << 10), Some(true), Some(32 << 20)));
        assert_eq!(s.prefetch, PrefetchMode::Off);
        assert!("floppy".parse::<Settings>().unwrap_err().to_string().contains("volume-1ms"));
        for wrong in [
            "volume-1ms,group=x",
            "volume-1ms,group=4195536K",
            "volume-1ms,grup=1",
            "volume-1ms,key=",
            "volume-1ms,fs=fat",
        ] {
            assert!(wrong.parse::<Settings>().unwrap_err().to_string().contains("is no setting"), "{wrong}");
        }
        let mounted = "volume-1ms,fs=cffs,techniques=neither".parse::<Settings>().unwrap_err().to_string();
        assert!(mounted.contains("techniques is for the simulation"), "{mounted}");
        assert!("volume-1ms,fs=ext4,group=64K".parse::<Settings>().unwrap_err().to_string().contains("none but"));
    }
}
