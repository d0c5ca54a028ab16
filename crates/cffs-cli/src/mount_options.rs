//! The options of `-o`: ours, and the generic ones that mount(8) and /etc/fstab hand to every file system.

use crate::compression::parse_compression;
use crate::log_args::LogArgs;
use crate::scrape::parse_address;
use crate::size::parse_size;
use cffs::trace::Classes;
use cffs::{AtimeMode, MetadataMode, MountOptions, PrefetchMode};
use cffs_fuse::{IoUring, MountConfig};
use cffs_logdisk::Compression;
use std::net::SocketAddr;
use std::time::Duration;

/// What all the options together say.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// For the engine.
    pub engine: MountOptions,
    /// For the kernel.
    pub config: MountConfig,
    /// Device of an external log, and members of a volume.
    pub parts: LogArgs,
    /// The log is not to be replayed.
    pub no_recovery: bool,
    /// Where requests for the counters are answered.
    pub scrape: Option<SocketAddr>,
    /// A snapshot or clone to mount.
    pub snapshot: Option<String>,
    /// How the log disk compresses; `None`: not said.
    pub compression: Option<Compression>,
}

/// Generic options that say nothing to a file system, or what holds anyway.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "group",
    "nogroup",
    "owner",
    "noowner",
    "fail",
    "nofail",
    "_netdev",
    "async",
    "silent",
    "loud",
    "quiet",
    "diratime",
    "nodiratime",
    "nomand",
    "noiversion",
];
/// Beginnings of generic options for other programs.
const IGNORED_PREFIXES: &[&str] = &["x-", "X-", "comment=", "user=", "uhelper=", "helper=", "subtype="];

/// Whether it is one of the options that say nothing to a file system.
pub fn is_generic(option: &str) -> bool {
    option.is_empty() || IGNORED.contains(&option) || IGNORED_PREFIXES.iter().any(|p| option.starts_with(p))
}

/// Options that a file system can have as its own defaults: how it is used, not who may use it or where its parts are.
const DEFAULTABLE: &[&str] = &[
    "cache",
    "metadata",
    "commit",
    "prefetch",
    "threads",
    "maintenance",
    "nomaintenance",
    "learn",
    "nolearn",
    "io_uring",
    "noio_uring",
    "discard",
    "nodiscard",
    "noatime",
    "atime",
    "relatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "sync",
    "async",
    "dirsync",
    "acl",
    "noacl",
    "btime",
    "nobtime",
    "user_xattr",
    "compress",
];
/// Levels of messages, as `log=` takes them.
const LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];

/// Checks a list of options that a file system shall have as its defaults.
pub fn check_defaults(list: &str) -> Result<String, String> {
    for option in split(list) {
        let name = option.split('=').next().unwrap_or_default();
        if !name.is_empty() && !DEFAULTABLE.contains(&name) {
            return Err(format!("'{option}' cannot be a default: name it when mounting"));
        }
    }
    Options::parse([list], false).map(|_| list.to_owned())
}

/// How a log disk compresses, as the default mount options of the file system on it say.
pub fn compression_of(defaults: &str) -> Compression {
    let of = |option: &String| option.strip_prefix("compress=").and_then(|v| parse_compression(v).ok());
    split(defaults).iter().rev().find_map(of).unwrap_or_default()
}

/// The level of messages that `log=` asks for.
pub fn log_level<'a>(lists: impl IntoIterator<Item = &'a str>) -> Option<&'static str> {
    let wanted = lists.into_iter().flat_map(split).filter_map(|o| Some(o.strip_prefix("log=")?.to_owned())).last()?;
    LEVELS.iter().find(|level| **level == wanted).copied()
}

/// Smallest cache that leaves the engine room to work.
const CACHE_MIN: u64 = 4 << 20;
const THREADS_MAX: usize = 1024;
/// Longest time after which a mount is idle, in seconds.
const IDLE_MAX: u64 = 86_400;

impl Options {
    /// As [`Options::parse`], over the defaults of a file system. Of those, what this version does not know is passed over: a
    /// newer one may have set them.
    pub fn over_defaults<'a>(
        defaults: &str,
        lists: impl IntoIterator<Item = &'a str>,
        sloppy: bool,
    ) -> Result<Options, String> {
        let known: Vec<String> = split(defaults)
            .into_iter()
            .filter(|option| {
                let good = check_defaults(option);
                if let Err(error) = &good {
                    tracing::warn!("default mount option of the file system passed over: {error}");
                }
                good.is_ok()
            })
            .collect();
        let lists: Vec<&str> = lists.into_iter().collect();
        Options::parse(known.iter().map(String::as_str).chain(lists), sloppy)
    }

    /// Parses lists of options, later ones win. An option that is unknown is an error, unless `sloppy`.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>, sloppy: bool) -> Result<Options, String> {
        let mut options = Options::default();
        for list in lists {
            for option in split(list) {
                match options.set(&option) {
                    Ok(()) => {}
                    Err(Wrong::Unknown) if sloppy => tracing::info!(%option, "unknown mount option ignored"),
                    Err(Wrong::Unknown) => return Err(format!("unknown mount option '{option}'")),
                    Err(Wrong::Value(what)) => return Err(format!("mount option '{option}': {what}")),
                }
            }
        }
        options.leave_out_recovery()?;
        Ok(options)
    }

    /// Hands `norecovery` to the engine, where it makes sense.
    fn leave_out_recovery(&mut self) -> Result<(), String> {
        if !self.no_recovery {
            return Ok(());
        }
        if !self.engine.read_only {
            return Err(
                "mount option 'norecovery': without its log the file system may be inconsistent, so nothing must \
                        be written to it: mount it with ro too"
                    .into(),
            );
        }
        self.engine.no_recovery = true;
        Ok(())
    }

    fn set(&mut self, option: &str) -> Result<(), Wrong> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let (engine, config) = (&mut self.engine, &mut self.config);
        match (name, value) {
            ("", None) => {}
            ("ro", None) => engine.read_only = true,
            ("rw", None) => engine.read_only = false,
            ("norecovery" | "noload", None) => self.no_recovery = true,
            ("noatime", None) => engine.atime = AtimeMode::Noatime,
            ("relatime" | "atime" | "nostrictatime", None) => engine.atime = AtimeMode::Relatime,
            ("strictatime" | "norelatime", None) => engine.atime = AtimeMode::Strictatime,
            ("lazytime", None) => engine.lazytime = true,
            ("nolazytime", None) => engine.lazytime = false,
            ("discard", None) => engine.discard = true,
            ("nodiscard", None) => engine.discard = false,
            ("cache", Some(v)) => {
                let bytes = parse_size(v).map_err(Wrong::Value)?;
                if bytes < CACHE_MIN {
                    return wrong("the cache must have at least 4M");
                }
                engine.cache_bytes = usize::try_from(bytes).map_err(|_| Wrong::Value("too large".into()))?;
            }
            ("metadata", Some(v)) => {
                engine.metadata = match v {
                    "journal" => MetadataMode::Journal,
                    "sync" => MetadataMode::Sync,
                    "delayed" => MetadataMode::Delayed,
                    _ => return wrong("must be journal, sync or delayed"),
                }
            }
            ("prefetch", Some(v)) => {
                engine.prefetch = match v {
                    "adaptive" => PrefetchMode::Adaptive,
                    "off" => PrefetchMode::Off,
                    "always" => PrefetchMode::Always,
                    _ => return wrong("must be adaptive, off or always"),
                }
            }
            ("commit", Some(v)) => match v.parse::<u64>() {
                Ok(seconds @ 1..=3600) => engine.commit_interval = Duration::from_secs(seconds),
                _ => return wrong("must be a number of seconds from 1 to 3600"),
            },
            ("log", Some(v)) if LEVELS.contains(&v) => {}
            ("log", _) => return wrong("must be error, warn, info, debug or trace"),
            ("compress", Some(v)) => self.compression = Some(parse_compression(v).map_err(Wrong::Value)?),
            ("snapshot", Some(v)) if !v.is_empty() => self.snapshot = Some(v.into()),
            ("logdev", Some(v)) if !v.is_empty() => self.parts.log_device = Some(v.into()),
            ("members", Some(v)) if !v.is_empty() => self.parts.members.push(v.into()),
            ("degraded", None) => self.parts.degraded = true,
            ("nodegraded", None) => self.parts.degraded = false,
            ("learn", None) => config.learn = true,
            ("nolearn", None) => config.learn = false,
            ("nomaintenance", None) => config.maintenance = None,
            ("maintenance", Some(v)) => match v.parse() {
                Ok(n @ 1..=IDLE_MAX) => config.maintenance = Some(Duration::from_secs(n)),
                _ => return wrong("must be a number of seconds from 1 to 86400"),
            },
            ("trace", None) => engine.trace = Classes::ALL,
            ("trace", Some(v)) => engine.trace = v.parse().map_err(Wrong::Value)?,
            ("scrape", Some(v)) => self.scrape = Some(parse_address(v).map_err(Wrong::Value)?),
            ("noscrape", None) => self.scrape = None,
            ("threads", Some(v)) => match v.parse() {
                Ok(n @ 1..=THREADS_MAX) => config.threads = n,
                _ => return wrong("must be a number of threads from 1 to 1024"),
            },
            ("io_uring", None) => config.io_uring = IoUring::Required,
            ("noio_uring", None) => config.io_uring = IoUring::Off,
            ("allow_other", None) => config.allow_other = true,
            ("noallow_other", None) => config.allow_other = false,
            ("default_permissions", None) => config.default_permissions = true,
            ("nodefault_permissions", None) => config.default_permissions = false,
            ("xattr" | "user_xattr", None) => config.xattr = true,
            ("noxattr" | "nouser_xattr", None) => config.xattr = false,
            ("btime", None) => config.birth_times = true,
            ("nobtime", None) => config.birth_times = false,
            ("acl", None) => config.acl = true,
            ("noacl", None) => config.acl = false,
            ("suid", None) => config.suid = true,
            ("nosuid", None) => config.suid = false,
            ("dev", None) => config.dev = true,
            ("nodev", None) => config.dev = false,
            ("exec", None) => config.exec = true,
            ("noexec", None) => config.exec = false,
            (
                "cache" | "metadata" | "prefetch" | "commit" | "logdev" | "threads" | "maintenance" | "compress"
                | "snapshot" | "scrape" | "members",
                _,
            ) => {
                return wrong("needs a value");
            }
            ("remount", _) => return wrong("does not go with another mount"),
            _ if is_generic(option) => {}
            _ => return Err(Wrong::Unknown),
        }
        // As mount(8) has it, what ordinary users may mount is harmless unless a later option says otherwise.
        if matches!(option, "user" | "users") || option.starts_with("user=") {
            (self.config.suid, self.config.dev, self.config.exec) = (false, false, false);
        } else if matches!(option, "group" | "owner") {
            (self.config.suid, self.config.dev) = (false, false);
        }
        Ok(())
    }
}

enum Wrong {
    Unknown,
    Value(String),
}

fn wrong(what: &str) -> Result<(), Wrong> {
    Err(Wrong::Value(what.into()))
}

/// Splits at commas that are not within double quotes, which go away.
pub fn split(list: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for c in list.chars() {
        match (c, parts.last_mut()) {
            ('"', _) => quoted = !quoted,
            (',', _) if !quoted => parts.push(String::new()),
            (c, Some(part)) => part.push(c),
            (_, None) => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options, String> {
        Options::parse([list], false)
    }

    #[test]
    fn the_compression_of_a_log_disk_is_a_default_mount_option() {
        assert_eq!(compression_of("noatime,compress=lz4,commit=3"), Compression::Lz4);
        assert_eq!(compression_of("compress=lz4,compress=none"), Compression::None);
        assert_eq!(compression_of("noatime"), Compression::None);
        assert!(check_defaults("compress=zstd:9").is_ok() && check_defaults("compress=gzip").is_err());
        assert_eq!(parse("compress=zstd:9").unwrap().compression, Some(Compression::Zstd(9)));
    }

    #[test]
    fn what_fstab_hands_over_is_accepted() {
        let o = parse("rw,defaults,noauto,nofail,_netdev,x-systemd.automount,x-gvfs-show,comment=mine,async").unwrap();
        assert!(!o.engine.read_only);
        let o = parse("ro,nosuid,nodev,noexec,noatime").unwrap();
        assert!(o.engine.read_only && !o.config.suid && !o.config.dev && !o.config.exec);
        assert_eq!(o.engine.atime, AtimeMode::Noatime);
        let o = parse("users,exec").unwrap();
        assert!(!o.config.suid && !o.config.dev && o.config.exec);
    }

    #[test]
    fn ours_are_understood_and_later_ones_win() {
        let o =
            Options::parse(["cache=64M,metadata=sync,commit=30", "metadata=delayed,threads=3,logdev=\"a,b\""], false);
        let o = o.unwrap();
        assert_eq!(o.engine.cache_bytes, 64 << 20);
        assert_eq!(o.engine.metadata, MetadataMode::Delayed);
        assert_eq!(o.engine.commit_interval, Duration::from_secs(30));
        assert_eq!(o.config.threads, 3);
        let idle = |list| Options::parse([list], false).unwrap().config.maintenance.map(|d| d.as_secs());
        assert_eq!([idle("rw"), idle("maintenance=5"), idle("maintenance=5,nomaintenance")], [None, Some(5), None]);
        assert_eq!(o.parts.log_device, Some("a,b".into()));
        let parts = parse("members=/a,degraded,members=\"/b,c\"").unwrap().parts;
        assert_eq!((parts.members, parts.degraded), (vec!["/a".into(), "/b,c".into()], true));
        assert!(parse("members=").is_err() && parse("degraded=1").is_err() && !parse("ro").unwrap().parts.degraded);
        let io_uring = |text: &str| Options::parse([text], false).map(|o| o.config.io_uring);
        assert!(matches!(io_uring("ro"), Ok(IoUring::Allowed)), "where the kernel allows it");
        assert!(matches!(io_uring("noio_uring,io_uring"), Ok(IoUring::Required)));
        assert!(matches!(io_uring("io_uring,noio_uring"), Ok(IoUring::Off)));
        assert!(io_uring("io_uring=1").is_err());
        assert!(parse("ro").unwrap().config.learn && !parse("nolearn").unwrap().config.learn);
        let classes = |list| parse(list).map(|o| o.engine.trace);
        assert_eq!((classes("ro"), classes("trace")), (Ok(Classes::NONE), Ok(Classes::ALL)));
        assert_eq!(classes("trace=op+device"), Ok(Classes::OP.with(Classes::DEVICE)));
        assert!(classes("trace=nosuch").unwrap_err().contains("no class"));
        assert!(parse("ro").unwrap().config.birth_times && !parse("nobtime").unwrap().config.birth_times);
    }

    #[test]
    fn defaults_are_harmless_and_the_mount_has_the_last_word() {
        let o = Options::over_defaults("noatime,commit=30,nosuid,future=1", ["commit=7"], false).unwrap();
        assert_eq!((o.engine.atime, o.engine.commit_interval), (AtimeMode::Noatime, Duration::from_secs(7)));
        assert_eq!(o.config.suid, MountConfig::default().suid, "not for the file system to say");
        for bad in ["ro", "suid", "dev", "allow_other", "logdev=/x", "commit=0", "nosuch", "user"] {
            assert!(check_defaults(bad).is_err(), "{bad}");
        }
        assert!(check_defaults("").is_ok() && check_defaults("relatime,discard,cache=64M").is_ok());
    }

    #[test]
    fn the_last_level_counts() {
        assert_eq!(log_level(["ro,log=debug", "log=info,noatime"]), Some("info"));
        assert_eq!(log_level(["ro"]), None);
    }

    #[test]
    fn errors_name_the_option() {
        for option in [
            "nosuch",
            "nosuch=1",
            "cache",
            "cache=x",
            "cache=1K",
            "metadata=journall",
            "commit=0",
            "commit=-1",
            "threads=0",
            "maintenance=0",
            "maintenance=86401",
            "maintenance",
            "nomaintenance=1",
            "prefetch=yes",
            "remount",
            "ro=1",
            "logdev=",
            "log=loud",
            "sync",
            "norecovery",
            "noload",
        ] {
            let e = parse(&format!("rw,{option}")).unwrap_err();
            let name = if option == "noload" { "norecovery" } else { option };
            assert!(e.contains(&format!("'{name}'")), "{option}: {e}");
        }
        assert!(parse("norecovery").unwrap_err().contains("with ro too"));
        assert!(parse("ro,norecovery").unwrap().engine.no_recovery && !parse("ro").unwrap().engine.no_recovery);
        assert!(Options::parse(["nosuch,ro"], true).unwrap().engine.read_only);
        assert!(Options::parse(["cache=x"], true).is_err(), "sloppy forgives only unknown options");
    }
}
